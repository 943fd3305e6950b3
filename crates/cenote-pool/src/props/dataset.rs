//! Properties of file systems, volumes, snapshots and bookmarks (spec 04 §7, §17.3).
//!
//! A property is requested by name; the result is a row, or `None` if the dataset does not have the
//! property (a file system has no `volsize`, a dataset that is no clone no `origin`). Listings of
//! all properties omit those; a listing by name shows a dash.

use cenote_ondisk::dsl::DatasetFlags;
use cenote_ondisk::dsl::key;
use cenote_ondisk::zap::Value;
use cenote_rt::Result;

use super::lookup::PropChain;
use super::table::{DATASET_PROPERTIES, Property, dataset_property};
use super::text::Setting;
use super::value::{PropRow, PropValue, Source};
use super::{userspace, zpl};
use crate::dsl::{Bookmark, Dataset, DatasetKind, DatasetName, Suffix};
use crate::keys::KeyInfo;
use crate::mos;

/// Length at which a list of clones is truncated.
const CLONES_LEN_MAX: usize = 8191;

/// Data of a dataset that several properties need, read once.
#[derive(Debug, Clone)]
pub struct DatasetProps {
    dataset: Dataset,
    kind: DatasetKind,
    is_kind_known: bool,
    chain: PropChain,
    key: Option<KeyInfo>,
    zpl: Option<zpl::Facts>,
}

impl Dataset {
    /// Reads the data that properties of this dataset need.
    pub async fn props(&self) -> Result<DatasetProps> {
        // A dataset with a damaged object set still has a name, space figures and settings.
        let kind = mos::unless_interrupted(self.kind().await)?;
        let is_kind_known = kind.is_ok();
        let kind = kind.unwrap_or(DatasetKind::Other);
        let chain = PropChain::load(self).await?;
        let key = match self.dir().crypto_key_object(self.mos()).await? {
            Some(object) => Some(KeyInfo::load(self.mos(), object).await?),
            None => None,
        };
        let zpl = zpl::Facts::read(self, kind).await?;
        Ok(DatasetProps { dataset: self.clone(), kind, is_kind_known, chain, key, zpl })
    }
}

/// Value and source of a property, `None` if the dataset does not have it.
type Found = Option<(PropValue, Source)>;

#[expect(clippy::unnecessary_wraps, reason = "one of many answers, most of them optional")]
fn number(value: u64) -> Found {
    Some((PropValue::Number(value), Source::None))
}

#[expect(clippy::unnecessary_wraps, reason = "one of many answers, most of them optional")]
fn text(value: impl Into<String>) -> Found {
    Some((PropValue::Text(value.into()), Source::None))
}

/// Returns logical over physical bytes, in hundredths.
fn ratio(uncompressed: u64, compressed: u64) -> u64 {
    (u128::from(uncompressed) * 100).checked_div(u128::from(compressed)).unwrap_or(100) as u64
}

impl DatasetProps {
    /// The dataset.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The type of the dataset.
    pub fn kind(&self) -> DatasetKind {
        self.kind
    }

    /// The settings of the dataset and its ancestors.
    pub fn chain(&self) -> &PropChain {
        &self.chain
    }

    /// Whether datasets of this type have the property; for a snapshot, the type of its head must
    /// have it, too.
    pub fn is_valid(&self, property: &Property) -> bool {
        let is_of_kind = match self.kind {
            DatasetKind::Other if !self.is_kind_known => {
                property.types.contains('f') && property.types.contains('v')
            }
            DatasetKind::Filesystem | DatasetKind::Other => property.types.contains('f'),
            DatasetKind::Volume => property.types.contains('v'),
        };
        if !self.dataset.is_snapshot() {
            return is_of_kind;
        }
        // Statistics that only snapshots have do not depend on the head.
        let only_snapshots = !property.types.contains(['f', 'v']);
        property.types.contains('s') && (only_snapshots || is_of_kind)
    }

