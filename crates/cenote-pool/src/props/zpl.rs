//! Properties that are stored in the object set: those fixed when a file system is created, in its
//! master node, and the size and block size of a volume (spec 04 §7.4).
//!
//! They are not encrypted, so they can be read without the key.

use cenote_ondisk::master_node::{
    CASESENSITIVITY, MASTER_NODE_OBJ, NORMALIZATION, UTF8ONLY, VERSION, ZVOL_OBJ, ZVOL_SIZE,
    ZVOL_ZAP_OBJ,
};
use cenote_rt::Result;

use super::value::{PropValue, Source};
use crate::dsl::{Dataset, DatasetKind};
use crate::mos;

/// The properties stored in an object set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
    version: Option<u64>,
    utf8only: u64,
    normalization: u64,
    casesensitivity: u64,
    volsize: Option<u64>,
    volblocksize: Option<u64>,
}

impl Facts {
    /// Reads the properties, `None` if the object set is damaged.
    ///
    /// # Errors
    /// Errors that end a reader.
    pub(super) async fn read(dataset: &Dataset, kind: DatasetKind) -> Result<Option<Self>> {
        let read = match kind {
            DatasetKind::Filesystem => Self::of_filesystem(dataset).await,
            DatasetKind::Volume => Self::of_volume(dataset).await,
            DatasetKind::Other => return Ok(None),
        };
        Ok(mos::unless_interrupted(read)?.ok())
    }

    async fn of_filesystem(dataset: &Dataset) -> Result<Self> {
        let objset = dataset.open_without_key().await?;
        let mut facts = Self::default();
        for (name, value) in mos::entries(&objset, MASTER_NODE_OBJ).await? {
            let Some(value) = value.first() else { continue };
            match name.as_str() {
                VERSION => facts.version = Some(value),
                UTF8ONLY => facts.utf8only = value,
                NORMALIZATION => facts.normalization = value,
                CASESENSITIVITY => facts.casesensitivity = value,
                _ => {}
            }
        }
        Ok(facts)
    }

    async fn of_volume(dataset: &Dataset) -> Result<Self> {
        let objset = dataset.open_without_key().await?;
        let volsize = mos::u64(&objset, ZVOL_ZAP_OBJ, ZVOL_SIZE).await?;
        let block = objset.dnode(ZVOL_OBJ).await?.geometry().block_size;
        Ok(Self { volsize, volblocksize: Some(block), ..Self::default() })
    }

    /// Returns the property called `name`, if the object set has it.
    pub(super) fn get(&self, name: &str) -> Option<(PropValue, Source)> {
        let of_filesystem = |value| self.version.map(|_| value);
        let (value, source) = match name {
            "version" => (self.version?, Source::None),
            "utf8only" => (of_filesystem(self.utf8only)?, Source::None),
            "normalization" => (of_filesystem(self.normalization)?, Source::None),
            "casesensitivity" => (of_filesystem(self.casesensitivity)?, Source::None),
            "volsize" => (self.volsize?, Source::Local),
            "volblocksize" => (self.volblocksize?, Source::None),
            _ => return None,
        };
        Some((PropValue::Number(value), source))
    }
}
