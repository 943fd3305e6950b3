//! Raw streams: encrypted datasets are received without their keys.

use std::sync::Arc;

use cenote_engine::ReceiveRefusal;
use cenote_pool::Pool;
use cenote_rt::{Kind, block_on};
use cenote_stream::ReceiveOptions;
use cenote_testkit::compare;
use cenote_testkit::golden::{Golden, golden};
use cenote_testkit::streams::recorded_stream;

use crate::fixture::{Target, entries, into, without_root_number};

/// Loads the key of a received encryption root.
async fn load_key(pool: &Arc<Pool>, golden: &Golden, name: &str, file: &str) {
    let key = std::fs::read(golden.key_file(file)).unwrap();
    let key = key.strip_suffix(b"\n").unwrap_or(&key);
    pool.load_key(&pool.dataset(name).await.unwrap(), key).await.unwrap();
}

/// The streams are received without the key, and have the sender's contents with it.
#[test]
fn raw_streams_give_what_the_sender_has() {
    let Some(golden) = golden("g-send2") else { return };
    for (streams, label) in [(&["enc-raw"][..], "e@1"), (&["enc-raw", "enc-raw-inc"], "e@2")] {
        block_on(2, async {
            let target = Target::new().await;
            for name in streams {
                let stream = recorded_stream(&golden, name);
                target.receive(&stream.bytes, &into("tank/got")).await.unwrap();
            }
            let locked = target.engine.head("tank/got").await.unwrap_err();
            assert_eq!(locked.kind(), Kind::KeyUnavailable, "{locked:?}");
            let (pool, _) = target.judge(&format!("{streams:?}"), &["-dddd"]).await;
            load_key(&pool, &golden, "tank/got", "pass").await;
            let wanted = without_root_number(golden.manifest(label));
            let snapshot = label.split_once('@').unwrap().1;
            for name in ["tank/got", &format!("tank/got@{snapshot}")] {
                let ours = without_root_number(entries(&pool, name).await);
                compare::assert_entries(&format!("{streams:?}: {name}"), &ours, &wanted);
            }
        })
        .unwrap();
    }
}

/// What does not fit the key or the source is refused, and changes nothing.
#[test]
fn raw_streams_that_do_not_fit_are_refused() {
    let Some(golden) = golden("g-send2") else { return };
    let stream = |name: &str| recorded_stream(&golden, name).bytes;
    block_on(2, async {
        let target = Target::new().await;
        target.receive(&stream("enc-raw"), &into("tank/raw")).await.unwrap();
        target.receive(&stream("enc-plain"), &into("tank/plain")).await.unwrap();
        let forced = |name: &str| {
            let snapshot = Some("other".into());
            ReceiveOptions { is_forced: true, snapshot, ..into(name) }
        };
        let refused = [
            ("enc-raw", forced("tank/raw"), ReceiveRefusal::ReplacesEncrypted),
            ("enc-raw", forced("tank/plain"), ReceiveRefusal::ReplacesEncrypted),
            ("full", forced("tank/raw"), ReceiveRefusal::ReplacesEncrypted),
            ("enc-raw-inc", into("tank/plain"), ReceiveRefusal::RawOntoPlain),
            ("enc-plain-inc", into("tank/raw"), ReceiveRefusal::KeyNotLoaded),
            ("enc-raw-inc", into("tank/new"), ReceiveRefusal::TargetMissing),
        ];
        for (name, options, refusal) in refused {
            let error = target.receive(&stream(name), &options).await.unwrap_err();
            assert_eq!(error.cause(), Some(&refusal), "{name}: {error:?}");
        }
        target.judge("refusals", &["-dddd"]).await;
    })
    .unwrap();
}
