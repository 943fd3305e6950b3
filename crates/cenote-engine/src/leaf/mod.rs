//! Leaves: failures and recovery, dirty time logs, trim and initialize; leaves that come and go.

pub(crate) mod deadman;
pub(crate) mod device_source;
mod diagnosis;
pub(crate) mod dtl;
pub(crate) mod leafwork;
pub(crate) mod reflow;
pub(crate) mod shape;
pub(crate) mod spare_agent;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use crate::Engine;
use crate::removal::RemovalTasks;
use crate::scan::ScanTasks;
use device_source::DeviceSource;
use leafwork::{AutoTrim, LeafWorks};
use reflow::ReflowTask;

/// The state behind [`Leaves`].
#[derive(Debug, Default)]
pub(crate) struct LeafState {
    service: leaves::Service,
    /// Running trim and initialize.
    pub(crate) works: LeafWorks,
    /// Freed ranges for autotrim.
    pub(crate) auto_trim: AutoTrim,
    /// Property `autoexpand`.
    pub(crate) autoexpand: AtomicBool,
    /// Property `autoreplace`.
    pub(crate) autoreplace: AtomicBool,
    /// The scan of all leaves.
    pub(crate) scan: ScanTasks,
    /// The removal of a vdev.
    pub(crate) removal: RemovalTasks,
    /// The expansion of a RAID-Z vdev.
    pub(crate) reflow: ReflowTask,
    /// Opens devices by their paths, if they are no files.
    pub(crate) device_source: OnceLock<Arc<dyn DeviceSource>>,
}

/// Leaves: taking them out of service and back, trim and initialize; made by [`Engine::leaves`].
#[derive(Debug, Clone, Copy)]
pub struct Leaves<'e> {
    pub(crate) engine: &'e Engine,
}

pub(crate) mod leaves;
