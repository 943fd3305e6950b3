//! Properties of pools, as in `zpool get` (spec 01 §12, 05 §6).

use cenote_ondisk::dsl::key;
use cenote_ondisk::zap::Value;
use cenote_rt::Result;

use super::lookup;
use super::table::{Form, POOL_PROPERTIES, PropType, Property, pool_property};
use super::value::{PropRow, PropValue, Source};
use crate::features::{FEATURES, FeatureState, is_in_identity};
use crate::{Pool, Space, mos};

/// Pool directory entry: set properties.
/// Pool directory entry: largest txg of the last finished scrub.
const LAST_SCRUBBED_TXG: &str = "last_scrubbed_txg";

/// Data that several properties of a pool need, read once.
#[derive(Debug)]
pub struct PoolProps<'a> {
    pool: &'a Pool,
    space: std::sync::Arc<Space>,
    set: mos::Entries,
    bootfs: Option<String>,
}

impl Pool {
    /// Reads the data that properties of the pool need.
    pub async fn props(self: &std::sync::Arc<Self>) -> Result<PoolProps<'_>> {
        let set = match self.directory_object(key::POOL_PROPS) {
            Some(object) => mos::entries(self.mos(), object).await?,
            None => Vec::new(),
        };
        let bootfs = set.iter().find(|(name, _)| name == "bootfs").and_then(|(_, v)| v.first());
        let bootfs = match bootfs {
            Some(object @ 1..) => Some(self.dataset_by_object(object).await?.name().to_owned()),
            _ => None,
        };
        Ok(PoolProps { pool: self, space: self.space().await?, set, bootfs })
    }
}

fn number(value: u64) -> (PropValue, Source) {
    (PropValue::Number(value), Source::None)
}

fn text(value: impl Into<String>) -> (PropValue, Source) {
    (PropValue::Text(value.into()), Source::None)
}

/// Converts an optional setting to a text value.
fn set_text(value: Option<&str>) -> (PropValue, Source) {
    match value {
        Some(value) => (PropValue::Text(value.to_owned()), Source::Local),
        None => (PropValue::Absent, Source::Default),
    }
}

/// Properties that are sums over the whole pool.
const SUMS: [&str; 14] = [
    "size",
    "allocated",
    "free",
    "capacity",
    "fragmentation",
    "checkpoint",
    "freeing",
    "leaked",
    "dedupratio",
    "dedup_table_size",
    "bcloneused",
    "bclonesaved",
    "bcloneratio",
    "dedupcached",
];

