//! Feature flags of a pool: which are enabled, which are in use, which stand in the way
//! (spec 01 §11).

pub mod compat;

pub use cenote_ondisk::feature::{FEATURES, Feature, by_guid, by_name};

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_rt::Result;

use crate::mos;

/// Pool directory: features that reading needs.
const FOR_READ: &str = "features_for_read";
/// Pool directory: features that only writing needs.
const FOR_WRITE: &str = "features_for_write";
/// Pool directory: what features do, for people.
const DESCRIPTIONS: &str = "feature_descriptions";
/// Pool directory: when each was enabled.
const ENABLED_TXG: &str = "feature_enabled_txg";

/// Features of the release whose identity we carry; later ones are read, and never enabled.
pub const IDENTITY_SINCE: (u8, u8) = (2, 3);

/// The features of the release whose identity we carry, in its order.
pub fn identity() -> impl Iterator<Item = &'static Feature> {
    FEATURES.iter().filter(|feature| is_in_identity(feature))
}

/// Whether the release whose identity we carry has the feature.
#[must_use]
pub fn is_in_identity(feature: &Feature) -> bool {
    feature.since <= IDENTITY_SINCE
}

/// State of a feature on a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureState {
    /// Not enabled.
    Disabled,
    /// Enabled, and nothing on disk depends on it.
    Enabled,
    /// In use.
    Active,
}

/// A feature entry of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureEntry {
    /// How much on disk depends on it.
    pub refcount: u64,
    /// Whether it stands among those that reading does not need.
    pub is_read_only_compatible: bool,
    /// When it was enabled, if that is recorded.
    pub enabled_txg: Option<u64>,
}

/// A feature that we do not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownFeature {
    /// Its name on disk.
    pub guid: String,
    /// What it does, as the pool says.
    pub description: String,
    /// Its entry.
    pub entry: FeatureEntry,
}

impl UnknownFeature {
    /// Its name, and what it does if that is known.
    #[must_use]
    pub fn described(&self) -> String {
        match self.description.as_str() {
            "" => self.guid.clone(),
            description => format!("{} ({description})", self.guid),
        }
    }
}

/// The features of a pool, by name on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureTable {
    entries: BTreeMap<String, FeatureEntry>,
    descriptions: BTreeMap<String, String>,
    damage: Vec<String>,
}

impl FeatureTable {
    /// Reads the features of the pool; a pool from before feature flags has none.
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
                let refcount = value.first().unwrap_or(0);
                let entry = FeatureEntry { refcount, is_read_only_compatible, enabled_txg: None };
                table.entries.insert(guid, entry);
            }
        }
        // The rest is for people, or for writing: damage there does not keep anybody from reading.
        if let Some(zap) = object(ENABLED_TXG) {
            for (guid, value) in table.spare_entries(mos, zap).await {
                if let Some(entry) = table.entries.get_mut(&guid) {
                    entry.enabled_txg = value.first();
                }
            }
        }
        if let Some(zap) = object(DESCRIPTIONS) {
            for (guid, value) in table.spare_entries(mos, zap).await {
                table.descriptions.extend(value.as_str().map(|text| (guid, text.to_owned())));
            }
        }
        Ok(table)
    }

    /// Entries that can be done without.
    async fn spare_entries(&mut self, mos: &Arc<ObjSet>, zap: u64) -> mos::Entries {
        mos::entries(mos, zap).await.unwrap_or_else(|error| {
            self.damage.push(format!("features: {error}"));
            Vec::new()
        })
    }

    /// What could not be read and can be done without: texts, and when a feature was enabled.
    #[must_use]
    pub fn damage(&self) -> &[String] {
        &self.damage
    }

    /// The entry of the feature with this name on disk.
    #[must_use]
    pub fn entry(&self, guid: &str) -> Option<&FeatureEntry> {
        self.entries.get(guid)
    }

    /// State of a known feature, by short name.
    #[must_use]
    pub fn state(&self, name: &str) -> FeatureState {
        match by_name(name).and_then(|feature| self.entry(feature.guid)) {
            None => FeatureState::Disabled,
            Some(FeatureEntry { refcount: 0, .. }) => FeatureState::Enabled,
            Some(_) => FeatureState::Active,
        }
    }

    /// Whether a known feature is in use, by short name.
    #[must_use]
    pub fn is_active(&self, name: &str) -> bool {
        self.state(name) == FeatureState::Active
    }

    /// All entries, by name on disk.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &FeatureEntry)> {
        self.entries.iter().map(|(guid, entry)| (guid.as_str(), entry))
    }

    /// Text that the pool carries about a feature.
    #[must_use]
    pub fn description(&self, guid: &str) -> Option<&str> {
        self.descriptions.get(guid).map(String::as_str)
    }

    /// Features that we do not know, in use or not.
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

    /// Features in use that we do not know and that reading needs.
    #[must_use]
    pub fn unreadable(&self) -> Vec<UnknownFeature> {
        let mut unknown = self.unknown();
        unknown.retain(|feature| {
            feature.entry.refcount != 0 && !feature.entry.is_read_only_compatible
        });
        unknown
    }

    /// Features in use that we do not know and that only writing needs.
    #[must_use]
    pub fn unwritable(&self) -> Vec<UnknownFeature> {
        let mut unknown = self.unknown();
        unknown
            .retain(|feature| feature.entry.refcount != 0 && feature.entry.is_read_only_compatible);
        unknown
    }
}
