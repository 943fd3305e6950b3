//! The header of a package: which file systems and snapshots it has, with their properties (spec 07
//! B7).
//!
//! ```text
//!   package: tosnap, fromsnap, not_recursive, raw
//!     fss: one list for each dataset, parents before children
//!       name, parentfromsnap, origin, is_encroot
//!       props:     name -> number or text
//!       snaps:     name -> guid
//!       snapprops: name -> properties
//!       snapholds: name -> tag -> time
//! ```
//!
//! `zfs send -I` alone makes a package without a header.

use cenote_ondisk::nvlist::{CorruptNvList, Encoding, NvList, NvPair, NvString, NvValue};

/// Why a package's header is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CorruptPackage {
    /// The nvlist is invalid.
    #[error(transparent)]
    List(#[from] CorruptNvList),
    /// A value is missing or has another type.
    #[error("header of the package: no valid {key}")]
    Value {
        /// Its key.
        key: &'static str,
    },
    /// A dataset's key is not the guid of a dataset.
    #[error("header of the package: dataset key '{key}' is not a guid")]
    DatasetKey {
        /// The key.
        key: NvString,
    },
    /// A value of a dataset is missing or has another type.
    #[error("header of the package: dataset {guid:#x} has no valid {key}")]
    Dataset {
        /// Guid of the dataset.
        guid: u64,
        /// Key of the value.
        key: &'static str,
    },
    /// An entry of a dataset's list of snapshots has another type.
    #[error("header of the package: dataset {guid:#x} has an invalid {key} of snapshot '{snap}'")]
    Snapshot {
        /// Guid of the dataset.
        guid: u64,
        /// Key of the list.
        key: &'static str,
        /// Name of the snapshot.
        snap: NvString,
    },
}

/// The header of a package.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Package {
    /// Short name of the snapshot that is sent.
    pub to_snap: NvString,
    /// Short name of the source of an increment with `-R`.
    pub from_snap: Option<NvString>,
    /// Made with `-R`.
    pub is_recursive: bool,
    /// Blocks are sent as they are on disk.
    pub is_raw: bool,
    /// The datasets, parents before children.
    pub datasets: Vec<PackageDataset>,
}

/// A dataset of a package.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PackageDataset {
    /// Guid of the dataset.
    pub guid: u64,
    /// Name at the sender.
    pub name: NvString,
    /// Guid of the parent's snapshot of the increment's source; 0 at the top.
    pub parent_from_snap: u64,
    /// Guid of the snapshot that a clone was made of.
    pub origin: Option<u64>,
    /// Properties: numbers and strings.
    pub props: NvList,
    /// The dataset is an encryption root.
    pub is_encryption_root: bool,
    /// Short names and guids of the snapshots.
    pub snaps: Vec<(NvString, u64)>,
    /// Properties of the snapshots.
    pub snap_props: Vec<(NvString, NvList)>,
    /// Holds of the snapshots, if the package has them: tags and times in seconds.
    pub snap_holds: Option<Vec<SnapshotHolds>>,
}

/// Holds of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotHolds {
    /// Short name of the snapshot.
    pub snap: NvString,
    /// Tags, and when each hold was made, in seconds.
    pub holds: Vec<(NvString, u64)>,
}

impl Package {
    /// Decodes the header.
    ///
    /// # Errors
    /// All of [`CorruptPackage`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CorruptPackage> {
        Self::from_list(&NvList::decode(bytes)?)
    }

    /// Decodes the nvlist of the header.
    ///
    /// # Errors
    /// All of [`CorruptPackage`] but [`CorruptPackage::List`].
    pub fn from_list(list: &NvList) -> Result<Self, CorruptPackage> {
        let required = |key| CorruptPackage::Value { key };
        let from_snap = match list.get("fromsnap") {
            None => None,
            Some(NvValue::String(name)) => Some(name.clone()),
            Some(_) => return Err(required("fromsnap")),
        };
        let datasets = list.list("fss").ok_or(required("fss"))?;
        Ok(Self {
            to_snap: list.string("tosnap").ok_or(required("tosnap"))?.clone(),
            from_snap,
            is_recursive: !list.contains("not_recursive"),
            is_raw: list.contains("raw"),
            datasets: datasets.iter().map(dataset).collect::<Result<_, _>>()?,
        })
    }

    /// Encodes the header, as OpenZFS does: XDR without padding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.to_list().encode(Encoding::Xdr)
    }

    /// The nvlist of the header.
    #[must_use]
    pub fn to_list(&self) -> NvList {
        let mut pairs = Pairs::default();
        if let Some(name) = &self.from_snap {
            pairs.put("fromsnap", name.clone());
        }
        pairs.put("tosnap", self.to_snap.clone());
        if !self.is_recursive {
            pairs.put("not_recursive", NvValue::Boolean);
        }
        if self.is_raw {
            pairs.put("raw", NvValue::Boolean);
        }
        let mut datasets = Pairs::default();
        for dataset in &self.datasets {
            datasets.put(&*format!("{:#x}", dataset.guid), dataset.to_list());
        }
        pairs.put("fss", datasets.into_list());
        pairs.into_list()
    }
}

