//! Feature flags of a pool: enabled, active and unsupported ones (spec 01 §11).

pub mod compat;

pub use cenote_ondisk::feature::{FEATURES, Feature, by_guid, by_name};

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::zap::read as zap;
use cenote_dmu::{ObjSet, ReadObjects, TxResult};
use cenote_ondisk::feature::FeatureFlags;
use cenote_ondisk::zap::Value;
use cenote_rt::Result;

use crate::mos;

/// Pool directory entry: features needed for reading.
const FOR_READ: &str = "features_for_read";
/// Pool directory entry: features needed for writing only.
const FOR_WRITE: &str = "features_for_write";
/// Pool directory entry: descriptions of features.
pub const DESCRIPTIONS: &str = "feature_descriptions";
/// Pool directory entry: txg in which each feature was enabled.
pub const ENABLED_TXG: &str = "feature_enabled_txg";

/// The OpenZFS release whose feature set cenote writes; later features are read but never enabled.
pub const IDENTITY_SINCE: (u8, u8) = (2, 3);

/// Returns the features of that release, in its order.
pub fn identity() -> impl Iterator<Item = &'static Feature> {
    FEATURES.iter().filter(|feature| is_in_identity(feature))
}

/// Whether that release has the feature.
#[must_use]
pub fn is_in_identity(feature: &Feature) -> bool {
    feature.since <= IDENTITY_SINCE
}

/// Returns the entry of the pool directory with the refcount of a feature.
#[must_use]
pub fn table_of(feature: &Feature) -> &'static str {
    let is_compatible = feature.flags.contains(FeatureFlags::READ_ONLY_COMPATIBLE);
    if is_compatible { FOR_WRITE } else { FOR_READ }
}

/// Returns the refcount of a feature, `None` if it is not enabled.
///
/// # Errors
/// `Kind::Corrupt` if the table of features is damaged.
pub fn refcount(objects: &mut dyn ReadObjects, feature: &Feature) -> TxResult<Option<u64>> {
    let Some(table) = mos::directory_object(objects, table_of(feature))? else { return Ok(None) };
    Ok(zap::lookup(objects, table, feature.guid)?.as_ref().map(count_of))
}

fn count_of(value: &Value) -> u64 {
    value.first().unwrap_or(0)
}

/// State of a feature on a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureState {
    /// Not enabled.
    Disabled,
    /// Enabled, but not in use.
    Enabled,
    /// In use.
    Active,
}

/// A feature entry of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureEntry {
    /// Number of structures on disk that use it.
    pub refcount: u64,
    /// Whether it is not needed for reading.
    pub is_read_only_compatible: bool,
    /// Txg in which it was enabled, if recorded.
    pub enabled_txg: Option<u64>,
}

/// An unsupported feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownFeature {
    /// Its name on disk.
    pub guid: String,
    /// Its description, from the pool.
    pub description: String,
    /// Its entry.
    pub entry: FeatureEntry,
}

impl UnknownFeature {
    /// Returns its name, with its description if there is one.
    #[must_use]
    pub fn described(&self) -> String {
        match self.description.as_str() {
            "" => self.guid.clone(),
            description => format!("{} ({description})", self.guid),
        }
    }
}

/// The features of a pool, by guid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureTable {
    entries: BTreeMap<String, FeatureEntry>,
    descriptions: BTreeMap<String, String>,
    damage: Vec<String>,
}

impl FeatureTable {
    /// Reads the features of the pool; a pool without feature flags has none.
    pub async fn load(
        mos: &Arc<ObjSet>,
        directory: &[(String, cenote_ondisk::zap::Value)],
    ) -> Result<Self> {
        let object = |name: &str| {
            let entry = directory.iter().find(|(entry, _)| entry == name);
            entry.and_then(|(_, value)| value.first()).filter(|object| *object != 0)
        };
        let mut table = Self::default();
        for (zap, is_read_only_compatible) in [(FOR_READ, false), (FOR_WRITE, true)] {
            let Some(zap) = object(zap) else { continue };
            for (guid, value) in mos::entries(mos, zap).await? {
                let refcount = count_of(&value);
                let entry = FeatureEntry { refcount, is_read_only_compatible, enabled_txg: None };
                table.entries.insert(guid, entry);
            }
        }
        // Reading the pool does not need these ZAPs: damage is only noted.
        if let Some(zap) = object(ENABLED_TXG) {
            for (guid, value) in table.nonessential_entries(mos, zap).await {
                if let Some(entry) = table.entries.get_mut(&guid) {
                    entry.enabled_txg = value.first();
                }
            }
        }
        if let Some(zap) = object(DESCRIPTIONS) {
            for (guid, value) in table.nonessential_entries(mos, zap).await {
                table.descriptions.extend(value.as_str().map(|text| (guid, text.to_owned())));
            }
        }
        Ok(table)
    }

    /// Reads the entries of a ZAP that is not essential; notes damage.
    async fn nonessential_entries(&mut self, mos: &Arc<ObjSet>, zap: u64) -> mos::Entries {
        mos::entries(mos, zap).await.unwrap_or_else(|error| {
            self.damage.push(format!("features: {error}"));
            Vec::new()
        })
    }

    /// Returns the damage of nonessential ZAPs (descriptions and enabled txgs).
    #[must_use]
    pub fn damage(&self) -> &[String] {
        &self.damage
    }

    /// Returns the entry of the feature with this guid.
    #[must_use]
    pub fn entry(&self, guid: &str) -> Option<&FeatureEntry> {
        self.entries.get(guid)
    }

    /// Returns the state of a known feature, by short name.
    #[must_use]
    pub fn state(&self, name: &str) -> FeatureState {
        match by_name(name).and_then(|feature| self.entry(feature.guid)) {
            None => FeatureState::Disabled,
            Some(FeatureEntry { refcount: 0, .. }) => FeatureState::Enabled,
            Some(_) => FeatureState::Active,
        }
    }

    /// Whether a known feature is active, by short name.
    #[must_use]
    pub fn is_active(&self, name: &str) -> bool {
        self.state(name) == FeatureState::Active
    }

    /// Returns all entries, by guid.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &FeatureEntry)> {
        self.entries.iter().map(|(guid, entry)| (guid.as_str(), entry))
    }

    /// Returns the pool's description of a feature.
    #[must_use]
    pub fn description(&self, guid: &str) -> Option<&str> {
        self.descriptions.get(guid).map(String::as_str)
    }

    /// Returns the unsupported features, active or not.
    #[must_use]
    pub fn unknown(&self) -> Vec<UnknownFeature> {
        let unknown = self.entries.iter().filter(|(guid, _)| by_guid(guid).is_none());
        unknown
            .map(|(guid, entry)| UnknownFeature {
                guid: guid.clone(),
                description: self.description(guid).unwrap_or_default().to_owned(),
                entry: *entry,
            })
            .collect()
    }

    /// Returns the active unsupported features that reading needs.
    #[must_use]
    pub fn unreadable(&self) -> Vec<UnknownFeature> {
        let mut unknown = self.unknown();
        unknown.retain(|feature| {
            feature.entry.refcount != 0 && !feature.entry.is_read_only_compatible
        });
        unknown
    }

    /// Returns the active unsupported features that only writing needs.
    #[must_use]
    pub fn unwritable(&self) -> Vec<UnknownFeature> {
        let mut unknown = self.unknown();
        unknown
            .retain(|feature| feature.entry.refcount != 0 && feature.entry.is_read_only_compatible);
        unknown
    }
}
