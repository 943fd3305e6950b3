//! Types and byte codecs of every structure on disk; pure, no I/O.

pub mod acl;
pub mod bits;
pub mod bookmark;
pub mod bytes;
pub mod deadlist;
pub mod endian;
pub mod sa;
pub mod spacemap;
pub mod words;
pub mod zap;
pub mod znode;