impl PoolProps<'_> {
    /// Returns all properties in the table's order, then features, then user properties.
    pub fn all(&self) -> Vec<PropRow> {
        let native = POOL_PROPERTIES.iter().filter(|property| !property.is_hidden());
        let mut rows: Vec<_> = native.map(|property| self.native(property)).collect();
        rows.extend(self.features());
        rows.extend(self.user());
        rows
    }

    /// Returns a property by name: native, `feature@…`, `unsupported@…`, user (`a:b`).
    pub fn get(&self, name: &str) -> Option<PropRow> {
        if let Some(property) = pool_property(name) {
            return Some(self.native(property));
        }
        let others = self.features().into_iter().chain(self.user());
        let mut others = others.chain(self.disabled_later_features());
        others.find(|row| row.name == name)
    }

    /// Returns the feature properties: those of the emulated release, later ones that the pool has,
    /// and unsupported ones.
    pub fn features(&self) -> Vec<PropRow> {
        let table = self.pool.features();
        let shown = FEATURES
            .iter()
            .filter(|feature| is_in_identity(feature) || table.entry(feature.guid).is_some());
        let known = shown.map(|feature| self.feature_row(feature.name));
        let unknown = table.unknown().into_iter().map(|feature| {
            let state = match (feature.entry.refcount, feature.entry.is_read_only_compatible) {
                (0, _) => "inactive",
                (_, true) => "readonly",
                (_, false) => "active",
            };
            let name = format!("unsupported@{}", feature.guid);
            PropRow::other(name, PropValue::Text(state.to_owned()), Source::Local)
        });
        known.chain(unknown).collect()
    }

    fn disabled_later_features(&self) -> Vec<PropRow> {
        let later = FEATURES.iter().filter(|feature| !is_in_identity(feature));
        later.map(|feature| self.feature_row(feature.name)).collect()
    }

    fn feature_row(&self, name: &str) -> PropRow {
        let state = match self.pool.features().state(name) {
            FeatureState::Disabled => "disabled",
            FeatureState::Enabled => "enabled",
            FeatureState::Active => "active",
        };
        let name = format!("feature@{name}");
        PropRow::other(name, PropValue::Text(state.to_owned()), Source::Local)
    }

    /// Returns the user properties, by name.
    pub fn user(&self) -> Vec<PropRow> {
        let mut rows: Vec<_> = self
            .set
            .iter()
            .filter(|(name, _)| name.contains(':'))
            .filter_map(|(name, value)| {
                let value = PropValue::Text(value.as_str()?.to_owned());
                Some(PropRow::other(name, value, Source::Local))
            })
            .collect();
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        rows
    }

    /// Returns a native property.
    pub fn native(&self, property: &'static Property) -> PropRow {
        let (value, source) = self
            .space_figure(property.name)
            .or_else(|| self.identity(property.name))
            .unwrap_or_else(|| self.stored(property));
        PropRow::native(property, value, source)
    }

    fn space_figure(&self, name: &str) -> Option<(PropValue, Source)> {
        let space = &self.space;
        let absent = || (PropValue::Absent, Source::None);
        if !space.damage.is_empty() && SUMS.contains(&name) {
            // Damage makes the sums too small; showing no figure is better than a wrong one.
            return Some(absent());
        }
        Some(match name {
            "size" => number(space.size),
            "allocated" => number(space.allocated),
            "free" => number(space.free()),
            "capacity" => number(space.capacity()),
            "fragmentation" => space.fragmentation.map_or_else(absent, number),
            "checkpoint" => space.checkpoint.map_or_else(absent, number),
            "expandsize" if space.expandable == 0 => absent(),
            "expandsize" => number(space.expandable),
            "freeing" => number(space.freeing),
            "leaked" => number(space.leaked),
            "dedupratio" => number(space.dedup.ratio()),
            "dedup_table_size" => number(space.dedup.table_bytes),
            "dedupcached" => number(0),
            "bcloneused" => number(space.clones.used),
            "bclonesaved" => number(space.clones.saved),
            "bcloneratio" => number(space.clones.ratio()),
            _ => return None,
        })
    }

    fn identity(&self, name: &str) -> Option<(PropValue, Source)> {
        const VERSION_FEATURES: u64 = 5000;
        let pool = self.pool;
        let facts = &pool.config().facts;
        Some(match name {
            "name" => text(pool.name()),
            "health" => text(pool.health_name()),
            "guid" => number(pool.guid()),
            "load_guid" => number(pool.load_guid()),
            "version" if pool.version() == VERSION_FEATURES => (PropValue::Absent, Source::Default),
            "version" => (PropValue::Number(pool.version()), Source::Local),
            "altroot" => set_text(pool.presence().altroot().as_deref()),
            "cachefile" => set_text(pool.presence().cache_file().as_deref()),
            "tname" => set_text(None),
            "bootfs" => set_text(self.bootfs.as_deref()),
            "comment" => set_text(facts.comment.as_deref()),
            "compatibility" => match facts.compatibility.as_deref() {
                None | Some("" | "off") => (PropValue::Text("off".into()), Source::Default),
                set => set_text(set),
            },
            "readonly" => number(u64::from(!pool.presence().is_writable())),
            "last_scrubbed_txg" => {
                let txg = pool.directory_value(LAST_SCRUBBED_TXG).and_then(Value::first);
                number(txg.unwrap_or(0))
            }
            "maxblocksize" => number(16 << 20),
            "maxdnodesize" => number(16 << 10),
            _ => return None,
        })
    }

    /// Returns a property that is stored in the pool's property object.
    fn stored(&self, property: &'static Property) -> (PropValue, Source) {
        let set = self.set.iter().find(|(name, _)| name == property.name);
        let default = PropValue::from(property.default);
        let value = match set.map(|(_, value)| lookup::convert(property, value)) {
            None | Some(PropValue::Absent) => default.clone(),
            Some(value) => value,
        };
        let source = if value == default { Source::Default } else { Source::Local };
        let is_quota = property.name == "dedup_table_quota";
        debug_assert!(!is_quota || property.value_type == PropType::Number(Form::Bytes));
        match value {
            PropValue::Number(u64::MAX) if is_quota => (PropValue::Text("auto".into()), source),
            PropValue::Number(0) if is_quota => (PropValue::Text("none".into()), source),
            value => (value, source),
        }
    }
}
