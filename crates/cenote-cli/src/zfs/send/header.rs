//! The header of a package: its BEGIN record, with the lists of datasets and snapshots (spec 07
//! B7).
//!
//! The lists are gathered dataset by dataset, parents first, as OpenZFS does: of each only names,
//! guids, holds and own properties. Children and holds come in the order of their names, where
//! OpenZFS has the order of hash tables.

use cenote_ondisk::nvlist::{NvList, NvPair, NvString, NvValue};
use cenote_ondisk::stream::{Begin, BeginFlags, HeaderType, StreamFeatures};
use cenote_pool::props::lookup::{OwnSetting, Wanted};
use cenote_pool::props::{Access, PropType, dataset_property};
use cenote_pool::{Dataset, mos};
use cenote_rt::Error;
use cenote_stream::{Package, PackageDataset, SnapshotHolds};

use super::command::Command;
use super::{cannot_send, failure};
use crate::err;
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::zfs::permits;

/// Bytes of the lists of a header that receivers of OpenZFS take.
const LISTS_MAX: usize = 64 << 20;
/// Properties that limit space: snapshots have none of their own.
const SPACE_LIMITS: [&str; 4] = ["quota", "reservation", "refquota", "refreservation"];

/// The start of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) begin: Begin,
    pub(super) payload: Vec<u8>,
}

impl Header {
    /// Returns the header of a package of the snapshot `to_name`; with lists if `package` is given.
    pub(super) fn new(
        to_name: &str,
        package: Option<&Package>,
        has_holds: bool,
    ) -> Result<Self, Exit> {
        let payload = package.map(Package::encode).unwrap_or_default();
        if payload.len() > LISTS_MAX {
            let why = "the size of the list of snapshots and properties is too large to be \
                       received successfully.\nSelect a smaller number of snapshots to send.";
            return Err(cannot_send(to_name, why));
        }
        let mut features = StreamFeatures::empty();
        features.set(StreamFeatures::HOLDS, has_holds);
        let begin = Begin {
            payload_len: payload.len() as u32,
            header: HeaderType::Compound,
            features,
            reserved: 0,
            creation_time: 0,
            objset_kind: 0,
            flags: BeginFlags::empty(),
            to_guid: 0,
            from_guid: 0,
            to_name: to_name.as_bytes().to_vec(),
        };
        Ok(Self { begin, payload })
    }
}

/// Gathers the lists of a package.
pub(super) struct Gatherer<'a> {
    pub(super) command: &'a Command,
    pub(super) source: &'a Source,
    /// Short name of the source of the increment.
    pub(super) from: Option<&'a str>,
    /// Short name of the snapshot that is sent.
    pub(super) to: &'a str,
    /// Only the snapshot that is sent is listed.
    pub(super) is_single: bool,
}

/// A dataset with what it takes from those above it.
struct Pending {
    dataset: Dataset,
    parent_from_snap: u64,
    /// When the snapshot that is sent was taken; of the dataset or one above it, 0 if of none.
    to_txg: u64,
}

/// A snapshot that is listed.
struct Listed {
    snapshot: Dataset,
    /// Whether its properties and holds are listed, too.
    has_details: bool,
}

