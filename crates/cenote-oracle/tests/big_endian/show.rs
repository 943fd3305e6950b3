//! All contents of a pool that the library can read, as text.

use std::fmt::{Debug, Write};
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::sync::Arc;

use cenote_dmu::Deadlist;
use cenote_fs::{FileKind, FileStream, FileSystem, Node, Volume};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_pool::props::{PropRow, SpaceOwner};
use cenote_pool::status::VdevReport;
use cenote_pool::{Dataset, DatasetKind, OpenOptions, Pool, ScanOptions, import};
use cenote_rt::{Error, Result};
use cenote_testkit::Golden;
use cenote_vdev::LeafStats;

/// The text for a pool, and the number of objects of each kind.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// The lines.
    pub(crate) text: String,
    /// Files, directories and so on.
    pub(crate) nodes: u64,
    /// ACL entries.
    pub(crate) aces: u64,
    /// Errors, shown in place of the contents.
    pub(crate) errors: u64,
    /// Records of the history.
    pub(crate) records: u64,
}

impl Shown {
    fn line(&mut self, what: &str, value: &impl Debug) {
        writeln!(self.text, "{what}: {value:?}").expect("a string");
    }

    /// A result, or the error's text: both must be the same in the rewritten pool.
    fn result<T: Debug>(&mut self, what: &str, found: &Result<T>) {
        match found {
            Ok(found) => self.line(what, found),
            Err(error) => self.error(what, error),
        }
    }

    fn error(&mut self, what: &str, error: &Error) {
        self.errors += 1;
        self.line(what, &error.to_string());
    }

    fn rows(&mut self, what: &str, rows: &[PropRow]) {
        for row in rows.iter().filter(|row| row.name != "load_guid") {
            self.line(&format!("{what} {}", row.name), &(row.literal(), &row.source));
        }
    }
}

/// Shows the pool in a folder of images.
pub(crate) fn pool(golden: &Golden, folder: &Path) -> Shown {
    let mut shown = Shown::default();
    let result = cenote_rt::block_on(2, async {
        let pool = open(golden.name(), folder).await?;
        for (dataset, key) in golden.keys() {
            pool.load_key(&pool.dataset(dataset).await?, &key).await?;
        }
        facts(&pool, &mut shown).await?;
        for dataset in all_datasets(&pool).await? {
            self::dataset(&dataset, &mut shown).await?;
        }
        Ok::<(), Error>(())
    });
    if let Err(error) = result.expect("a runtime") {
        shown.error("the rest of the pool", &error);
    }
    shown.text = shown.text.replace(&*folder.to_string_lossy(), "DIR");
    shown
}

async fn open(name: &str, folder: &Path) -> Result<Arc<Pool>> {
    let scan = import::scan(&ScanOptions { paths: vec![folder.to_path_buf()] }).await?;
    let candidate = scan.find(name).expect("the pool is found");
    Pool::open(candidate, &OpenOptions::default()).await
}

async fn facts(pool: &Arc<Pool>, shown: &mut Shown) -> Result<()> {
    let uberblock = pool.uberblock();
    shown.line("uberblock", &(uberblock.txg, uberblock.timestamp, uberblock.guid_sum));
    shown.line("config", &pool.config().vdev_tree);
    shown.line("warnings", &pool.warnings());
    shown.line("directory", &pool.directory());
    shown.line("features", pool.features());
    shown.line("spares", &pool.spares());
    shown.line("caches", &pool.caches().len());
    shown.line("space", &pool.space().await?);
    shown.line("error log", &pool.error_log().await?);
    let mut status = pool.status().await?;
    forget_counts(&mut status.root);
    shown.line("status", &status);
    shown.rows("pool", &pool.props().await?.all());
    let history = pool.history().await?;
    shown.records = history.records.len() as u64;
    for record in &history.records {
        shown.line("history", record);
    }
    shown.line("history lost", &(history.lost, &history.damage));
    Ok(())
}

/// The number of device reads depends on how blocks were packed.
fn forget_counts(report: &mut VdevReport) {
    report.stats = LeafStats::default();
    report.queue = None;
    report.children.iter_mut().for_each(forget_counts);
}