    /// Returns all properties of the dataset in the table's order, then user properties by name.
    pub async fn all(&self) -> Result<Vec<PropRow>> {
        let mut rows = Vec::new();
        for property in DATASET_PROPERTIES.iter().filter(|property| !property.is_hidden()) {
            rows.extend(self.native(property).await?);
        }
        rows.extend(self.user());
        Ok(rows)
    }

    /// Returns the settings for file names, which new children take over from their parent.
    ///
    /// # Errors
    /// Errors of reading the dataset.
    pub async fn name_settings(&self) -> Result<Vec<Setting>> {
        let mut found = Vec::new();
        for name in ["normalization", "utf8only", "casesensitivity"] {
            if let Some(row) = self.get(name).await?
                && let PropValue::Number(number) = row.value
            {
                found.push((name.to_owned(), Value::U64(number)));
            }
        }
        Ok(found)
    }

    /// Returns the user properties set on the dataset or its ancestors, by name.
    pub fn user(&self) -> Vec<PropRow> {
        let names = self.chain.user_names();
        names.iter().filter_map(|name| self.user_row(name)).collect()
    }

    fn user_row(&self, name: &str) -> Option<PropRow> {
        let (value, source) = self.chain.user(name)?;
        let received = self.received_text(name);
        Some(PropRow { received, ..PropRow::other(name, value, source) })
    }

    /// The row of a user property that has no value here, but a received one: `receive -x` hides
    /// that.
    fn hidden_row(&self, name: &str) -> Option<PropRow> {
        let received = Some(self.received_text(name)?);
        Some(PropRow { received, ..PropRow::other(name, PropValue::Absent, Source::None) })
    }

    fn received_text(&self, name: &str) -> Option<PropValue> {
        Some(PropValue::Text(self.chain.received(name)?.as_str()?.to_owned()))
    }

    /// Returns a property by name: native, user (`a:b`), `userused@…` and the like, `written@…`.
    pub async fn get(&self, name: &str) -> Result<Option<PropRow>> {
        if let Some(property) = dataset_property(name) {
            return self.native(property).await;
        }
        if let Some(since) = name.strip_prefix("written@").or(name.strip_prefix("written#")) {
            let is_bookmark = name.starts_with("written#");
            return self.written_since(name, since, is_bookmark).await;
        }
        if let Some((kind, owner)) = userspace::parse(name) {
            let value = userspace::one(&self.dataset, kind, owner).await?;
            return Ok(
                value.map(|value| PropRow::other(name, PropValue::Number(value), Source::Local))
            );
        }
        if !name.contains(':') {
            return Ok(None);
        }
        Ok(self.user_row(name).or_else(|| self.hidden_row(name)))
    }

    /// Returns `written@SNAP`, where SNAP is the short name of a snapshot of this dataset or a full
    /// name.
    async fn written_since(
        &self,
        name: &str,
        since: &str,
        is_bookmark: bool,
    ) -> Result<Option<PropRow>> {
        let dataset = &self.dataset;
        let result = if is_bookmark {
            let mark = if since.contains('#') {
                dataset.pool().bookmark(since).await
            } else {
                dataset.head().await?.bookmark(since).await
            };
            match mos::optional(mark)? {
                Some(mark) => mos::optional(dataset.written_since_bookmark(&mark).await)?,
                None => None,
            }
        } else {
            let snapshot = match DatasetName::parse(since) {
                Ok(DatasetName { suffix: Suffix::Snapshot(_), .. }) => {
                    dataset.pool().dataset(since).await
                }
                _ => dataset.head().await?.snapshot(since).await,
            };
            match mos::optional(snapshot)? {
                Some(snapshot) => mos::optional(dataset.written_since(&snapshot).await)?,
                None => None,
            }
        };
        Ok(result.map(|bytes| PropRow::other(name, PropValue::Number(bytes), Source::None)))
    }

