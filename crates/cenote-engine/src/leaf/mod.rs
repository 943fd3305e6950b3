//! Leaves: the ones that fail and come back, what they lack, and trim and initialize.

mod dtl;
pub(crate) mod leafwork;

use crate::Engine;
use leafwork::{AutoTrim, LeafWorks};

/// The state behind [`Leaves`].
#[derive(Debug, Default)]
pub(crate) struct LeafState {
    service: leaves::Service,
    /// Trim and initialize that are running.
    works: LeafWorks,
    /// Freed ranges that autotrim will discard.
    pub(crate) auto_trim: AutoTrim,
}

/// Leaves: taking them out of service and back, trim and initialize; made by [`Engine::leaves`].
#[derive(Debug, Clone, Copy)]
pub struct Leaves<'e> {
    pub(crate) engine: &'e Engine,
}

pub(crate) mod leaves;
