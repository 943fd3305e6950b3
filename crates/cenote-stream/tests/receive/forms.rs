//! Blocks keep the form in which they were sent: a pool sends what it has received.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::stream::{Record, object_type};
use cenote_ondisk::zap::Value;
use cenote_pool::Pool;
use cenote_rt::{Result, block_on};
use cenote_stream::ReceiveOptions;
use cenote_stream::send::{Payload, RecordSink, SendOptions, SendPlan};
use cenote_testkit::golden::golden;
use cenote_testkit::streams::recorded_stream;

use crate::fixture::{Target, into, substreams};

/// Number of compression `off`.
const OFF: u64 = 2;
/// Number of compression `gzip-1`.
const GZIP_1: u64 = 5;

/// The compressed and embedded blocks of a stream, by object and offset.
type Forms = BTreeMap<(u64, u64), Form>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Form {
    compression: u8,
    is_embedded: bool,
    len: u64,
    payload: Vec<u8>,
}

fn is_file(kind: u32) -> bool {
    object_type(kind) == Some(ObjectType::PLAIN_FILE_CONTENTS)
}

fn note(forms: &mut Forms, record: &Record, payload: &[u8]) {
    match record {
        // Blocks of directories are sent as they are.
        Record::Write(write) if write.compression != 0 && is_file(write.kind) => {
            let payload = payload.to_vec();
            let (compression, len) = (write.compression, write.logical_len);
            let form = Form { compression, is_embedded: false, len, payload };
            forms.insert((write.object, write.offset), form);
        }
        // Spill blocks are sent far beyond the end (spec 07 B15, defect 1).
        Record::WriteEmbedded(embedded) if !embedded.is_spill() => {
            let payload = payload.to_vec();
            let (compression, len) = (embedded.compression, embedded.len);
            let form = Form { compression, is_embedded: true, len, payload };
            forms.insert((embedded.object, embedded.offset), form);
        }
        _ => {}
    }
}

#[derive(Default)]
struct Collected(Forms);

impl RecordSink for Collected {
    async fn put(&mut self, record: &Record, payload: Payload) -> Result<()> {
        note(&mut self.0, record, &payload);
        Ok(())
    }
}

/// Returns the forms of a snapshot's blocks.
async fn forms_of(pool: &Arc<Pool>, snapshot: &str) -> Forms {
    let snapshot = pool.dataset(snapshot).await.unwrap();
    let options =
        SendOptions { large_blocks: true, embedded: true, compressed: true, ..Default::default() };
    let plan = SendPlan::new(&snapshot, None, None, &options, None).await.unwrap();
    let set = plan.open(&snapshot).await.unwrap();
    let mut collected = Collected::default();
    plan.run(&set, &mut collected).await.unwrap();
    collected.0
}

#[test]
fn blocks_keep_their_form_whatever_the_compression_is() {
    let Some(golden) = golden("g-send2") else { return };
    block_on(2, async {
        let mut counts = BTreeMap::new();
        for (stream, snapshot) in
            [("full-Lec", "one"), ("recompressed", "one"), ("emb-ec", "1"), ("large-Lec", "1")]
        {
            let bytes = recorded_stream(&golden, stream).bytes;
            let (items, _) = substreams(&bytes).remove(0);
            let mut sent = Forms::new();
            for item in &items {
                note(&mut sent, &item.record, &item.payload);
            }
            for compression in [OFF, GZIP_1] {
                let target = Target::new().await;
                let props = vec![("compression".to_owned(), Value::U64(compression))];
                let options = ReceiveOptions { props, ..into("tank/got") };
                target.receive(&bytes, &options).await.unwrap();
                let (pool, _) = target.judge(stream, &["-dddd"]).await;
                let ours = forms_of(&pool, &format!("tank/got@{snapshot}")).await;
                for (place, form) in &sent {
                    let what = format!("{stream}, {place:?}, compression {compression}");
                    let mut wanted = form.clone();
                    if !form.is_embedded {
                        // Whole sectors, and fewer than the block has.
                        wanted.payload.resize(form.payload.len().next_multiple_of(512), 0);
                        if wanted.payload.len() as u64 >= form.len {
                            continue;
                        }
                    }
                    let of = |form: &Form| (form.compression, form.is_embedded, form.payload.len());
                    let is_equal = ours.get(place) == Some(&wanted);
                    assert!(
                        is_equal,
                        "{what}: {:?}, not {:?}",
                        ours.get(place).map(of),
                        of(&wanted)
                    );
                    *counts.entry((form.compression, form.is_embedded)).or_insert(0) += 1;
                }
            }
        }
        // Not one of a kind was compared with nothing.
        println!("{counts:?}");
        assert!(counts.keys().any(|(_, is_embedded)| *is_embedded), "{counts:?}");
        let functions = counts.keys().filter(|(_, is_embedded)| !is_embedded).count();
        assert!(functions >= 2, "{counts:?}");
    })
    .unwrap();
}
