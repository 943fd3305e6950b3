//! Leaves: the ones that fail and come back, what they lack, and trim and initialize.

mod dtl;
pub(crate) mod leafwork;
pub(crate) mod leaves;
