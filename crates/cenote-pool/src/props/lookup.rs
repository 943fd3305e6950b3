//! Effective values: who of the dataset, its ancestors and the defaults has the say
//! (spec 04 §7.1, §7.2).
//!
//!     snapshot's own ZAP ─> dir ─> parent dir ─> ... ─> root dir ─> compiled-in default
//!
//! At each dir a value of the kind that old software does not know (`$iuv`) comes before the local
//! one, and that before the received one, which an `$inherit` mark hides.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_ondisk::dsl::props::{INHERIT_SUFFIX, IUV_SUFFIX, RECEIVED_SUFFIX};
use cenote_ondisk::zap::Value;
use cenote_rt::{Error, Result};

use super::table::{PropType, Property};
use super::value::{PropValue, Source};
use crate::dsl::{Dataset, Dir, DslError};
use crate::mos;

/// Deeper nesting than this is a loop: no name is long enough for it.
const DEPTH_MAX: usize = 256;

type Map = BTreeMap<String, Value>;

/// The property ZAPs that have a say on one dataset.
#[derive(Debug, Clone)]
pub struct PropChain {
    name: String,
    /// Own settings of a snapshot.
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

    /// The value that is set for `name`, and by whom; none if nobody sets it.
    #[must_use]
    pub fn find(&self, name: &str, kind: Inherit) -> Option<(Value, Source)> {
        if let Some(own) = &self.snapshot {
            if let Some(value) = own.get(name) {
                return Some((value.clone(), Source::Local));
            }
            let is_hidden =
                kind.is_inheritable && own.contains_key(&(name.to_owned() + INHERIT_SUFFIX));
            if let (false, Some(value)) = (is_hidden, own.get(&(name.to_owned() + RECEIVED_SUFFIX)))
            {
                return Some((value.clone(), Source::Received));
            }
        }
        for (index, (dir, map)) in self.levels.iter().enumerate() {
            let is_own = index == 0 && !self.is_snapshot;
            if !is_own && !kind.is_inheritable {
                return None;
            }
            let from = || if is_own { Source::Local } else { Source::Inherited(dir.clone()) };
            let unknown_to_old = map
                .get(&(name.to_owned() + IUV_SUFFIX))
                .filter(|value| value.first().is_some_and(|number| (kind.is_known)(number)));
            if let Some(value) = unknown_to_old.or_else(|| map.get(name)) {
                return Some((value.clone(), from()));
            }
            if !map.contains_key(&(name.to_owned() + INHERIT_SUFFIX))
                && let Some(value) = map.get(&(name.to_owned() + RECEIVED_SUFFIX))
            {
                let source = if is_own { Source::Received } else { from() };
                return Some((value.clone(), source));
            }
        }
        None
    }

    /// The effective value of a native property that is kept in property ZAPs.
    #[must_use]
    pub fn native(&self, property: &'static Property) -> (PropValue, Source) {
        let is_known = |number| property.index_name(number).is_some();
        let kind = Inherit { is_inheritable: property.is_inheritable, is_known: &is_known };
        match self.find(property.name, kind) {
            Some((value, source)) => (convert(property, &value), source),
            None => (property.default.into(), Source::Default),
        }
    }

    /// The received value of a native property, effective or not.
    #[must_use]
    pub fn received(&self, name: &str) -> Option<&Value> {
        let key = name.to_owned() + RECEIVED_SUFFIX;
        match (&self.snapshot, self.is_snapshot) {
            (Some(own), true) => own.get(&key),
            (None, true) => None,
            _ => self.levels.first().and_then(|(_, map)| map.get(&key)),
        }
    }

    /// Names of all user properties that are set anywhere on the way.
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

    /// The effective value of a user property.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<(PropValue, Source)> {
        let kind = Inherit { is_inheritable: true, is_known: &|_| false };
        let (value, source) = self.find(name, kind)?;
        Some((PropValue::Text(value.as_str()?.to_owned()), source))
    }

    /// The dataset's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What decides how far up a property is looked for.
#[derive(Clone, Copy)]
pub struct Inherit<'a> {
    /// Whether ancestors have a say.
    pub is_inheritable: bool,
    /// Whether a number is a value of the property.
    pub is_known: &'a dyn Fn(u64) -> bool,
}

impl std::fmt::Debug for Inherit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inherit({})", self.is_inheritable)
    }
}

/// The value of a ZAP entry as a property of that type.
pub(crate) fn convert(property: &Property, value: &Value) -> PropValue {
    let (text, number) = (value.as_str(), value.first());
    match (property.value_type, text, number) {
        (PropType::Text, Some(text), _) => PropValue::Text(text.to_owned()),
        (PropType::Number(_) | PropType::Index(_), _, Some(number)) => PropValue::Number(number),
        _ => PropValue::Absent,
    }
}