    /// Returns a native property, if the dataset has it.
    pub async fn native(&self, property: &'static Property) -> Result<Option<PropRow>> {
        if !self.is_valid(property) {
            return Ok(None);
        }
        let answer = match self.identity(property.name).await? {
            Answer::Unknown => match self.space(property.name).await? {
                Answer::Unknown => match self.security(property).await? {
                    Answer::Unknown => Some(self.stored(property)),
                    Answer::Known(answer) => answer,
                },
                Answer::Known(answer) => answer,
            },
            Answer::Known(answer) => answer,
        };
        Ok(answer.filter(|(value, _)| *value != PropValue::Absent).map(|(value, source)| {
            let mut row = PropRow::native(property, value, source);
            row.received = self
                .chain
                .received(property.name)
                .map(|value| super::lookup::convert(property, value));
            row
        }))
    }

    /// Returns properties of the dataset's identity: names, guids, times, relations to other
    /// datasets.
    async fn identity(&self, name: &str) -> Result<Answer> {
        let (dataset, phys) = (&self.dataset, self.dataset.phys());
        Ok(Answer::Known(match name {
            "type" if !dataset.is_snapshot() && !self.is_kind_known => None,
            "type" => text(match (dataset.is_snapshot(), self.kind) {
                (true, _) => "snapshot",
                (false, DatasetKind::Volume) => "volume",
                (false, _) => "filesystem",
            }),
            "name" => text(dataset.name()),
            "creation" => number(phys.creation_time),
            "createtxg" => number(phys.creation_txg),
            "guid" => number(phys.guid),
            "objsetid" => number(dataset.object()),
            "mounted" => number(u64::from(dataset.pool().presence().is_mounted(dataset.object()))),
            "origin" => dataset.origin().await?.and_then(|origin| text(origin.name())),
            "prevsnap" => match phys.prev_snap_obj {
                0 => None,
                object if Some(object) == dataset.pool().origin_snapshot() => None,
                object => text(dataset.pool().dataset_by_object(object).await?.name()),
            },
            "clones" => {
                let mut names = dataset.clone_names().await?.join(",");
                names.truncate(names.floor_char_boundary(CLONES_LEN_MAX));
                if names.is_empty() { None } else { text(names) }
            }
            "numclones" => number(phys.num_children.saturating_sub(1)),
            "userrefs" => number(dataset.holds().await?.len() as u64),
            "defer_destroy" => number(u64::from(phys.flags.contains(DatasetFlags::DEFER_DESTROY))),
            "inconsistent" => number(u64::from(dataset.is_inconsistent())),
            "snapshots_changed" => {
                dataset.dir().extra(dataset.mos(), key::SNAPSHOTS_CHANGED).await?.and_then(number)
            }
            "filesystem_count" => self.count(key::FILESYSTEM_COUNT).await?,
            "snapshot_count" => self.count(key::SNAPSHOT_COUNT).await?,
            "redacted" => number(u64::from(dataset.redaction_snapshots().await?.is_some())),
            "redact_snaps" => {
                dataset.redaction_snapshots().await?.and_then(|guids| text(join(&guids)))
            }
            "ivsetguid" => dataset.extra(key::IVSET_GUID).await?.and_then(number),
            "receive_resume_token" => crate::resume::token(dataset).await?.and_then(text),
            "useraccounting" => number(1),
            "remaptxg" | "iscsioptions" | "stmf_sbd_lu" => None,
            _ => return Ok(Answer::Unknown),
        }))
    }

    async fn count(&self, key: &str) -> Result<Option<(PropValue, Source)>> {
        let count = self.dataset.dir().extra(self.dataset.mos(), key).await?;
        Ok(Some(match count {
            Some(count) => (PropValue::Number(count), Source::Local),
            None => (PropValue::Number(u64::MAX), Source::Default),
        }))
    }

