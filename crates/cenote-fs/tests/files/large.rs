//! Large directories: cost of an entry, and listing during changes.

use std::collections::BTreeMap;

use cenote_fs::Mount;
use cenote_fs::edit::{NewKind, NewNode};
use cenote_poolkit::PoolBuilder;
use cenote_rt::block_on;
use cenote_testkit::rng::{cases, wants_all};

use crate::fixture::{Fixture, root};

/// Block size of a large directory.
const BLOCK: u64 = 16 << 10;
/// Bytes changed besides the directory's blocks: two inodes.
const INODES: u64 = 4 << 10;
const PAGE: usize = 97;

fn name(number: u64) -> Vec<u8> {
    format!("entry number {number}").into_bytes()
}

async fn add(mount: &Mount, dir: u64, number: u64) {
    let new = NewNode::new(NewKind::Regular, 0o644);
    mount.create(&root(), dir, &name(number), &new).await.unwrap();
}

/// Returns the bytes changed by adding one entry, and by removing one.
async fn price(fixture: &Fixture, dir: u64, number: u64) -> [u64; 2] {
    let (mount, engine) = (&fixture.mount, &fixture.engine);
    let dirty = || mount.head().live().dirty_bytes(engine.open_txg());
    engine.sync().await.unwrap();
    add(mount, dir, number).await;
    let more = dirty();
    engine.sync().await.unwrap();
    mount.unlink(&root(), dir, &name(number)).await.unwrap();
    [more, dirty()]
}

#[test]
fn large_directories_have_constant_cost_per_entry() {
    block_on(2, async {
        let count = cases(6000, 1_000_000);
        let size = if wants_all() { 16 << 30 } else { 1 << 30 };
        let fixture = Fixture::of(&PoolBuilder::file_system().with_size(size)).await;
        let dir = fixture.dir(fixture.mount.root(), "large").await.unwrap().object;
        let mut asked = 0;
        let start = cenote_rt::monotonic();
        let tell = |what: &str, number: u64| {
            let seconds = cenote_rt::monotonic().saturating_sub(start).as_secs_f64();
            println!("{what}: {number} of {count}, {seconds:.1} s since the start");
        };
        for number in 0..count {
            add(&fixture.mount, dir, number).await;
            if number % (count / 8) == 0 {
                tell("made", number);
            }
            if number % (count / 8) == count / 16 {
                let prices = price(&fixture, dir, count + number).await;
                // Header and leaf; before that a single block that grows up to 128K.
                let is_fat = number > 2500;
                let most = if is_fat { 2 * BLOCK } else { 128 << 10 } + INODES;
                assert!(prices.iter().all(|price| *price <= most), "{number}: {prices:?}");
                asked += u64::from(is_fat);
            }
        }
        assert!(asked >= 3);
        tell("made", count);
        let mount = &fixture.mount;
        assert_eq!(mount.attributes(dir).await.unwrap().size, count + 2);
        for number in (0..count).step_by(17) {
            mount.lookup(&root(), dir, &name(number)).await.unwrap();
        }
        tell("looked for every 17th", count);
        assert_eq!(all(mount, dir).await.len() as u64, count);
        tell("listed", count);
        for number in (0..count).filter(|number| number % 10 != 0) {
            mount.unlink(&root(), dir, &name(number)).await.unwrap();
        }
        fixture.engine.sync().await.unwrap();
        tell("removed nine of ten", count);
        assert_eq!(all(mount, dir).await.len() as u64, count.div_ceil(10));
        fixture.judge("a large directory", &["-bcc"]).await;
    })
    .unwrap();
}

/// Returns how often each name is listed.
async fn all(mount: &Mount, dir: u64) -> BTreeMap<Vec<u8>, u64> {
    let mut found = BTreeMap::new();
    let mut cookie = 3;
    loop {
        let page = mount.read_dir(&root(), dir, cookie, PAGE).await.unwrap();
        assert!(page.entries.len() <= PAGE);
        for entry in page.entries {
            cookie = entry.cookie;
            *found.entry(entry.name).or_insert(0) += 1;
        }
        if page.is_end {
            return found;
        }
    }
}

#[test]
fn readdir_lists_every_unchanged_name_once_during_changes() {
    block_on(2, async {
        let fixture = Fixture::of(&PoolBuilder::file_system().with_size(512 << 20)).await;
        let mount = &fixture.mount;
        // The second directory starts as one block and becomes a tree while it is listed.
        for (first, grows) in [(cases(4000, 50_000), 7), (500, 400)] {
            let dir = fixture.dir(mount.root(), &format!("d{first}")).await.unwrap().object;
            for number in 0..first {
                add(mount, dir, number).await;
            }
            let (mut seen, mut cookie, mut next, mut gone) = (BTreeMap::new(), 3, first, 1);
            loop {
                let page = mount.read_dir(&root(), dir, cookie, PAGE).await.unwrap();
                for entry in &page.entries {
                    cookie = entry.cookie;
                    *seen.entry(entry.name.clone()).or_insert(0) += 1;
                }
                if page.is_end {
                    break;
                }
                for _ in 0..grows {
                    add(mount, dir, next).await;
                    next += 1;
                }
                // Removes odd names among the original ones.
                for _ in 0..5 {
                    if gone < first {
                        mount.unlink(&root(), dir, &name(gone)).await.unwrap();
                        gone += 2;
                    }
                }
                if wants_all() {
                    fixture.engine.sync().await.unwrap();
                }
            }
            assert!(seen.values().all(|count| *count == 1), "nothing is listed twice");
            for number in (0..first).filter(|number| number % 2 == 0 || *number >= gone) {
                assert!(seen.contains_key(&name(number)), "{number} of {first}");
            }
            assert!(gone > 1 && next > first);
        }
    })
    .unwrap();
}
