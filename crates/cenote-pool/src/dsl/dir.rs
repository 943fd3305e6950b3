//! A DSL directory: the node of the dataset tree that has space figures, limits and properties.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_ondisk::dsl::{DirPhys, key};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Error, Result};

use super::{DslError, name};
use crate::mos;

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

impl Dir {
    /// Reads the directory in `object`.
    pub async fn load(mos: &Arc<ObjSet>, object: u64, name: impl Into<String>) -> Result<Self> {
        let (found, bonus) = mos::bonus(mos, object).await?;
        let expected = ObjectType::DSL_DIR;
        if found != expected {
            let cause = DslError::BonusType { object, found: found.0, expected: expected.0 };
            return Err(Error::corrupt(cause).in_object(0, object));
        }
        let phys = DirPhys::decode(&bonus).map_err(mos::corrupt(object))?;
        Ok(Self { object, name: name.into(), phys })
    }

    /// Returns names and objects of all children, including internal ones, in name order.
    async fn child_entries(&self, mos: &Arc<ObjSet>) -> Result<Vec<(String, u64)>> {
        let mut children: Vec<_> = mos::entries(mos, self.phys.child_dir_zapobj)
            .await?
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.first()?)))
            .collect();
        children.sort();
        Ok(children)
    }

    /// Returns the child called `component`.
    pub async fn child(&self, mos: &Arc<ObjSet>, component: &str) -> Result<Option<Self>> {
        let Some(object) = mos::u64(mos, self.phys.child_dir_zapobj, component).await? else {
            return Ok(None);
        };
        self.load_child(mos, object, component).await.map(Some)
    }

    /// Reads the child in `object`. Fails unless the child names this directory as its parent.
    /// Because each child also has one name only, every directory has one place, and walks over
    /// damaged directories terminate.
    async fn load_child(&self, mos: &Arc<ObjSet>, object: u64, component: &str) -> Result<Self> {
        let child = Self::load(mos, object, format!("{}/{component}", self.name)).await?;
        let parent = child.phys.parent_obj;
        if parent != self.object {
            let cause = DslError::Parent { object, parent, expected: self.object };
            return Err(mos::corrupt(object)(cause));
        }
        Ok(child)
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

    /// Returns the readable children that users see.
    pub(crate) async fn readable_children(&self, mos: &Arc<ObjSet>) -> Vec<Self> {
        let (mut children, mut objects) = (Vec::new(), BTreeSet::new());
        if self.name.len() >= name::NAME_MAX {
            return children;
        }
        for (component, object) in self.child_entries(mos).await.unwrap_or_default() {
            if objects.insert(object)
                && !name::is_internal(&component)
                && let Ok(child) = self.load_child(mos, object, &component).await
            {
                children.push(child);
            }
        }
        children
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