    /// Returns space figures, and the limits that are stored with them.
    async fn space(&self, name: &str) -> Result<Answer> {
        let (dataset, phys) = (&self.dataset, self.dataset.phys());
        let dir = &dataset.dir().phys;
        let is_snapshot = dataset.is_snapshot();
        Ok(Answer::Known(match name {
            "used" => number(if is_snapshot { phys.unique_bytes } else { dir.used_bytes }),
            "available" => self.available().await?.and_then(number),
            "referenced" => number(phys.referenced_bytes),
            "logicalreferenced" => number(phys.uncompressed_bytes),
            "logicalused" => number(dir.uncompressed_bytes),
            "unique" => number(phys.unique_bytes),
            "compressratio" if !is_snapshot => {
                number(ratio(dir.uncompressed_bytes, dir.compressed_bytes))
            }
            "compressratio" | "refcompressratio" => {
                number(ratio(phys.uncompressed_bytes, phys.compressed_bytes))
            }
            "usedbydataset" => number(dir.breakdown.head),
            "usedbysnapshots" => number(dir.breakdown.snap),
            "usedbyrefreservation" => number(dir.breakdown.refreserved),
            "usedbychildren" => {
                number(dir.breakdown.child.wrapping_add(dir.breakdown.child_reserved))
            }
            "written" => number(dataset.written().await?),
            "quota" => self.limit(name, dir.quota),
            "reservation" => self.limit(name, dir.reserved),
            _ => return Ok(Answer::Unknown),
        }))
    }

    /// Returns a limit whose value is stored in the dir; its source is in the property ZAPs.
    #[expect(clippy::unnecessary_wraps, reason = "one of many answers, most of them optional")]
    fn limit(&self, name: &str, value: u64) -> Found {
        let source = match dataset_property(name).map(|property| self.chain.native(property)) {
            Some((_, Source::Default)) | None if value != 0 => Source::Local,
            Some((_, source)) => source,
            None => Source::Default,
        };
        Some((PropValue::Number(value), source))
    }

    /// Returns the available space of this dataset, `None` if some figure that it depends on cannot
    /// be read.
    async fn available(&self) -> Result<Option<u64>> {
        let dataset = &self.dataset;
        let limit = |name| match dataset_property(name).map(|property| self.chain.native(property))
        {
            Some((PropValue::Number(number), _)) => number,
            _ => 0,
        };
        let space = dataset.pool().space().await?;
        if !space.damage.is_empty() {
            return Ok(None);
        }
        let mut available = crate::accounting::available(dataset, &space).await?;
        let phys = dataset.phys();
        available =
            available.saturating_add(limit("refreservation").saturating_sub(phys.unique_bytes));
        if let quota @ 1.. = limit("refquota") {
            available = available.min(quota.saturating_sub(phys.referenced_bytes));
        }
        Ok(Some(available))
    }

    /// Returns properties of encryption, and those stored in the object set.
    async fn security(&self, property: &'static Property) -> Result<Answer> {
        let none = || Some((property.default.into(), Source::Default));
        let stored = |value: u64| {
            // A set-once value that equals the default is shown as the default.
            if PropValue::from(property.default) == PropValue::Number(value) {
                none()
            } else {
                number(value)
            }
        };
        Ok(Answer::Known(match (property.name, &self.key) {
            ("encryption", Some(key)) => number(key.wrapped.suite),
            ("keyformat", Some(key)) => stored(key.format_value),
            ("pbkdf2iters", Some(key)) => stored(key.pbkdf2.iterations),
            ("pbkdf2salt", Some(key)) => stored(key.pbkdf2.salt),
            ("encryption" | "keyformat" | "pbkdf2iters" | "pbkdf2salt", None) => none(),
            ("keylocation", Some(key)) if key.root_dir != self.dataset.dir().object => none(),
            ("encryptionroot", Some(key)) => {
                text(self.dataset.pool().dir_name(key.root_dir).await?)
            }
            ("keyguid", Some(key)) => number(key.wrapped.guid),
            ("keystatus", Some(key)) => {
                number(if self.dataset.pool().keys().is_loaded(key) { 2 } else { 1 })
            }
            ("encryptionroot" | "keyguid" | "keystatus", None) => None,
            ("volblocksize", _) => match self.zpl.as_ref().and_then(|zpl| zpl.get(property.name)) {
                Some((PropValue::Number(value), _)) => stored(value),
                other => other,
            },
            ("volsize" | "version" | "utf8only" | "normalization" | "casesensitivity", _) => {
                self.zpl.as_ref().and_then(|zpl| zpl.get(property.name))
            }
            _ => return Ok(Answer::Unknown),
        }))
    }

