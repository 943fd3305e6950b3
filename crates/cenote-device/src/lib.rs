//! Leaf devices: file, block device, memory, fault injector.
