//! OpenZFS's own tools, which check pools in tests.
//!
//! `zdb` and `zstream` work without the kernel module, and so does the engine itself, as a library.
//! If a test requests a tool that is not installed, it reports that it is skipped, and returns.
//!
//!     let Some(zdb) = cenote_oracle::zdb() else { return };
//!     let said = zdb.pool("g-basic", &golden.images(), &["-dddd"]);
//!     assert!(said.is_success(), "{said}");
//!
//! A tool must be of the series whose messages we reproduce ([`SERIES`]): another version prints
//! other columns, and a difference would have no meaning.

mod libzpool;
mod shims;
mod takeover;
mod tool;

pub use libzpool::{Libzpool, libzpool};
pub use takeover::{Shape, Takeover, ztest};
pub use tool::{SERIES, Said, Tool, zdb, zstream};