impl PackageDataset {
    /// Returns the properties of a snapshot, by its short name.
    #[must_use]
    pub fn props_of_snapshot(&self, short: &str) -> Option<&NvList> {
        let found = self.snap_props.iter().find(|(name, _)| name.to_str() == Some(short));
        found.map(|(_, list)| list)
    }

    fn to_list(&self) -> NvList {
        let mut pairs = Pairs::default();
        pairs.put("name", self.name.clone());
        pairs.put("parentfromsnap", self.parent_from_snap);
        if let Some(origin) = self.origin {
            pairs.put("origin", origin);
        }
        pairs.put("props", self.props.clone());
        if self.is_encryption_root {
            pairs.put("is_encroot", NvValue::Boolean);
        }
        let mut snaps = Pairs::default();
        for (name, guid) in &self.snaps {
            snaps.put(name.clone(), *guid);
        }
        pairs.put("snaps", snaps.into_list());
        let mut snap_props = Pairs::default();
        for (name, props) in &self.snap_props {
            snap_props.put(name.clone(), props.clone());
        }
        pairs.put("snapprops", snap_props.into_list());
        if let Some(snapshots) = &self.snap_holds {
            let mut snap_holds = Pairs::default();
            for SnapshotHolds { snap, holds } in snapshots {
                let mut tags = Pairs::default();
                for (tag, time) in holds {
                    tags.put(tag.clone(), *time);
                }
                snap_holds.put(snap.clone(), tags.into_list());
            }
            pairs.put("snapholds", snap_holds.into_list());
        }
        pairs.into_list()
    }
}

/// Pairs of a list in their order. Looking for repeated names would take time that grows with the
/// square of their number.
#[derive(Debug, Default)]
struct Pairs(Vec<NvPair>);

impl Pairs {
    fn put(&mut self, name: impl Into<NvString>, value: impl Into<NvValue>) {
        self.0.push(NvPair { name: name.into(), value: value.into() });
    }

    fn into_list(self) -> NvList {
        NvList { pairs: self.0, ..NvList::new() }
    }
}

/// A dataset's list, with the guid that errors name.
struct DatasetList<'a> {
    guid: u64,
    list: &'a NvList,
}

impl DatasetList<'_> {
    const fn invalid(&self, key: &'static str) -> CorruptPackage {
        CorruptPackage::Dataset { guid: self.guid, key }
    }

    fn invalid_snap(&self, key: &'static str, snap: &NvString) -> CorruptPackage {
        CorruptPackage::Snapshot { guid: self.guid, key, snap: snap.clone() }
    }

    /// The list `key`, if the dataset has it.
    fn inner(&self, key: &'static str) -> Result<Option<&NvList>, CorruptPackage> {
        match self.list.get(key) {
            None => Ok(None),
            Some(NvValue::List(list)) => Ok(Some(list)),
            Some(_) => Err(self.invalid(key)),
        }
    }

    fn snaps(&self) -> Result<Vec<(NvString, u64)>, CorruptPackage> {
        let Some(snaps) = self.inner("snaps")? else { return Ok(Vec::new()) };
        let snap = |(name, guid): (&NvString, &NvValue)| match guid {
            NvValue::Uint64(guid) => Ok((name.clone(), *guid)),
            _ => Err(self.invalid_snap("snaps", name)),
        };
        snaps.iter().map(snap).collect()
    }

    /// The list `key`, which has a list for each snapshot.
    fn snap_lists(
        &self,
        key: &'static str,
    ) -> Result<Option<Vec<(&NvString, &NvList)>>, CorruptPackage> {
        let Some(snaps) = self.inner(key)? else { return Ok(None) };
        let mut lists = Vec::with_capacity(snaps.len());
        for (name, value) in snaps.iter() {
            let NvValue::List(list) = value else { return Err(self.invalid_snap(key, name)) };
            lists.push((name, list));
        }
        Ok(Some(lists))
    }

    fn holds(&self, snap: &NvString, tags: &NvList) -> Result<SnapshotHolds, CorruptPackage> {
        let hold = |(tag, time): (&NvString, &NvValue)| match time {
            NvValue::Uint64(time) => Ok((tag.clone(), *time)),
            _ => Err(self.invalid_snap("snapholds", snap)),
        };
        let holds = tags.iter().map(hold).collect::<Result<_, _>>()?;
        Ok(SnapshotHolds { snap: snap.clone(), holds })
    }

    fn decode(&self) -> Result<PackageDataset, CorruptPackage> {
        let name = self.list.string("name").ok_or(self.invalid("name"))?;
        let parent = self.list.u64("parentfromsnap").ok_or(self.invalid("parentfromsnap"))?;
        let snap_props = self.snap_lists("snapprops")?.unwrap_or_default();
        let snap_holds = self
            .snap_lists("snapholds")?
            .map(|snaps| snaps.into_iter().map(|(snap, tags)| self.holds(snap, tags)).collect());
        Ok(PackageDataset {
            guid: self.guid,
            name: name.clone(),
            parent_from_snap: parent,
            origin: self.list.u64("origin"),
            props: self.inner("props")?.cloned().unwrap_or_default(),
            is_encryption_root: self.list.contains("is_encroot"),
            snaps: self.snaps()?,
            snap_props: snap_props.into_iter().map(|(n, l)| (n.clone(), l.clone())).collect(),
            snap_holds: snap_holds.transpose()?,
        })
    }
}

