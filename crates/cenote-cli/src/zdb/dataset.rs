//! Object sets: summary line, lists of blocks, objects.
//!
//! Datasets are printed in the order in which OpenZFS finds them: the children of a dataset first,
//! in the order of their ZAP, then its snapshots, in the order of theirs, then the dataset itself.

use std::sync::Arc;

use cenote_dmu::{ObjSet, Zap};
use cenote_ondisk::dsl::key;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::sa::{Registry, registry};
use cenote_pool::{Dataset, Pool};

use super::options::number;
use super::pool::Show;
use super::{deadlists, intent_log, object};
use crate::io::{CommandResult, Exit};
use crate::out;

/// The owner of an object set.
pub(super) enum Target<'a> {
    /// The meta object set.
    Mos,
    /// A dataset.
    Dataset(&'a Dataset),
}

/// Objects to show: from the first number to the last, of the selected kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectRange {
    pub(super) start: u64,
    pub(super) end: u64,
    kinds: Kinds,
    /// Whether the object was named by its number: then it is an error if it does not exist.
    pub(super) is_single: bool,
}

/// Kinds of objects, given as letters after a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "a letter each")]
struct Kinds {
    all: bool,
    directories: bool,
    files: bool,
    space_maps: bool,
    zaps: bool,
}

impl ObjectRange {
    /// Whether objects of a type are selected.
    pub(super) fn takes(&self, kind: ObjectType) -> bool {
        let kinds = self.kinds;
        kinds.all
            || match kind {
                ObjectType::DIRECTORY_CONTENTS => kinds.directories || kinds.zaps,
                ObjectType::PLAIN_FILE_CONTENTS => kinds.files,
                ObjectType::SPACE_MAP => kinds.space_maps,
                kind => kinds.zaps && kind.is_zap(),
            }
    }
}

/// Parses `NUMBER` and `START:END[:FLAGS]`.
pub(super) fn parse_ranges(words: &[String]) -> CommandResult<Vec<ObjectRange>> {
    let mut ranges = Vec::new();
    for word in words {
        let bad = |why: &str| Exit::failed(format!("Bad object or range: '{word}': {why}\n"));
        let parts: Vec<&str> = word.split(':').collect();
        let bound = |text: &str| match text {
            "-1" => Some(u64::MAX),
            text => number(text),
        };
        let range = match parts[..] {
            [one] => {
                let object = match one.strip_prefix('-').and_then(number) {
                    Some(below) => Some(0_u64.wrapping_sub(below)),
                    None => bound(one),
                };
                let object = object.ok_or_else(|| bad("Invalid characters in object ID"))?;
                let kinds = Kinds { all: true, ..Kinds::default() };
                ObjectRange { start: object, end: object, kinds, is_single: true }
            }
            [start, end, ref flags @ ..] if flags.len() <= 1 => {
                let start =
                    number(start).ok_or_else(|| bad("Invalid characters in start object ID"))?;
                let end = bound(end).ok_or_else(|| bad("Invalid characters in end object ID"))?;
                if end < start {
                    return Err(bad("Start object ID exceeds end object ID"));
                }
                let flags = flags.first().copied().unwrap_or("A");
                let kinds = kinds(flags).ok_or_else(|| bad("Invalid flag"))?;
                ObjectRange { start, end, kinds, is_single: false }
            }
            _ => return Err(bad("Invalid number of fields")),
        };
        ranges.push(range);
    }
    Ok(ranges)
}

fn kinds(flags: &str) -> Option<Kinds> {
    let mut kinds = Kinds::default();
    let mut is_on = true;
    for flag in flags.chars() {
        match flag {
            '-' => {
                is_on = false;
                continue;
            }
            'A' => {
                kinds = Kinds {
                    all: is_on,
                    directories: is_on,
                    files: is_on,
                    space_maps: is_on,
                    zaps: is_on,
                };
            }
            'd' => kinds.directories = is_on,
            'f' => kinds.files = is_on,
            'm' => kinds.space_maps = is_on,
            'z' => kinds.zaps = is_on,
            _ => return None,
        }
        // Excluding a kind selects the others.
        kinds.all &= is_on;
        is_on = true;
    }
    Some(kinds)
}

