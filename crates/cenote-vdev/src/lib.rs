//! The vdev tree: mirror, RAID-Z, dRAID, indirect; labels on devices.
