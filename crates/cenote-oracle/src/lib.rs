//! OpenZFS's own tools as judges for tests.
//!
//! `zdb` and `zstream` work without the kernel module, and so does the engine itself, as a library.
//! A test asks for one, and goes on without it, loudly and counted, where it is not installed:
//!
//!     let Some(zdb) = cenote_oracle::zdb() else { return };
//!     let said = zdb.pool("g-basic", &golden.images(), &["-dddd"]);
//!     assert!(said.is_success(), "{said}");
//!
//! A judge must be of the series whose texts we promise ([`SERIES`]): another version prints
//! other columns, and a difference would then say nothing.

mod libzpool;
mod shims;
mod takeover;
mod tool;

pub use libzpool::{Libzpool, libzpool};
pub use takeover::{Shape, Takeover, ztest};
pub use tool::{SERIES, Said, Tool, zdb, zstream};