/// Collects `root` and everything below it.
pub(super) async fn in_order(
    pool: &Arc<Pool>,
    root: &Dataset,
    all: &mut Vec<Dataset>,
) -> cenote_rt::Result<()> {
    // A stack of datasets that are added after their descendants.
    let mut pending = vec![(root.clone(), false)];
    while let Some((dataset, is_expanded)) = pending.pop() {
        if is_expanded {
            for (_, object) in children(pool, dataset.phys().snapnames_zapobj).await? {
                all.push(pool.dataset_by_object(object).await?);
            }
            all.push(dataset);
            continue;
        }
        let below = children(pool, dataset.dir().phys.child_dir_zapobj).await?;
        let by_name = dataset.children().await?;
        pending.push((dataset.clone(), true));
        for (name, _) in below.iter().rev() {
            let whole = format!("{}/{name}", dataset.name());
            pending.extend(
                by_name
                    .iter()
                    .find(|child| child.name() == whole)
                    .cloned()
                    .map(|child| (child, false)),
            );
        }
    }
    Ok(())
}

/// Returns names and objects of a ZAP in the MOS, in ZAP order.
async fn children(pool: &Pool, zap: u64) -> cenote_rt::Result<Vec<(String, u64)>> {
    if zap == 0 {
        return Ok(Vec::new());
    }
    let entries = Zap::open(pool.mos(), zap).await?.to_vec().await?;
    let named = entries.into_iter().filter_map(|entry| {
        let name = String::from_utf8_lossy(entry.key.name()?).into_owned();
        Some((name, entry.value.first()?))
    });
    Ok(named.collect())
}

/// An object set and the tables for decoding its objects.
pub(super) struct Set {
    pub(super) objset: Arc<ObjSet>,
    pub(super) is_mos: bool,
    /// Attribute registry of files; `None` if there is none or it is unreadable.
    pub(super) registry: Option<Registry>,
    /// Domains of the FUID table, by index.
    pub(super) domains: Vec<String>,
}

impl Set {
    pub(super) async fn new(objset: Arc<ObjSet>, is_mos: bool) -> Self {
        let (mut registry, mut domains) = (None, Vec::new());
        if objset.kind() == ObjSetType::Zfs && !objset.is_locked() {
            registry = load_registry(&objset).await.ok().flatten();
            domains = super::znode::load_domains(&objset).await.unwrap_or_default();
        }
        Self { objset, is_mos, registry, domains }
    }
}

/// Opens the object set of a dataset, also without its encryption key.
pub(super) async fn open(dataset: &Dataset) -> cenote_rt::Result<Arc<ObjSet>> {
    match dataset.open().await {
        Err(error) if error.kind() == cenote_rt::Kind::KeyUnavailable => {
            dataset.open_without_key().await
        }
        result => result,
    }
}

/// Object number of the master node of every file system.
const MASTER_NODE: u64 = 1;

async fn load_registry(objset: &Arc<ObjSet>) -> cenote_rt::Result<Option<Registry>> {
    let master = Zap::open(objset, MASTER_NODE).await?;
    let Some(object) = master.lookup_u64("SA_ATTRS").await? else { return Ok(None) };
    let attrs = Zap::open(objset, object).await?;
    let mut registry = Registry::new();
    let named = |entry: &cenote_ondisk::zap::Entry| entry.key.name().map(<[u8]>::to_vec);
    if let Some(object) = attrs.lookup_u64(registry::REGISTRY).await? {
        for entry in Zap::open(objset, object).await?.to_vec().await? {
            if let (Some(name), Some(value)) = (named(&entry), entry.value.first()) {
                registry.add_attr(&name, value);
            }
        }
    }
    if let Some(object) = attrs.lookup_u64(registry::LAYOUTS).await? {
        for entry in Zap::open(objset, object).await?.to_vec().await? {
            if let Some(name) = named(&entry) {
                registry.add_layout(&name, &entry.value.words());
            }
        }
    }
    Ok(Some(registry))
}

