//! Reads space map objects.
//!
//! The header is in the bonus; the entries are a stream of words in data blocks, and two-word
//! entries never span blocks. So the map is decoded block by block as the blocks arrive, and passed
//! to a visitor (spec 05 §2).

pub mod edit;

use std::sync::Arc;

use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::spacemap::{Decoder, Geometry, Item, SpaceMapPhys};
use cenote_rt::{Error, Result};

use crate::dnode::Dnode;
use crate::live::TxResult;
use crate::objects::{ReadObjects, corrupt, expect_type};
use crate::objset::ObjSet;

/// The header.
pub fn header(objects: &mut dyn ReadObjects, object: u64) -> TxResult<SpaceMapPhys> {
    let dnode = expect_type(objects, object, ObjectType::SPACE_MAP, "a space map")?;
    SpaceMapPhys::decode(&objects.bonus(object)?)
        .and_then(|phys| phys.check_size(dnode.data_len_max()).map(|()| phys))
        .map_err(|error| corrupt(object, error))
}

/// An open space map.
#[derive(Debug, Clone)]
pub struct SpaceMap {
    dnode: Arc<Dnode>,
    phys: SpaceMapPhys,
}

impl SpaceMap {
    /// Opens the space map of `object`.
    pub async fn open(set: &Arc<ObjSet>, object: u64) -> Result<Self> {
        let phys = set.read(|objects| header(objects, object)).await?;
        let dnode = set.dnode(object).await?;
        Ok(Self { dnode, phys })
    }

    /// The header.
    pub fn phys(&self) -> &SpaceMapPhys {
        &self.phys
    }

    /// The object.
    pub fn dnode(&self) -> &Arc<Dnode> {
        &self.dnode
    }

    /// Calls `visit` for every item, in stream order; an error of `visit` ends the walk.
    pub async fn for_each(
        &self,
        geometry: Geometry,
        mut visit: impl FnMut(Item) -> Result<()> + Send,
    ) -> Result<()> {
        let mut decoder = Decoder::new(geometry);
        let mut stream = self.dnode.stream(0..self.phys.length);
        while let Some(extent) = stream.next().await {
            let extent = extent?;
            let Some(data) = extent.data else {
                // Zero words are valid entries, but a block of zeros is never written.
                let cause = cenote_ondisk::spacemap::CorruptSpaceMap::Length {
                    length: self.phys.length,
                    object_size: extent.offset,
                };
                return Err(self.dnode.locate(Error::corrupt(cause)));
            };
            for item in decoder.block(&data) {
                let item = item.map_err(|error| {
                    let blkid = extent.offset / self.dnode.geometry().block_size;
                    self.dnode.locate(Error::corrupt(error)).in_block(0, blkid)
                })?;
                visit(item)?;
            }
        }
        Ok(())
    }
}
