//! New volumes.

use std::sync::Arc;

use cenote_engine::{Engine, NewDataset};
use cenote_ondisk::blkptr::SMALL_BLOCK_MAX;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_rt::{Error, Kind, Result};

use super::geometry;
use super::writable::WritableVolume;
use crate::error::FsError;
use crate::format::fill_volume_with;

/// The property with a volume's reservation.
pub(super) const REFRESERVATION: &str = "refreservation";

/// Parameters of a new volume (`zfs create -V`).
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// Full name.
    pub name: String,
    /// Size in bytes: a multiple of the block size.
    pub size: u64,
    /// Block size (`volblocksize`): a power of two from 512 to 16M, above 128K only with the
    /// feature `large_blocks`; `None` for a size that suits the vdevs.
    pub block_size: Option<u64>,
    /// Log2 of the size of an indirect block, 12 to 17; 0 for the default. For measurements.
    pub indirect_shift: u8,
    /// No space is reserved (`-s`): writes may find the pool full.
    pub is_sparse: bool,
    /// Local properties.
    pub props: Vec<(String, Value)>,
}

impl NewVolume {
    /// Returns a volume with a reservation, and a block size that suits the vdevs.
    #[must_use]
    pub fn new(name: &str, size: u64) -> Self {
        let name = name.to_owned();
        Self {
            name,
            size,
            block_size: None,
            indirect_shift: 0,
            is_sparse: false,
            props: Vec::new(),
        }
    }

    /// Returns this volume with that block size.
    #[must_use]
    pub fn with_block_size(self, block_size: u64) -> Self {
        Self { block_size: Some(block_size), ..self }
    }

    /// Returns this volume without a reservation.
    #[must_use]
    pub fn sparse(self) -> Self {
        Self { is_sparse: true, ..self }
    }

    /// Returns this volume with a property.
    #[must_use]
    pub fn with(mut self, property: &str, value: Value) -> Self {
        self.props.push((property.to_owned(), value));
        self
    }

    /// Creates and opens the volume, with the permissions of root.
    ///
    /// # Errors
    /// `Kind::Invalid` for an invalid size or block size; `Kind::Unsupported` if the pool does not
    /// support blocks of that size; `Kind::NoSpace` if there is no space for the reservation;
    /// errors of the transaction.
    pub async fn create(self, engine: &Arc<Engine>) -> Result<Arc<WritableVolume>> {
        let tops = engine.admin().vdev_config().children;
        let (size, indirect_shift) = (self.size, self.indirect_shift);
        let block_size = self.block_size.unwrap_or_else(|| geometry::default_block_size(&tops));
        let invalid = |error: FsError| Error::new(Kind::Invalid, error).in_dataset(&self.name);
        geometry::check_block_size(block_size).map_err(invalid)?;
        geometry::check_size(size, block_size).map_err(invalid)?;
        if block_size > SMALL_BLOCK_MAX && !engine.admin().has_feature("large_blocks").await? {
            let cause = FsError::VolumeBlockSize { block_size };
            return Err(Error::new(Kind::Unsupported, cause).in_dataset(&self.name));
        }
        let mut props = self.props;
        let given = |props: &[(String, Value)], wanted: &str| {
            let found = props.iter().find(|(name, _)| name == wanted);
            found.and_then(|(_, value)| value.single())
        };
        if !self.is_sparse && given(&props, REFRESERVATION).is_none() {
            let copies = given(&props, "copies").unwrap_or(1);
            let reserved = geometry::reservation(size, block_size, copies, &tops);
            props.push((REFRESERVATION.to_owned(), Value::U64(reserved)));
        }
        let new = NewDataset {
            props,
            fill: Box::new(move |tx| fill_volume_with(tx, size, block_size, indirect_shift)),
            ..NewDataset::new(&self.name, ObjSetType::Zvol)
        };
        engine.datasets().create(new).await?;
        WritableVolume::open(engine, &self.name).await
    }
}
