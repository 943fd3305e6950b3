//! Memory copies of random page reads from long records, measured in bytes of allocated buffers:
//! the device fills one buffer, columns are joined in another, decompression fills another. The
//! last one is cached, and the page is copied out of it once.

use cenote_poolkit::PoolBuilder;
use cenote_rt::buf::bytes_made;
use cenote_rt::{Rng, World, simulate, tunables};

use crate::ahead::File;
use crate::fixture::Fixture;

const RECORD: u64 = 128 << 10;
const RECORDS: u64 = 64;
const PAGE: u64 = 4096;
const PAGES: u64 = RECORDS * RECORD / PAGE;
const OFF: u64 = 2;
const LZ4: u64 = 15;

/// Half noise: lz4 compresses it to a little more than half.
fn content() -> Vec<u8> {
    let mut bytes = vec![0; (RECORD * RECORDS) as usize];
    let mut rng = Rng::seeded(2);
    for part in bytes.chunks_mut(64) {
        rng.fill(&mut part[..32]);
    }
    bytes
}

/// Reads a page and checks it; returns the bytes of allocated buffers.
async fn page(file: &File, content: &[u8], number: u64) -> u64 {
    let mut into = vec![0; PAGE as usize];
    let (offset, before) = (number * PAGE, bytes_made());
    let count = file.fixture.mount.read(file.object, offset, &mut into).await.unwrap();
    let made = bytes_made() - before;
    assert_eq!((count as u64, &into[..]), (PAGE, &content[offset as usize..][..PAGE as usize]));
    made
}

#[test]
fn a_page_costs_a_record_once_and_then_nothing() {
    let disk = PoolBuilder::file_system().with_size(128 << 20);
    let raidz = PoolBuilder::of("raidz1", 3).with_file_system().with_ashift(12).with_seed(7);
    let raidz = raidz.with_size(128 << 20);
    // The buffers that a record takes, in units of its stored size.
    for (builder, compression, stored_times, is_expanded) in [
        (&disk, OFF, 1, false),
        (&disk, LZ4, 1, true),
        (&raidz, OFF, 2, false),
        (&raidz, LZ4, 2, true),
    ] {
        let tunables = vec![(&tunables::PREFETCH_DISABLE, 1)];
        simulate(World { tunables, ..World::new(8) }, async {
            let (fixture, content) = (Fixture::of(builder).await, content());
            let engine = &fixture.engine;
            engine.properties().set("tank", "compression", compression.into()).await.unwrap();
            let file = File::of(fixture, RECORD, &content).await;
            file.cool().await;
            // The path to the records.
            page(&file, &content, 0).await;
            let (mut rng, mut records) = (Rng::seeded(9), 0);
            for _ in 0..300 {
                let (number, before) = (rng.below(PAGES), file.reads());
                let made = page(&file, &content, number).await;
                let read = file.reads() - before;
                records += read;
                let stored = match (read, compression) {
                    (0, _) => 0..=0,
                    (_, OFF) => RECORD..=RECORD,
                    _ => RECORD / 2..=RECORD * 3 / 4,
                };
                let expanded = read * u64::from(is_expanded) * RECORD;
                let expected = stored.start() * stored_times + expanded
                    ..=stored.end() * stored_times + expanded;
                assert!(read <= 1 && expected.contains(&made), "{made} bytes, {read} records");
            }
            // The first record was read before.
            assert!((RECORDS / 2..RECORDS).contains(&records), "{records} records, each once");
        })
        .unwrap();
    }
}
