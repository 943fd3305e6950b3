//! Effective values of properties: from the dataset, an ancestor or the default (spec 04 §7.1,
//! §7.2).
//!
//!     snapshot's own ZAP ─> dir ─> parent dir ─> ... ─> root dir ─> compiled-in default
//!
//! [`decide`] evaluates the ZAP of one dir, and [`Settings`] those of a dataset and its ancestors,
//! for committed states as well as for the engine.

use std::collections::BTreeMap;
use std::convert::Infallible;

use cenote_dmu::zap::read as zap;
use cenote_dmu::{ReadObjects, TxResult};
use cenote_ondisk::dsl::DatasetPhys;
use cenote_ondisk::dsl::props::{INHERIT_SUFFIX, IUV_SUFFIX, PropEntry, RECEIVED_SUFFIX};
use cenote_ondisk::zap::{KEY_LEN_MAX, Value};
use cenote_rt::Result;

use super::table::{PropType, Property};
use super::value::{PropValue, Source};
use crate::dsl::dir::ancestry;
use crate::dsl::{Dataset, name};
use crate::mos;

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

/// Returns the value that the property ZAP `zap` itself has for a property, as [`decide`].
///
/// # Errors
/// `Kind::Corrupt` if the ZAP is damaged.
pub fn own_value(
    objects: &mut dyn ReadObjects,
    zap: u64,
    name: &str,
) -> TxResult<Option<(Value, Origin)>> {
    // A name that leaves no space for a suffix has no such entry.
    let get = |key: &str| match key.len() {
        KEY_LEN_MAX.. => Ok(None),
        _ => zap::lookup(objects, zap, key),
    };
    decide(name, get)
}

/// A property with its value, as the property ZAP of a dataset has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnSetting {
    /// Name of the property.
    pub name: String,
    /// The stored value.
    pub value: Value,
}

/// Which values of a property ZAP are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Effective ones, set or received.
    Effective,
    /// Received ones, whether they are effective or not.
    Received,
}

impl Dataset {
    /// Returns the properties in the dataset's own property ZAP, in the order of the ZAP: nothing
    /// that is inherited, and no defaults. Names are not checked against the table.
    ///
    /// # Errors
    /// `Kind::Corrupt` if the ZAP is damaged.
    pub async fn own_settings(&self, wanted: Wanted) -> Result<Vec<OwnSetting>> {
        let zap =
            if self.is_snapshot() { self.phys().props_obj } else { self.dir().phys.props_zapobj };
        if zap == 0 {
            return Ok(Vec::new());
        }
        let entries = self.mos().read(|objects| mos::named(objects, zap)).await?;
        Ok(own_settings(entries, wanted))
    }
}

/// Returns the settings among the entries of a property ZAP.
fn own_settings(entries: Vec<(String, Value)>, wanted: Wanted) -> Vec<OwnSetting> {
    let order: Vec<String> = entries.iter().map(|(key, _)| key.clone()).collect();
    let map: Map = entries.into_iter().collect();
    let get = |key: &str| Ok::<_, Infallible>(map.get(key).cloned());
    let setting = |key: &String| {
        let found = match (PropEntry::parse(key), wanted) {
            (PropEntry::Received(name), Wanted::Received) => (name, map.get(key)?.clone()),
            (PropEntry::Local(name), Wanted::Effective) => {
                let Ok(decided) = decide(name, get);
                (name, decided?.0)
            }
            (PropEntry::Received(name), Wanted::Effective) => match decide(name, get) {
                Ok(Some((value, Origin::Received))) => (name, value),
                _ => return None,
            },
            (PropEntry::Iuv(name), Wanted::Effective) if !map.contains_key(name) => {
                let Ok(decided) = decide(name, get);
                (name, decided.filter(|(_, origin)| *origin == Origin::Set)?.0)
            }
            _ => return None,
        };
        Some(OwnSetting { name: found.0.to_owned(), value: found.1 })
    };
    order.iter().filter_map(setting).collect()
}

/// Where the value of a property is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setter {
    /// In the dataset itself.
    Own(Origin),
    /// In an ancestor: the number of dirs above the dir of the dataset; 0 for a snapshot that
    /// inherits from its head.
    Ancestor(usize),
}

/// The property ZAPs of a dataset and its ancestors.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Settings of a snapshot.
    snapshot: Option<Map>,
    is_snapshot: bool,
    /// From the dataset's dir to the root dir.
    levels: Vec<Map>,
}

impl Settings {
    /// Reads the property ZAPs of the dataset of a dir and all its ancestors.
    ///
    /// # Errors
    /// `Kind::Corrupt` if a dir or a ZAP is damaged.
    pub fn of_dir(objects: &mut dyn ReadObjects, dir: u64) -> TxResult<Self> {
        let dirs = ancestry(objects, dir)?;
        let levels = dirs.iter().map(|(_, dir)| map_of(objects, dir.props_zapobj));
        Ok(Self { snapshot: None, is_snapshot: false, levels: levels.collect::<TxResult<_>>()? })
    }

