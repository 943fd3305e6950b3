//! Effective values of properties: from the dataset, an ancestor or the default (spec 04 §7.1,
//! §7.2).
//!
//!     snapshot's own ZAP ─> dir ─> parent dir ─> ... ─> root dir ─> compiled-in default
//!
//! [`decide`] evaluates the ZAP of one dir, for committed states as well as for the engine.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_ondisk::dsl::props::{INHERIT_SUFFIX, IUV_SUFFIX, RECEIVED_SUFFIX};
use cenote_ondisk::zap::Value;
use cenote_rt::{Error, Result};

use super::table::{PropType, Property};
use super::value::{PropValue, Source};
use crate::dsl::{Dataset, Dir, DslError};
use crate::mos;

/// Maximum depth of dirs; a deeper one is a loop, because no name is long enough for it.
const DEPTH_MAX: usize = 256;

type Map = BTreeMap<String, Value>;

/// How a property got its value in a property ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// `zfs set`.
    Set,
    /// `zfs receive`.
    Received,
}

/// Returns the value that one dir's property ZAP has for a property (spec 04 §7.1), or `None` if
/// the dir above decides. `get` reads an entry of the ZAP.
///
/// The order is: the value hidden from old software (`$iuv`), if this software knows its number;
/// the local value; the received value (`$recvd`), unless an `$inherit` mark hides it.
///
/// # Errors
/// The errors of `get`.
pub fn decide<E>(
    name: &str,
    mut get: impl FnMut(&str) -> Result<Option<Value>, E>,
) -> Result<Option<(Value, Origin)>, E> {
    let is_known = |number| {
        super::table::dataset_property(name)
            .is_some_and(|property| property.index_name(number).is_some())
    };
    if let Some(value) = get(&format!("{name}{IUV_SUFFIX}"))?
        && value.first().is_some_and(is_known)
    {
        return Ok(Some((value, Origin::Set)));
    }
    if let Some(value) = get(name)? {
        return Ok(Some((value, Origin::Set)));
    }
    if get(&format!("{name}{INHERIT_SUFFIX}"))?.is_some() {
        return Ok(None);
    }
    Ok(get(&format!("{name}{RECEIVED_SUFFIX}"))?.map(|value| (value, Origin::Received)))
}

/// The property ZAPs of a dataset and its ancestors.
#[derive(Debug, Clone)]
pub struct PropChain {
    name: String,
    /// Settings of a snapshot.
    snapshot: Option<Map>,
    is_snapshot: bool,
    /// From the dataset's dir to the root dir.
    levels: Vec<(String, Arc<Map>)>,
}

async fn map_of(mos: &Arc<ObjSet>, zap: u64) -> Result<Map> {
    if zap == 0 {
        return Ok(Map::new());
    }
    Ok(mos::entries(mos, zap).await?.into_iter().collect())
}

impl PropChain {
    /// Reads the property ZAPs of `dataset` and all its ancestors.
    pub async fn load(dataset: &Dataset) -> Result<Self> {
        let mos = dataset.mos();
        let snapshot = match dataset.phys().props_obj {
            0 => None,
            zap => Some(map_of(mos, zap).await?),
        };
        let mut levels = Vec::new();
        let mut dir: Dir = Dir::clone(dataset.dir());
        loop {
            let map = map_of(mos, dir.phys.props_zapobj).await?;
            levels.push((dir.name.clone(), Arc::new(map)));
            let Some(parent) = crate::dsl::name::parent(&dir.name) else { break };
            if levels.len() > DEPTH_MAX || dir.phys.parent_obj == 0 {
                return Err(Error::corrupt(DslError::Loop { object: dir.object }));
            }
            dir = Dir::load(mos, dir.phys.parent_obj, parent).await?;
        }
        let is_snapshot = dataset.is_snapshot();
        Ok(Self { name: dataset.name().to_owned(), snapshot, is_snapshot, levels })
    }

    /// Returns the set value of `name` with its source, `None` if it is set nowhere.
    #[must_use]
    pub fn find(&self, name: &str, is_inheritable: bool) -> Option<(Value, Source)> {
        if let Some(own) = &self.snapshot {
            if let Some(value) = own.get(name) {
                return Some((value.clone(), Source::Local));
            }
            let is_hidden = is_inheritable && own.contains_key(&(name.to_owned() + INHERIT_SUFFIX));
            if let (false, Some(value)) = (is_hidden, own.get(&(name.to_owned() + RECEIVED_SUFFIX)))
            {
                return Some((value.clone(), Source::Received));
            }
        }
        for (index, (dir, map)) in self.levels.iter().enumerate() {
            let is_own = index == 0 && !self.is_snapshot;
            if !is_own && !is_inheritable {
                return None;
            }
            let from = || if is_own { Source::Local } else { Source::Inherited(dir.clone()) };
            let Ok(decided) = decide(name, |key| Ok::<_, Infallible>(map.get(key).cloned()));
            if let Some((value, origin)) = decided {
                let is_received = is_own && origin == Origin::Received;
                return Some((value, if is_received { Source::Received } else { from() }));
            }
        }
        None
    }

    /// Returns the effective value of a native property that is stored in property ZAPs.
    #[must_use]
    pub fn native(&self, property: &'static Property) -> (PropValue, Source) {
        match self.find(property.name, property.is_inheritable) {
            Some((value, source)) => (convert(property, &value), source),
            None => (property.default.into(), Source::Default),
        }
    }

    /// Returns the received value of a native property, effective or not.
    #[must_use]
    pub fn received(&self, name: &str) -> Option<&Value> {
        let key = name.to_owned() + RECEIVED_SUFFIX;
        match (&self.snapshot, self.is_snapshot) {
            (Some(own), true) => own.get(&key),
            (None, true) => None,
            _ => self.levels.first().and_then(|(_, map)| map.get(&key)),
        }
    }

    /// Returns the names of all user properties that are set on the dataset or its ancestors.
    #[must_use]
    pub fn user_names(&self) -> Vec<String> {
        let maps = self.snapshot.iter().chain(self.levels.iter().map(|(_, map)| &**map));
        let mut names: Vec<_> = maps
            .flat_map(|map| map.keys())
            .filter(|key| key.contains(':'))
            .map(|key| key.split('$').next().unwrap_or(key).to_owned())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Returns the effective value of a user property.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<(PropValue, Source)> {
        let (value, source) = self.find(name, true)?;
        Some((PropValue::Text(value.as_str()?.to_owned()), source))
    }

    /// The dataset's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Converts a ZAP entry to a value of the property's type.
pub(crate) fn convert(property: &Property, value: &Value) -> PropValue {
    let (text, number) = (value.as_str(), value.first());
    match (property.value_type, text, number) {
        (PropType::Text, Some(text), _) => PropValue::Text(text.to_owned()),
        (PropType::Number(_) | PropType::Index(_), _, Some(number)) => PropValue::Number(number),
        _ => PropValue::Absent,
    }
}
