//! Logs written by OpenZFS: the pool `g-zil`, exported and as after a crash.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cenote_dmu::{Tx, TxResult, TxStop};
use cenote_engine::Engine;
use cenote_engine::zil::{Operation, Replayer};
use cenote_ondisk::zil::{RecordKind, ZilFlags, ZilHeader};
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::{OpenOptions, Pool, leaks};
use cenote_poolkit::frozen::restore_uberblock;
use cenote_rt::{Error, Kind, Result, block_on};

/// Records the operations; does nothing, or refuses.
#[derive(Default)]
struct Notes {
    kinds: Mutex<BTreeMap<&'static str, usize>>,
    last: Mutex<u64>,
    refuses: bool,
}

impl Replayer for Notes {
    fn replay(&self, _: &mut Tx<'_>, operation: &Operation<'_>) -> TxResult<()> {
        if self.refuses {
            return Err(TxStop::Fail(Error::new(Kind::Unsupported, "not here")));
        }
        let name = operation.record.kind().map_or("?", RecordKind::name);
        *self.kinds.lock().unwrap().entry(name).or_default() += 1;
        let mut last = self.last.lock().unwrap();
        assert!(operation.record.seq > *last, "records come in order");
        *last = operation.record.seq;
        Ok(())
    }
}

async fn open(devices: Vec<PathBuf>) -> Result<Arc<Engine>> {
    let scan = scan(&ScanOptions { paths: devices }).await?;
    Engine::open(scan.find("g-zil").unwrap(), &OpenOptions::default()).await
}

async fn leaked(devices: Vec<PathBuf>) -> Vec<String> {
    let scan = scan(&ScanOptions { paths: devices }).await.unwrap();
    let pool = Pool::open(scan.find("g-zil").unwrap(), &OpenOptions::default()).await.unwrap();
    let lines = leaks::check(&pool).await.unwrap().lines();
    // Leftovers of freezing the pool, which are the same before and after.
    lines.into_iter().filter(|line| !line.contains("bytes found")).collect()
}

#[test]
fn empty_log_of_openzfs_is_claimed() {
    let Some(golden) = cenote_testkit::golden("g-zil") else { return };
    let copy = golden.private_copy();
    block_on(2, async {
        let engine = open(copy.devices()).await.unwrap();
        engine.sync().await.unwrap();
        engine.export().await.unwrap();
    })
    .unwrap();
    let Some(zdb) = cenote_oracle::zdb() else { return };
    for options in [&["-bcc"][..], &["-y"], &["-iiii"]] {
        let said = zdb.pool("g-zil", copy.path(), options);
        assert!(said.is_success(), "zdb {options:?}: {said}");
    }
}

/// With one more uberblock the pool is as after a crash, with a log of 34 blocks.
#[test]
fn log_of_openzfs_is_claimed_and_replayed() {
    let Some(golden) = cenote_testkit::golden("g-zil") else { return };
    let copy = golden.private_copy();
    block_on(2, async {
        restore_uberblock(copy.devices()).await.unwrap();
        let before = leaked(copy.devices()).await;
        let engine = open(copy.devices()).await.unwrap();
        let head = engine.head("g-zil/a").await.unwrap();
        let header = ZilHeader::decode(&head.live().zil_header()).unwrap();
        assert_eq!((header.claim_txg, header.claim_blk_seq), (28, 35));
        assert_eq!(header.flags, ZilFlags::REPLAY_NEEDED | ZilFlags::CLAIM_LR_SEQ_VALID);
        drop((engine, head));
        assert_eq!(leaked(copy.devices()).await, before, "claimed");

        // A replayer that does not know the records leaves the log unchanged.
        let engine = open(copy.devices()).await.unwrap();
        let head = engine.head("g-zil/a").await.unwrap();
        let refusing = Notes { refuses: true, ..Notes::default() };
        let refusal = engine.intent_logs().replay(&head, &refusing).await.unwrap_err();
        assert_eq!(refusal.kind(), Kind::Unsupported);
        assert!(head.log().is_claimed());
        let notes = Notes::default();
        let replayed = engine.intent_logs().replay(&head, &notes).await.unwrap().unwrap();
        assert!(replayed.failure.is_none(), "{replayed:?}");
        println!("{replayed:?} {:?}", notes.kinds.lock().unwrap());
        assert_eq!(replayed.applied + replayed.skipped, 69);
        assert!(!head.log().is_claimed());
        engine.export().await.unwrap();
        assert_eq!(leaked(copy.devices()).await, before, "replayed");
    })
    .unwrap();
}
