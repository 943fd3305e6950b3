//! Types and byte codecs of every structure on disk; pure, no I/O.
//!
//! Bytes from disk are hostile: no decoder indexes into them, so that none can panic.

#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

pub mod acl;
pub mod bits;
pub mod blkptr;
pub mod bookmark;
pub mod bootenv;
pub mod bpobj;
pub mod bptree;
pub mod brt;
pub mod bytes;
pub mod byteswap;
pub mod checkpoint;
pub mod checksum_type;
pub mod compression_type;
pub mod config;
pub mod ddt;
pub mod deadlist;
pub mod dnode;
pub mod dsl;
pub mod endian;
pub mod errlog;
pub mod feature;
pub mod history;
pub mod indirect;
pub mod label;
pub mod leaf_work;
pub mod master_node;
pub mod nvlist;
pub mod object_type;
pub mod objset;
pub mod posix_acl;
pub mod quota;
pub mod rebuild;
pub mod redaction;
pub mod sa;
pub mod scan;
pub mod spacemap;
pub mod stream;
pub mod uberblock;
pub mod vdev_zap;
pub mod words;
pub mod zap;
pub mod zil;
pub mod znode;