    /// Reads the property ZAPs of a dataset, which may be a snapshot, and all its ancestors.
    ///
    /// # Errors
    /// As [`of_dir`](Self::of_dir).
    pub fn of(objects: &mut dyn ReadObjects, dataset: &DatasetPhys) -> TxResult<Self> {
        let snapshot = match dataset.props_obj {
            0 => None,
            zap => Some(map_of(objects, zap)?),
        };
        let is_snapshot = dataset.is_snapshot();
        Ok(Self { snapshot, is_snapshot, ..Self::of_dir(objects, dataset.dir_obj)? })
    }

    /// Returns the set value of `name` and where it is stored, `None` if it is set nowhere.
    #[must_use]
    pub fn find(&self, name: &str, is_inheritable: bool) -> Option<(Value, Setter)> {
        if let Some(own) = &self.snapshot {
            if let Some(value) = own.get(name) {
                return Some((value.clone(), Setter::Own(Origin::Set)));
            }
            let is_hidden = is_inheritable && own.contains_key(&(name.to_owned() + INHERIT_SUFFIX));
            if let (false, Some(value)) = (is_hidden, own.get(&(name.to_owned() + RECEIVED_SUFFIX)))
            {
                return Some((value.clone(), Setter::Own(Origin::Received)));
            }
        }
        for (index, map) in self.levels.iter().enumerate() {
            let is_own = index == 0 && !self.is_snapshot;
            if !is_own && !is_inheritable {
                return None;
            }
            let Ok(decided) = decide(name, |key| Ok::<_, Infallible>(map.get(key).cloned()));
            if let Some((value, origin)) = decided {
                let setter = if is_own { Setter::Own(origin) } else { Setter::Ancestor(index) };
                return Some((value, setter));
            }
        }
        None
    }

    /// Returns the effective number of an inheritable property.
    #[must_use]
    pub fn number(&self, name: &str, default: u64) -> u64 {
        self.find(name, true).and_then(|(value, _)| value.first()).unwrap_or(default)
    }
}

fn map_of(objects: &mut dyn ReadObjects, zap: u64) -> TxResult<Map> {
    if zap == 0 {
        return Ok(Map::new());
    }
    Ok(mos::named(objects, zap)?.into_iter().collect())
}

/// The settings of a dataset with its name.
#[derive(Debug, Clone)]
pub struct PropChain {
    name: String,
    settings: Settings,
}

impl PropChain {
    /// Reads the property ZAPs of `dataset` and all its ancestors.
    pub async fn load(dataset: &Dataset) -> Result<Self> {
        let settings = dataset.mos().read(|objects| Settings::of(objects, dataset.phys())).await?;
        Ok(Self { name: dataset.name().to_owned(), settings })
    }

    /// Returns the set value of `name` with its source, `None` if it is set nowhere.
    #[must_use]
    pub fn find(&self, name: &str, is_inheritable: bool) -> Option<(Value, Source)> {
        let (value, setter) = self.settings.find(name, is_inheritable)?;
        let source = match setter {
            Setter::Own(Origin::Set) => Source::Local,
            Setter::Own(Origin::Received) => Source::Received,
            Setter::Ancestor(depth) => {
                let head = self.name.split('@').next();
                let mut names = std::iter::successors(head, |name| name::parent(name));
                Source::Inherited(names.nth(depth).unwrap_or_default().to_owned())
            }
        };
        Some((value, source))
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
        match &self.settings {
            Settings { snapshot, is_snapshot: true, .. } => snapshot.as_ref()?.get(&key),
            Settings { levels, .. } => levels.first()?.get(&key),
        }
    }

    /// Returns the names of all user properties that are set on the dataset or its ancestors.
    #[must_use]
    pub fn user_names(&self) -> Vec<String> {
        let maps = self.settings.snapshot.iter().chain(&self.settings.levels);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_settings_keep_their_order() {
        let entries = [
            ("quota$recvd", Value::U64(1)),
            ("a:b", Value::text("x")),
            ("atime", Value::U64(0)),
            ("atime$recvd", Value::U64(1)),
            ("exec$recvd", Value::U64(0)),
            ("exec$inherit", Value::U64(0)),
            ("$hasrecvd", Value::U64(0)),
            ("later$other", Value::U64(0)),
        ];
        let of = |wanted| {
            let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
            let settings = own_settings(entries.collect(), wanted).into_iter();
            settings.map(|setting| (setting.name, setting.value)).collect::<Vec<_>>()
        };
        let row = |name: &str, value| (name.to_owned(), value);
        let effective = [
            row("quota", Value::U64(1)),
            row("a:b", Value::text("x")),
            row("atime", Value::U64(0)),
        ];
        assert_eq!(of(Wanted::Effective), effective);
        let received =
            [row("quota", Value::U64(1)), row("atime", Value::U64(1)), row("exec", Value::U64(0))];
        assert_eq!(of(Wanted::Received), received);
    }

    /// A value that old software does not know is stored beside its default.
    #[test]
    fn values_behind_old_defaults_are_the_effective_ones() {
        let hidden = ("compression$iuv".to_owned(), Value::U64(16));
        let shown = ("compression".to_owned(), Value::U64(1));
        for entries in
            [vec![hidden.clone()], vec![hidden.clone(), shown.clone()], vec![shown, hidden]]
        {
            let settings = own_settings(entries, Wanted::Effective);
            let wanted = OwnSetting { name: "compression".to_owned(), value: Value::U64(16) };
            assert_eq!(settings, [wanted]);
        }
    }
}
