//! Log records as cenote and OpenZFS's engine read them: the latter claims and replays the logs of
//! a pool in files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use cenote_device::Image;
use cenote_dmu::{Tx, TxResult};
use cenote_engine::zil::{Operation, Replayer};
use cenote_ondisk::zil::Body;
use cenote_oracle::Libzpool;
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::{OpenOptions, Pool};
use cenote_testkit::cuts;
use cenote_testkit::golden::PrivateFolder;
use cenote_testkit::manifest::sha256;

use crate::pools;

/// A replayer that also collects a line for each record, in the format of the oracle's driver.
pub struct RecordLines<R> {
    replayer: R,
    lines: Mutex<BTreeMap<u64, String>>,
}

impl<R> RecordLines<R> {
    /// Returns a replayer that does what this one does.
    pub fn new(replayer: R) -> Self {
        Self { replayer, lines: Mutex::default() }
    }

    /// Returns the lines in the order of the records.
    pub fn lines(self) -> Vec<String> {
        self.lines.into_inner().unwrap().into_values().collect()
    }
}

impl<R: Replayer> Replayer for RecordLines<R> {
    fn replay(&self, tx: &mut Tx<'_>, operation: &Operation<'_>) -> TxResult<()> {
        self.replayer.replay(tx, operation)?;
        // A transaction may run several times.
        self.lines.lock().unwrap().insert(operation.record.seq, line(operation));
        Ok(())
    }
}

fn hex(text: &[u8]) -> String {
    if text.is_empty() {
        return "-".to_owned();
    }
    text.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn line(operation: &Operation<'_>) -> String {
    let record = &operation.record;
    let rest = match &operation.body {
        Body::Create { parent, new, name, target, .. } => {
            let (name, target) = (hex(name), hex(target.unwrap_or_default()));
            let [object, slots] = [new.object, new.slots.into()];
            let owners = format!("{:o} {} {} {}", new.mode, new.uid, new.gid, new.gen_);
            format!("{parent} {object} {slots} {owners} {name} {target}")
        }
        Body::Remove { parent, name } => format!("{parent} {} -", hex(name)),
        Body::Link { parent, object, name } => format!("{parent} {object} {} -", hex(name)),
        Body::Rename { source_parent, target_parent, source, target, .. } => {
            format!("{source_parent} {target_parent} {} {}", hex(source), hex(target))
        }
        Body::Write { object, offset, len, bp, data } => {
            let place = match data {
                Some(_) => "inside",
                None if bp.is_embedded() => "embedded",
                None if bp.is_hole() => "hole",
                None => "block",
            };
            let data = data.or(operation.block.as_deref()).unwrap_or_default();
            format!("{object} {offset} {len} {place} {} {}", data.len(), sha256(data))
        }
        Body::Truncate { object, offset, len } => format!("{object} {offset} {len}"),
        Body::Setattr { object, mask, mode, uid, gid, size, .. } => {
            format!("{object} {mask} {mode} {uid} {gid} {size}")
        }
        Body::SetSaXattr { object, name, value } => {
            format!("{object} {} - {}", hex(name), sha256(value))
        }
        Body::Acl { object, acl } => {
            format!("{object} {} {}", acl.acl.entries.len(), acl.flags)
        }
        body => panic!("{body:?}"),
    };
    format!("{} {} {} {rest}", record.kind_number, record.txg, record.seq)
}

/// The state of the pool "tank" after a crash, in files.
pub struct CrashedPool {
    folder: PrivateFolder,
    devices: usize,
}

impl CrashedPool {
    /// Writes these images to files of a folder with `what` in its name.
    pub fn of(images: &[Image], what: &str) -> Self {
        let folder = PrivateFolder::create(what);
        cuts::unpack(images, folder.path());
        Self { folder, devices: images.len() }
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Has OpenZFS claim all logs, and replay those of `datasets`. Returns the lines of each.
    pub fn replay(&self, theirs: &Libzpool, datasets: &[&str]) -> Vec<Vec<String>> {
        let said = theirs.pool("tank", self.path(), &[&["replay"], datasets].concat());
        let logs = said.stdout.split("log ").skip(1);
        let logs: Vec<Vec<_>> =
            logs.map(|log| log.lines().skip(1).map(str::to_owned).collect()).collect();
        assert_eq!(logs.len(), datasets.len(), "{said}");
        logs
    }

    /// Opens the pool, on which neither cenote nor `zdb` may find errors.
    pub async fn judge(&self) -> Arc<Pool> {
        let paths = (0..self.devices).map(|number| self.path().join(format!("d{number}.img")));
        let scan = scan(&ScanOptions { paths: paths.collect() }).await.unwrap();
        let pool = Pool::open(scan.find("tank").unwrap(), &OpenOptions::default()).await.unwrap();
        pools::assert_no_leaks(&pool).await;
        if let Some(zdb) = cenote_oracle::zdb() {
            let said = zdb.pool("tank", self.path(), &["-bcc"]);
            assert!(said.is_clean(), "{said}");
        }
        pool
    }
}
