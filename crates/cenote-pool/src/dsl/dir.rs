//! A DSL directory: the node of the dataset tree that has space figures, limits and properties.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::zap::read as zap;
use cenote_dmu::{ObjSet, ReadObjects, TxResult};
use cenote_ondisk::dsl::{DirPhys, key};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::Result;

use super::{DslError, name};
use crate::mos;

/// Maximum depth of dirs, limited by the length of names; deeper chains are loops.
pub const DEPTH_MAX: usize = 256;

/// A directory with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dir {
    /// Its MOS object.
    pub object: u64,
    /// Full name, from the pool's on.
    pub name: String,
    /// The stored directory (`dsl_dir_phys_t`).
    pub phys: DirPhys,
}

/// Returns the dir in `object`.
///
/// # Errors
/// `Kind::Corrupt` if it is no dir.
pub fn get_dir(objects: &mut dyn ReadObjects, object: u64) -> TxResult<DirPhys> {
    let dnode = mos::dnode_with(objects, object, ObjectType::DSL_DIR)?;
    DirPhys::decode(dnode.bonus()).map_err(|error| mos::corrupt(object)(error).into())
}

/// Returns the dir in `object`, a child of the dir `parent`. Fails unless the child names that dir
/// as its parent. Because each child also has one name only, every dir has one place, and walks
/// over damaged dirs terminate.
fn get_child(objects: &mut dyn ReadObjects, parent: u64, object: u64) -> TxResult<DirPhys> {
    let child = get_dir(objects, object)?;
    if child.parent_obj != parent {
        let (parent, expected) = (child.parent_obj, parent);
        return Err(mos::corrupt(object)(DslError::Parent { object, parent, expected }).into());
    }
    Ok(child)
}

/// Returns the dir whose path below the dir `root` has these components.
///
/// # Errors
/// `Kind::Corrupt` if a dir on the way is damaged.
pub fn find_dir<'a>(
    objects: &mut dyn ReadObjects,
    root: u64,
    components: impl Iterator<Item = &'a str>,
) -> TxResult<Option<(u64, DirPhys)>> {
    let (mut object, mut dir) = (root, get_dir(objects, root)?);
    for component in components {
        let child = zap::lookup_u64(objects, dir.child_dir_zapobj, component)?;
        let Some(child) = child else { return Ok(None) };
        (object, dir) = (child, get_child(objects, object, child)?);
    }
    Ok(Some((object, dir)))
}

/// Returns names and objects of all children of a dir, including internal ones, in name order.
///
/// # Errors
/// `Kind::Corrupt` if the dir or its list of children is damaged.
pub fn children_of(objects: &mut dyn ReadObjects, dir: u64) -> TxResult<Vec<(String, u64)>> {
    let map = get_dir(objects, dir)?.child_dir_zapobj;
    let mut children = mos::numbered(objects, map)?;
    children.sort();
    Ok(children)
}

/// Returns a dir and its ancestors up to the root dir, each with its object.
///
/// # Errors
/// `Kind::Corrupt` if the chain of parents does not end.
pub fn ancestry(objects: &mut dyn ReadObjects, object: u64) -> TxResult<Vec<(u64, DirPhys)>> {
    let (mut chain, mut at) = (Vec::new(), object);
    while at != 0 {
        if chain.len() >= DEPTH_MAX {
            return Err(mos::corrupt(object)(DslError::Loop { object }).into());
        }
        let dir = get_dir(objects, at)?;
        let parent = dir.parent_obj;
        chain.push((at, dir));
        at = parent;
    }
    Ok(chain)
}

impl Dir {
    /// Reads the directory in `object`.
    pub async fn load(mos: &Arc<ObjSet>, object: u64, name: impl Into<String>) -> Result<Self> {
        let phys = mos.read(|objects| get_dir(objects, object)).await?;
        Ok(Self { object, name: name.into(), phys })
    }

    /// Returns the child called `component`.
    pub async fn child(&self, mos: &Arc<ObjSet>, component: &str) -> Result<Option<Self>> {
        let name = std::iter::once(component);
        let found = mos.read(|objects| find_dir(objects, self.object, name.clone())).await?;
        let name = format!("{}/{component}", self.name);
        Ok(found.map(|(object, phys)| Self { object, name, phys }))
    }

    async fn child_entries(&self, mos: &Arc<ObjSet>) -> Result<Vec<(String, u64)>> {
        mos.read(|objects| children_of(objects, self.object)).await
    }

    /// Reads the child in `object`.
    async fn load_child(&self, mos: &Arc<ObjSet>, object: u64, component: &str) -> Result<Self> {
        let phys = mos.read(|objects| get_child(objects, self.object, object)).await?;
        Ok(Self { object, name: format!("{}/{component}", self.name), phys })
    }

    /// Returns the children that users see, in name order.
    pub async fn children(&self, mos: &Arc<ObjSet>) -> Result<Vec<Self>> {
        let (mut children, mut objects) = (Vec::new(), BTreeSet::new());
        if self.name.len() >= name::NAME_MAX {
            return Err(mos::corrupt(self.object)(DslError::Loop { object: self.object }));
        }
        for (component, object) in self.child_entries(mos).await? {
            if !objects.insert(object) {
                return Err(mos::corrupt(object)(DslError::TwoNames { object, name: component }));
            }
            if !name::is_internal(&component) {
                children.push(self.load_child(mos, object, &component).await?);
            }
        }
        Ok(children)
    }

    /// Returns a number from the extra keys of a zapified dir (spec 04 §4.1).
    pub async fn extra(&self, mos: &Arc<ObjSet>, key: &str) -> Result<Option<u64>> {
        mos::extra(mos, self.object, key).await.map(|value| value.and_then(|value| value.first()))
    }

    /// Returns the DSL crypto key object if the dir is encrypted.
    pub async fn crypto_key_object(&self, mos: &Arc<ObjSet>) -> Result<Option<u64>> {
        self.extra(mos, key::CRYPTO_KEY_OBJ).await
    }
}