    /// Returns a property that is stored in property ZAPs.
    fn stored(&self, property: &'static Property) -> (PropValue, Source) {
        let (value, source) = self.chain.native(property);
        if property.name != "mountpoint" {
            let presence = self.dataset.pool().presence();
            // A mount option overrides the stored value.
            return match presence
                .option(self.dataset.object(), property.name)
                .map(PropValue::Number)
            {
                Some(option) if option != value => (option, Source::Temporary),
                _ => (value, source),
            };
        }
        let path = match &value {
            PropValue::Text(path) if path.starts_with('/') && source != Source::Received => {
                let path = mountpoint(self.dataset.name(), path, &source);
                self.dataset.pool().presence().below_altroot(path)
            }
            _ => return (value, source),
        };
        (PropValue::Text(path), source)
    }
}

/// Result of a group of properties: the property is in another group, or its value, if any.
enum Answer {
    Unknown,
    Known(Option<(PropValue, Source)>),
}

/// Returns the path at which a dataset is mounted: the stored value, followed by the names below
/// the dataset where it is set.
fn mountpoint(dataset: &str, value: &str, source: &Source) -> String {
    let below = match source {
        Source::Inherited(from) => dataset.strip_prefix(from.as_str()).unwrap_or(""),
        Source::Default => dataset,
        _ => "",
    };
    let below = below.trim_start_matches('/');
    match (value, below) {
        (_, "") => value.to_owned(),
        ("/", _) => format!("/{below}"),
        _ => format!("{value}/{below}"),
    }
}

fn join(guids: &[u64]) -> String {
    guids.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

impl Bookmark {
    /// Returns a native property, if the bookmark has it.
    pub async fn prop(
        &self,
        pool: &crate::Pool,
        property: &'static Property,
    ) -> Result<Option<PropRow>> {
        use cenote_ondisk::dsl::BookmarkFlags;
        let phys = &self.phys;
        let has_sums = phys.flags.contains(BookmarkFlags::HAS_FBN);
        let answer = match property.name {
            "type" => text("bookmark"),
            "name" => text(self.name.clone()),
            "creation" => number(phys.creation_time),
            "createtxg" => number(phys.creation_txg),
            "guid" => number(phys.guid),
            "referenced" if has_sums => number(phys.referenced[0]),
            "logicalreferenced" if has_sums => number(phys.referenced[2]),
            "ivsetguid" if phys.ivset_guid != 0 => number(phys.ivset_guid),
            "redact_snaps" => {
                let guids = self.redaction_snapshots(pool.mos()).await?;
                guids.and_then(|guids| text(join(&guids)))
            }
            _ => None,
        };
        Ok(answer.map(|(value, source)| PropRow::native(property, value, source)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountpoint_is_composed_with_names_below_its_source() {
        for (dataset, value, source, want) in [
            ("p/a/b", "/mnt/p", Source::Inherited("p".into()), "/mnt/p/a/b"),
            ("p", "/mnt/p", Source::Local, "/mnt/p"),
            ("p/a", "/", Source::Default, "/p/a"),
            ("p/a", "/", Source::Local, "/"),
            ("p/a/b", "/", Source::Inherited("p/a".into()), "/b"),
        ] {
            assert_eq!(mountpoint(dataset, value, &source), want, "{dataset} {value}");
        }
    }

    #[test]
    fn compressratio_is_truncated() {
        assert_eq!(ratio(159, 100), 159);
        assert_eq!(ratio(1999, 1000), 199);
        assert_eq!(ratio(5, 0), 100);
        assert_eq!(ratio(u64::MAX, 1), (u128::from(u64::MAX) * 100) as u64);
    }
}
