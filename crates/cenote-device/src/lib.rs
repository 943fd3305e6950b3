//! Leaf devices: file, block device, memory, simulated disk, recorder, fault injector.
//!
//! One async trait over owned, aligned buffers. A read returns all requested bytes, or an error
//! with the device's path and the offset; there are no short reads above this layer. Devices opened
//! for reading are opened read-only and cannot be written (spec 06 §2). A write is durable after a
//! flush that began after the write returned; every device used in tests provides exactly this
//! guarantee and no stronger one.

mod command_hash;
mod device;
mod extents;
mod faulty;
mod file;
mod image;
mod memory;
pub mod model;
mod model_disk;
pub mod pattern;
mod recorder;
mod replay;
mod revocable;
#[cfg(target_os = "linux")]
mod ring;
mod simulated;

pub use command_hash::CommandHash;
pub use device::{Device, DeviceInfo, NoDiscard, OpenMode, OutOfRange, ReadOnly};
pub use faulty::{Fault, FaultyDevice, InjectedFault, WriteFault};
pub use file::{FileDevice, OpenError, create_file};
pub use image::{Image, ImageDevice};
pub use memory::MemoryDevice;
pub use model_disk::{
    DiskFault, DiskSnapshot, DiskStats, FaultRates, InjectedEvent, ModelDisk, NoPower, OpCount,
    PowerCut,
};
pub use recorder::{Event, Log, Recorder};
pub use replay::{Pending, Replay, TEAR_GRAIN};
pub use revocable::{DeviceClosed, Revocable};
pub use simulated::{PartOfSector, SimulatedDisk, SimulatedUse, UnreadableSector};
