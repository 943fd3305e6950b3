//! Send streams: reading and writing them (spec 07 part B).
//!
//! ```text
//!   bytes --StreamReader--> record + payload        record + payload --StreamWriter--> bytes
//!              |  checksum, order, bounds                    |  checksum
//!              +--- RunningChecksum ----------------+--------+
//! ```
//!
//! [`receive`] applies the records of a substream to a pool that is open for writing.
//!
//! Records are types of `cenote_ondisk::stream`; this crate frames them: it finds the byte order,
//! bounds payloads before it takes memory for them, and keeps the checksum that chains the records
//! of a substream. A stream is input from a network: every error names the record and the offset.

//!
//! [`BeginPayload`] and [`Package`] are the nvlists in a stream, [`ResumeToken`] is the text by
//! which an interrupted receive continues.

pub mod checksum;
pub mod package;
pub mod payload;
pub mod read;
pub mod receive;
pub mod send;
pub mod token;
pub mod write;

pub use checksum::RunningChecksum;
pub use package::{CorruptPackage, Package, PackageDataset, SnapshotHolds};
pub use payload::{BeginPayload, CorruptPayload, CryptKeyData, MetaDnodeGeometry, ResumePoint};
pub use read::{Item, StreamError, StreamReader};
pub use receive::{Healed, Healer, ReceiveError, ReceiveOptions, Receiver};
pub use token::{CorruptToken, ResumeToken};
pub use write::{StreamWriter, frame};