impl Show<'_, '_> {
    /// Shows an object set, or only the selected objects.
    pub(super) async fn objset(
        &mut self,
        target: &Target<'_>,
        objects: &[ObjectRange],
    ) -> CommandResult {
        let verbosity = self.options.count('d');
        let objset = match target {
            Target::Mos => Arc::clone(self.pool.mos()),
            Target::Dataset(dataset) => open(dataset).await?,
        };
        if verbosity > 0 || self.options.has('i') {
            self.objset_line(target, &objset).await?;
        }
        let set = Set::new(objset, matches!(target, Target::Mos)).await;
        if !objects.is_empty() {
            return object::ranges(self, &set, objects).await;
        }
        // The log header in a snapshot is not a log of the snapshot.
        let is_snapshot = matches!(target, Target::Dataset(dataset) if dataset.is_snapshot());
        if !is_snapshot && (self.options.has('i') || verbosity >= 2) {
            intent_log::run(self, &set.objset).await?;
        }
        if let Target::Dataset(dataset) = target {
            deadlists::of_dataset(self, dataset).await?;
        }
        if verbosity < 2 {
            return Ok(());
        }
        object::all(self, &set).await
    }

    /// Returns the name of a dataset; that of its pool has OpenZFS's suffix for the checkpoint.
    fn name_of(&self, name: &str) -> String {
        let end = name.find(['/', '@']).unwrap_or(name.len());
        let suffix = if self.options.has('k') { "_CHECKPOINTED_UNIVERSE" } else { "" };
        let (pool, rest) = name.split_at(end);
        format!("{pool}{suffix}{rest}")
    }

    async fn objset_line(&mut self, target: &Target<'_>, objset: &ObjSet) -> CommandResult {
        let (name, id, txg, bytes, is_inconsistent) = match target {
            Target::Mos => ("mos".to_owned(), 0, MOS_TXG, self.mos_bytes().await?, false),
            Target::Dataset(dataset) => {
                let phys = dataset.phys();
                let is_inconsistent = phys.is_inconsistent();
                let bytes = phys.referenced_bytes;
                let name = self.name_of(dataset.name());
                (name, dataset.object(), phys.creation_txg, bytes, is_inconsistent)
            }
        };
        let root = if self.options.count('d') >= 4 {
            format!(", rootbp {}", objset.root().verbose())
        } else {
            String::new()
        };
        out!(
            self.io,
            "Dataset {name} [{}], ID {id}, cr_txg {txg}, {}, {} objects{root}{}",
            objset.kind().name(),
            self.options.size(bytes),
            objset.object_count(),
            if is_inconsistent { " (inconsistent)" } else { "" },
        )
    }

    /// Returns the space of the MOS, which its DSL directory counts.
    async fn mos_bytes(&self) -> CommandResult<u64> {
        let dir = self.pool.root_dir().child(self.pool.mos(), key::MOS_DIR).await?;
        Ok(dir.map_or(0, |dir| dir.phys.used_bytes))
    }
}

/// The txg in which pools are created.
const MOS_TXG: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> CommandResult<Vec<ObjectRange>> {
        parse_ranges(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn ranges_have_flags() {
        let ranges = parse("7 1:-1:f 0:9:A-z").expect("valid");
        assert!(ranges[0].is_single && ranges[0].takes(ObjectType::SPACE_MAP));
        assert_eq!((ranges[1].start, ranges[1].end), (1, u64::MAX));
        assert!(ranges[1].takes(ObjectType::PLAIN_FILE_CONTENTS));
        assert!(!ranges[1].takes(ObjectType::DIRECTORY_CONTENTS));
        assert!(ranges[2].takes(ObjectType::PLAIN_FILE_CONTENTS));
        assert!(!ranges[2].takes(ObjectType::ZAP_OTHER));
        for bad in ["x", "2:1", "1:2:q", "1:2:3:4"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