async fn all_datasets(pool: &Arc<Pool>) -> Result<Vec<Dataset>> {
    let mut all = Vec::new();
    for head in pool.datasets().await? {
        let snapshots = head.snapshots().await?;
        all.push(head);
        all.extend(snapshots);
    }
    Ok(all)
}

async fn dataset(dataset: &Dataset, shown: &mut Shown) -> Result<()> {
    let name = dataset.name().to_owned();
    let mut phys = dataset.phys().clone();
    phys.bp = BlockPtr::from_words([0; 16]);
    shown.line(&name, &phys);
    shown.line(&name, dataset.dir());
    shown.rows(&name, &dataset.props().await?.all().await?);
    shown.line(&name, &dataset.bookmarks().await?);
    shown.line(&name, &dataset.clone_names().await?);
    if dataset.is_snapshot() {
        shown.line(&name, &dataset.holds().await?);
    }
    if phys.deadlist_obj != 0 {
        let list = Deadlist::open(dataset.pool().mos(), phys.deadlist_obj).await?;
        shown.line(&name, &list.sums());
    }
    match dataset.kind().await? {
        DatasetKind::Filesystem => {
            for owner in SpaceOwner::ALL {
                shown.line(&name, &dataset.space_by_owner(owner).await?);
            }
            let files = FileSystem::open(dataset).await?;
            files_of(&files, shown).await
        }
        DatasetKind::Volume => {
            let volume = Volume::open(dataset).await?;
            let sum = sum(volume.stream()).await;
            shown.line(&name, &(volume.size(), volume.block_size()));
            shown.result(&name, &sum);
            Ok(())
        }
        DatasetKind::Other => Ok(()),
    }
}

async fn files_of(files: &Arc<FileSystem>, shown: &mut Shown) -> Result<()> {
    shown.line("files", &(files.version(), files.rules(), files.registry()));
    shown.line("files", &(files.unlinked().await?, files.domains().await?));
    let mut rest = vec![(files.name().to_owned(), files.root().await?)];
    while let Some((path, node)) = rest.pop() {
        self::node(&path, &node, shown).await;
        if !node.is_directory() {
            continue;
        }
        let mut entries = node.entries().await?;
        let mut names = Vec::new();
        while let Some(entry) = entries.next().await? {
            if !matches!(&entry.name[..], b"." | b"..") {
                names.push(entry.name);
            }
        }
        for name in names {
            let path = format!("{path}/{}", name.escape_ascii());
            match node.lookup(&name).await {
                Ok(node) => rest.push((path, node)),
                Err(error) => shown.error(&path, &error),
            }
        }
    }
    Ok(())
}

async fn node(path: &str, node: &Node, shown: &mut Shown) {
    shown.nodes += 1;
    shown.line(path, &(node.object(), node.kind(), node.stat_blocks(), node.attributes()));
    let acl = node.acl().await;
    shown.aces += acl.as_ref().map_or(0, |acl| acl.entries.len() as u64);
    shown.result(path, &acl);
    match node.kind() {
        FileKind::Symlink => shown.result(path, &node.target().await),
        FileKind::Regular => {
            let sum = match node.stream() {
                Ok(stream) => sum(stream).await,
                Err(error) => Err(error),
            };
            shown.result(path, &sum);
        }
        _ => {}
    }
    let names = node.xattr_names().await;
    shown.result(path, &names);
    for found in names.unwrap_or_default() {
        shown.result(path, &node.xattr(&found.name).await.map(|value| value.map(|v| v.to_vec())));
    }
}

/// A checksum of the bytes, and of the places of the holes.
async fn sum(mut stream: FileStream) -> Result<u64> {
    let mut sum = DefaultHasher::new();
    while let Some(extent) = stream.next().await {
        let extent = extent.map_err(|lost| lost.error)?;
        sum.write_u64(extent.offset);
        sum.write_u64(extent.len);
        sum.write(extent.data.as_deref().unwrap_or_default());
    }
    Ok(sum.finish())
}
