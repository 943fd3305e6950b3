//! Prints throughput on memory devices, to compare builds.

use std::time::Instant;

use cenote_fs::edit::{NewKind, NewNode};
use cenote_fs::mount::WriteOptions;
use cenote_poolkit::PoolBuilder;
use cenote_rt::{Rng, block_on};

use crate::fixture::{Fixture, root};

fn rate(what: &str, count: u64, since: Instant) {
    let seconds = since.elapsed().as_secs_f64();
    println!("{what}: {:.0}/s ({seconds:.2} s)", count as f64 / seconds);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it is the time of the host that is measured")]
fn small_files_and_cached_reads() {
    let Some(count) = std::env::var("CENOTE_SPEED").ok().and_then(|n| n.parse::<u64>().ok()) else {
        eprintln!("skipped: CENOTE_SPEED=COUNT is not set");
        return;
    };
    block_on(2, async move {
        let fixture = Fixture::of(&PoolBuilder::file_system().with_size(2 << 30)).await;
        let (mount, top, me) = (&fixture.mount, fixture.mount.root(), root());
        let data = vec![7; 1024];
        let start = Instant::now();
        let mut objects = Vec::new();
        for number in 0..count {
            let new = NewNode::new(NewKind::Regular, 0o644);
            let name = format!("file-{number:08}");
            let made = mount.create(&me, top, name.as_bytes(), &new).await.unwrap();
            mount.write(&me, made.object, 0, &data, WriteOptions::default()).await.unwrap();
            objects.push(made.object);
        }
        rate("create and write 1K", count, start);
        fixture.engine.sync().await.unwrap();
        rate("create and write 1K, synced", count, start);
        let start = Instant::now();
        for number in 0..count {
            let name = format!("file-{number:08}");
            mount.lookup(&me, top, name.as_bytes()).await.unwrap();
        }
        rate("lookup and stat", count, start);
        let start = Instant::now();
        let mut into = vec![0; 1024];
        for object in &objects {
            assert_eq!(mount.read(*object, 0, &mut into).await.unwrap(), 1024);
        }
        rate("read 1K", count, start);
        let start = Instant::now();
        for number in 0..count {
            let name = format!("file-{number:08}");
            mount.unlink(&me, top, name.as_bytes()).await.unwrap();
        }
        fixture.engine.sync().await.unwrap();
        rate("unlink, synced", count, start);

        fixture.engine.properties().set("tank", "recordsize", 8192.into()).await.unwrap();
        fixture.engine.properties().set("tank", "atime", 0.into()).await.unwrap();
        let file = fixture.file(top, "large", b"").await.unwrap().object;
        let chunk = vec![5; 1 << 20];
        let start = Instant::now();
        for number in 0..64 {
            let options = WriteOptions::default();
            mount.write(&me, file, number << 20, &chunk, options).await.unwrap();
        }
        fixture.engine.sync().await.unwrap();
        rate("write 1M of 8K records, synced", 64, start);
        let mut into = vec![0; 8192];
        for number in 0..8192 {
            mount.read(file, number * 8192, &mut into).await.unwrap();
        }
        let mut rng = Rng::seeded(1);
        let start = Instant::now();
        for _ in 0..200_000 {
            mount.read(file, rng.below(8192) * 8192, &mut into).await.unwrap();
        }
        rate("cached random reads of 8K", 200_000, start);
    })
    .unwrap();
}