impl Gatherer<'_> {
    /// Gathers a dataset, with `-R` also everything below it.
    pub(super) async fn gather(&self, top: Dataset, io: &mut Io<'_>) -> Result<Package, Exit> {
        let mut package = Package {
            to_snap: self.to.into(),
            from_snap: self.from.map(NvString::from),
            is_recursive: self.command.is_recursive(),
            is_raw: self.command.options.raw,
            datasets: Vec::new(),
        };
        let mut pending = vec![Pending { dataset: top, parent_from_snap: 0, to_txg: 0 }];
        while let Some(next) = pending.pop() {
            let (parent_from_snap, to_txg) = match self.dataset(&next, io).await? {
                Some((gathered, parent_from_snap, to_txg)) => {
                    package.datasets.push(gathered);
                    (parent_from_snap, to_txg)
                }
                None => continue,
            };
            if self.command.is_recursive() {
                let children = next.dataset.children().await?.into_iter().rev();
                pending.extend(children.map(|dataset| Pending {
                    dataset,
                    parent_from_snap,
                    to_txg,
                }));
            }
        }
        Ok(package)
    }

    /// Gathers a dataset. Returns it with what its children take from it; `None` if it is left out.
    async fn dataset(
        &self,
        of: &Pending,
        io: &mut Io<'_>,
    ) -> Result<Option<(PackageDataset, u64, u64)>, Exit> {
        let dataset = &of.dataset;
        let failed = |error: Error| failure(dataset.name(), &error);
        let own_to = mos::optional(dataset.snapshot(self.to).await).map_err(failed)?;
        let Some(own_to) = own_to else {
            self.without_snapshot(of, io)?;
            return Ok(None);
        };
        permits::need(self.source, &own_to, &["send"], "send").await?;
        let to_txg = own_to.phys().creation_txg;
        let mut gathered = PackageDataset {
            guid: dataset.phys().guid,
            name: dataset.name().into(),
            parent_from_snap: of.parent_from_snap,
            origin: dataset.origin_guid().await.map_err(failed)?,
            ..PackageDataset::default()
        };
        if self.command.has_header() {
            self.add_properties(dataset, &mut gathered, io).await?;
        }
        let mut children_from = 0;
        for listed in self.snapshots(dataset, own_to, io).await? {
            let snapshot = &listed.snapshot;
            let short = snapshot.snapshot_name().unwrap_or_default();
            let guid = snapshot.phys().guid;
            self.source.charge_row(std::iter::once(&snapshot.name().to_owned()))?;
            if self.from == Some(short) || (children_from == 0 && short == self.to) {
                children_from = guid;
            }
            gathered.snaps.push((short.into(), guid));
            if listed.has_details && self.command.has_header() {
                self.add_details(snapshot, short, &mut gathered).await.map_err(failed)?;
            }
        }
        Ok(Some((gathered, children_from, to_txg)))
    }

    /// A dataset without the snapshot is left out if it is newer than that of its parent, and with
    /// `-s`; else nothing can be sent.
    fn without_snapshot(&self, of: &Pending, io: &mut Io<'_>) -> CommandResult {
        let (name, to) = (of.dataset.name(), self.to);
        if of.to_txg != 0 && of.dataset.phys().creation_txg > of.to_txg {
            if self.command.has_estimate() {
                err!(io, "skipping dataset {name}: snapshot {to} does not exist")?;
            }
        } else if self.command.skips_missing() {
            let text = "WARNING: skipping dataset";
            err!(io, "{text} {name} and its children: snapshot {to} does not exist")?;
        } else {
            let how = if self.command.is_recursive() { " recursively" } else { "" };
            let head = self.command.head();
            err!(io, "cannot send {head}@{to}{how}: snapshot {name}@{to} does not exist")?;
            return Err(self.backup_failed());
        }
        Ok(())
    }

    fn backup_failed(&self) -> Exit {
        cannot_send(&self.command.target, "backup failed")
    }

    /// Adds the dataset's properties, and what a receiver must know of its encryption.
    async fn add_properties(
        &self,
        dataset: &Dataset,
        gathered: &mut PackageDataset,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let failed = |error: Error| failure(dataset.name(), &error);
        if self.command.has_properties() {
            gathered.props = self.properties(dataset).await.map_err(failed)?;
        }
        let Some(root) = dataset.encryption_root().await.map_err(failed)? else { return Ok(()) };
        gathered.is_encryption_root = root == dataset.name();
        if !self.command.options.raw {
            let (head, to, name) = (self.command.head(), self.to, dataset.name());
            let why = "may not be sent with properties without the raw flag";
            err!(io, "cannot send {head}@{to}: encrypted dataset {name} {why}")?;
            return Err(self.backup_failed());
        }
        Ok(())
    }

    /// Adds properties and holds of a snapshot.
    async fn add_details(
        &self,
        snapshot: &Dataset,
        short: &str,
        gathered: &mut PackageDataset,
    ) -> Result<(), Error> {
        let props = self.properties(snapshot).await?;
        gathered.snap_props.push((short.into(), props));
        if self.command.has_holds() {
            let holds = snapshot.holds().await?.into_iter();
            let holds = holds.map(|hold| (hold.tag.as_str().into(), hold.time)).collect();
            let holds = SnapshotHolds { snap: short.into(), holds };
            gathered.snap_holds.get_or_insert_default().push(holds);
        }
        Ok(())
    }

    /// Returns the snapshots that are listed, oldest first: with `-R` all until the one that is
    /// sent, else those from the source on.
    async fn snapshots(
        &self,
        dataset: &Dataset,
        own_to: Dataset,
        io: &mut Io<'_>,
    ) -> Result<Vec<Listed>, Exit> {
        if self.is_single {
            return Ok(vec![Listed { snapshot: own_to, has_details: true }]);
        }
        let failed = |error: Error| failure(dataset.name(), &error);
        let is_recursive = self.command.is_recursive();
        let (mut listed, mut has_begun) = (Vec::new(), is_recursive || self.from.is_none());
        for snapshot in dataset.snapshots().await.map_err(failed)? {
            if snapshot.phys().creation_txg > own_to.phys().creation_txg {
                if is_recursive && snapshot.snapshot_name() == self.from {
                    let (to, from) = (own_to.name(), snapshot.name());
                    err!(io, "WARNING: could not send {to}:")?;
                    err!(io, "incremental source ({from}) is not earlier than it")?;
                    return Err(Exit::Status(1));
                }
                if is_recursive && self.command.has_estimate() {
                    let (name, to) = (snapshot.name(), self.to);
                    let why = "because it was created after the destination snapshot";
                    err!(io, "skipping snapshot {name} {why} ({to})")?;
                }
            } else if has_begun {
                listed.push(Listed { snapshot, has_details: true });
            } else if snapshot.snapshot_name() == self.from {
                has_begun = true;
                listed.push(Listed { snapshot, has_details: false });
            }
        }
        Ok(listed)
    }

    /// Returns the properties that a dataset or snapshot has itself, as far as they can be set.
    async fn properties(&self, dataset: &Dataset) -> Result<NvList, Error> {
        let is_backup = self.command.has_received_values();
        let wanted = if is_backup { Wanted::Received } else { Wanted::Effective };
        let settings = dataset.own_settings(wanted).await?;
        let pairs = settings.iter().filter_map(|setting| pair_of(setting, dataset.is_snapshot()));
        Ok(NvList { pairs: pairs.collect(), ..NvList::new() })
    }
}

