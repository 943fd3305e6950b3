//! Space: what is allocated and freed, what a checkpoint keeps, what destroyed datasets give back.

pub(crate) mod checkpoint;
mod destroy;
mod metaslabs;
