//! Leaf devices: file, block device, memory, fault injector.
//!
//! One async trait over owned, aligned buffers. A read returns all the bytes asked for or an
//! error with the device's path and the offset; there are no short reads above this layer.
//! Devices opened here for reading are opened read-only and can't be written (spec 06 §2).

mod device;
mod faulty;
mod file;
mod memory;
#[cfg(target_os = "linux")]
mod ring;

pub use device::{Device, DeviceInfo, NoDiscard, OpenMode, OutOfRange, ReadOnly};
pub use faulty::{Fault, FaultyDevice, InjectedFault};
pub use file::{FileDevice, OpenError};
pub use memory::MemoryDevice;