fn dataset((key, value): (&NvString, &NvValue)) -> Result<PackageDataset, CorruptPackage> {
    let guid = key.to_str().and_then(|text| text.strip_prefix("0x"));
    let guid = guid.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let guid = guid.ok_or_else(|| CorruptPackage::DatasetKey { key: key.clone() })?;
    match value {
        NvValue::List(list) => DatasetList { guid, list }.decode(),
        _ => Err(CorruptPackage::Dataset { guid, key: "list" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package() -> Package {
        Package {
            to_snap: "two".into(),
            from_snap: Some("one".into()),
            is_recursive: true,
            is_raw: true,
            datasets: vec![PackageDataset {
                guid: 0xab,
                name: "tank/a".into(),
                origin: Some(5),
                props: NvList::from_iter([("compression", 15_u64)]),
                is_encryption_root: true,
                snaps: vec![("one".into(), 1), ("two".into(), u64::MAX)],
                snap_props: vec![("one".into(), NvList::new())],
                snap_holds: Some(vec![SnapshotHolds {
                    snap: "one".into(),
                    holds: vec![("keep".into(), 1700000000)],
                }]),
                ..PackageDataset::default()
            }],
        }
    }

    #[test]
    fn packages_round_trip() {
        let full = package();
        assert_eq!(Package::decode(&full.encode()), Ok(full));
        let least = Package { to_snap: "s".into(), ..Package::default() };
        assert_eq!(Package::decode(&least.encode()), Ok(least));
    }

    #[test]
    fn causes_are_named() {
        let list = package().to_list();
        for key in ["tosnap", "fss"] {
            let mut list = list.clone();
            list.remove(key);
            assert_eq!(Package::from_list(&list), Err(CorruptPackage::Value { key }));
        }
        let with = |change: &dyn Fn(&mut NvList)| {
            let mut dataset = list.list("fss").unwrap().list("0xab").unwrap().clone();
            change(&mut dataset);
            let mut list = list.clone();
            list.insert("fss", NvList::from_iter([("0xab", dataset)]));
            Package::from_list(&list).unwrap_err()
        };
        for key in ["name", "parentfromsnap", "props", "snaps", "snapprops", "snapholds"] {
            let cause = with(&|dataset| dataset.insert(key, false));
            assert_eq!(cause, CorruptPackage::Dataset { guid: 0xab, key });
        }
        for key in ["snaps", "snapprops", "snapholds"] {
            let cause = with(&|dataset| {
                dataset.insert(key, NvList::from_iter([("one", NvValue::Boolean)]));
            });
            let snap = "one".into();
            assert_eq!(cause, CorruptPackage::Snapshot { guid: 0xab, key, snap });
        }
        let mut list = list.clone();
        list.insert("fss", NvList::from_iter([("ab", NvList::new())]));
        let cause = CorruptPackage::DatasetKey { key: "ab".into() };
        assert_eq!(Package::from_list(&list), Err(cause));
    }
}