/// Returns a property as it is sent; `None` if it cannot be set, or is not known.
fn pair_of(setting: &OwnSetting, is_snapshot: bool) -> Option<NvPair> {
    let name = setting.name.as_str();
    let text = |value: &str| NvValue::from(NvString::from(value));
    if is_snapshot && SPACE_LIMITS.contains(&name) {
        return None;
    }
    let value = if name.contains(':') {
        text(setting.value.as_str()?)
    } else {
        let property = dataset_property(name).filter(|known| known.access == Access::ReadWrite)?;
        match property.value_type {
            PropType::Text => text(setting.value.as_str()?),
            PropType::Number(_) | PropType::Index(_) => setting.value.first()?.into(),
        }
    };
    Some(NvPair { name: name.into(), value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_ondisk::zap::Value;

    #[test]
    fn properties_that_can_be_set_are_sent() {
        let pair = |name: &str, value: Value, is_snapshot| {
            let setting = OwnSetting { name: name.to_owned(), value };
            pair_of(&setting, is_snapshot).map(|pair| pair.value)
        };
        let text = |text: &str| Some(NvValue::from(NvString::from(text)));
        assert_eq!(pair("compression", Value::U64(15), false), Some(15_u64.into()));
        assert_eq!(pair("a:b", Value::text("x"), true), text("x"));
        assert_eq!(pair("mountpoint", Value::text("/m"), false), text("/m"));
        assert_eq!(pair("quota", Value::U64(1), false), Some(1_u64.into()));
        assert_eq!(pair("quota", Value::U64(1), true), None);
        // Set once, read-only, unknown, of another type.
        for name in ["normalization", "used", "later", "mountpoint"] {
            assert_eq!(pair(name, Value::U64(1), false), None, "{name}");
        }
    }

    #[test]
    fn headers_that_openzfs_would_not_receive_are_refused() {
        let snaps = |count: u64| (0..count).map(|guid| ("x".repeat(200).as_str().into(), guid));
        let header = |count| {
            let snaps = snaps(count).collect();
            let dataset = PackageDataset { snaps, ..PackageDataset::default() };
            let package = Package { datasets: vec![dataset], ..Package::default() };
            Header::new("p@s", Some(&package), true)
        };
        assert_eq!(header(10).unwrap().begin.features, StreamFeatures::HOLDS);
        let message = header((64 << 20) / 200).unwrap_err().message();
        assert!(message.contains("Select a smaller number of snapshots"), "{message}");
        assert!(Header::new("p@s", None, false).unwrap().payload.is_empty());
    }
}
