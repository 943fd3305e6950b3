//! Objects of the golden pools, compared with the output of OpenZFS's zdb.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod blocks;
mod damage;
mod foreign;
mod forms;
mod pool;
mod unverified;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use cenote_dmu::{Dnode, ObjSet, Zap, ZapStats};
use cenote_ondisk::zap::{Cursor, Entry, Key, MatchKind, NormFlags};
use cenote_rt::Kind;
use cenote_testkit::golden::{self, Golden};

use pool::Pool;

/// Objects as printed by `zdb -dddd -P`, reduced to the facts that an object has itself.
type Facts = BTreeMap<(u64, u64), String>;

#[test]
fn every_object_is_as_zdb_has_it() {
    let Some(zdb) = cenote_oracle::zdb() else { return };
    for golden in pools() {
        let ours = cenote_rt::block_on(2, our_facts(&golden)).unwrap();
        let theirs = zdb_facts(&zdb, &golden);
        assert!(theirs.len() > 50, "{}: zdb lists {} objects", golden.name(), theirs.len());
        for (key, their) in &theirs {
            let our = ours.get(key).map_or("absent", String::as_str);
            assert_eq!(our, their, "{}: object set {}, object {}", golden.name(), key.0, key.1);
        }
        let is_known = |key: &&(u64, u64)| theirs.keys().any(|their| their.0 == key.0);
        let extra = ours.keys().filter(is_known).filter(|key| !theirs.contains_key(key));
        let extra: Vec<_> = extra.collect();
        assert!(extra.is_empty(), "{}: zdb does not know {extra:?}", golden.name());
        let zaps = ours.values().filter(|facts| facts.contains("zap")).count();
        println!("{}: {} objects, {zaps} ZAPs equal", golden.name(), ours.len());
    }
}

/// Runs zdb on a whole pool. zdb 2.3.2 hangs behind the last dataset of a pool with a redacted
/// snapshot and its bookmark; there it is run for one dataset after the other.
fn zdb_facts(zdb: &cenote_oracle::Tool, golden: &Golden) -> Facts {
    const OPTIONS: [&str; 2] = ["-dddd", "-P"];
    if golden.name() != "g-send" {
        return their_facts(&zdb.pool(golden.name(), &golden.images(), &OPTIONS).stdout);
    }
    let list = golden.text("zfs-list.tsv").unwrap();
    let names = list.lines().filter_map(|line| line.split('\t').next());
    names
        .filter(|name| name.contains(['/', '@']) && !name.contains('#'))
        .flat_map(|name| their_facts(&zdb.pool(name, &golden.images(), &OPTIONS).stdout))
        .collect()
}

fn pools() -> Vec<Golden> {
    let wanted = std::env::var("CENOTE_POOL").ok();
    let all = golden::all();
    all.into_iter()
        .filter(|pool| wanted.as_deref().is_none_or(|name| name == pool.name()))
        .collect()
}

async fn our_facts(golden: &Golden) -> Facts {
    facts_of(&Pool::open(&golden.devices()).await, golden.name()).await
}

async fn facts_of(pool: &Pool, name: &str) -> Facts {
    let mut all = Facts::new();
    for (id, set) in pool.sets().await {
        let mut count = 0;
        let mut objects = set.dnodes(0);
        while let Some(dnode) = objects.next().await {
            let dnode = dnode.unwrap();
            all.insert((id, dnode.object()), facts(&set, &dnode).await);
            count += 1;
        }
        assert_eq!(count, set.object_count(), "{name} set {id}");
        let special = [set.user_used(), set.group_used(), set.project_used()];
        for dnode in special.into_iter().flatten() {
            all.insert((id, dnode.object()), facts(&set, &dnode).await);
        }
    }
    all
}

async fn facts(set: &ObjSet, dnode: &Arc<Dnode>) -> String {
    let phys = dnode.phys();
    let mut text = format!(
        "{} {} {} {} {} maxblkid {}",
        phys.nlevels,
        phys.indirect_block_size(),
        phys.data_block_size(),
        phys.len(),
        phys.object_type,
        phys.maxblkid
    );
    if phys.object_type.is_zap() {
        let zap = match Zap::of(Arc::clone(dnode)).await {
            Ok(zap) => zap,
            Err(error) if set.is_locked() && error.kind() == Kind::KeyUnavailable => return text,
            Err(error) => panic!("{error}"),
        };
        let mut count = 0;
        let mut entries = zap.entries();
        let mut before = None;
        while let Some(entry) = entries.next().await.unwrap() {
            assert!(before.is_none_or(|before| before < entry.cursor()), "order of entries");
            before = Some(entry.cursor());
            check_lookup(&zap, &entry).await;
            if count % 7 == 3 {
                let rest = zap.entries_from(entries.cookie()).next().await.unwrap();
                assert!(rest.is_none_or(|next| next.cursor() > entry.cursor()), "cookie");
            }
            count += 1;
        }
        assert_eq!(entries.cookie(), Cursor::END);
        assert_eq!(count, zap.entry_count());
        match zap.stats().await.unwrap() {
            ZapStats::Micro { block_size, entry_count } => {
                write!(text, " microzap: {block_size} bytes, {entry_count} entries").unwrap();
            }
            ZapStats::Fat(stats) => {
                let header = &stats.header;
                write!(text, " fat zap {} {}", header.entry_count, header.leaf_count).unwrap();
                for histogram in [
                    &stats.leaves_by_pointers,
                    &stats.blocks_by_entries,
                    &stats.blocks_by_fullness,
                    &stats.entries_by_chunks,
                    &stats.buckets_by_entries,
                ] {
                    let shown: Vec<_> =
                        histogram.iter().enumerate().filter(|(_, count)| **count > 0).collect();
                    write!(text, " {shown:?}").unwrap();
                }
            }
        }
    }
    text
}

/// Finds an entry by its key, and by its name in other case if the ZAP folds names.
async fn check_lookup(zap: &Zap, entry: &Entry) {
    let value = match &entry.key {
        Key::Name(name) => zap.lookup(name).await.unwrap(),
        Key::Words(words) => zap.lookup_words(words).await.unwrap(),
    };
    assert_eq!(value.as_ref(), Some(&entry.value), "{:?}", entry.key);
    let (Key::Name(name), normflags) = (&entry.key, zap.hash().normflags) else { return };
    let found = zap.lookup_normalized(name, MatchKind::Normalized).await;
    if normflags.is_empty() {
        assert_eq!(found.unwrap_err().kind(), Kind::Unsupported);
        return;
    }
    assert_eq!(found.unwrap().as_ref(), Some(entry));
    if normflags.contains(NormFlags::TOUPPER) {
        let other = name.to_ascii_uppercase();
        let found = zap.lookup_normalized(&other, MatchKind::Normalized).await.unwrap();
        assert_eq!(found.as_ref(), Some(entry));
        let by_case = zap.lookup_normalized(&other, MatchKind::NormalizedCase).await.unwrap();
        assert_eq!(by_case.is_some(), &other == name);
    }
}

/// Parses the output of zdb. The objects of a set follow its line; the numbers of the three objects
/// in the root block are printed as negative numbers.
fn their_facts(stdout: &str) -> Facts {
    let mut all = Facts::new();
    let mut set = None;
    let mut object: Option<u64> = None;
    let mut histogram: Option<Vec<(usize, u64)>> = None;
    let mut lines = stdout.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("Dataset ") {
            let id = rest.split("], ID ").nth(1).and_then(|rest| rest.split(',').next());
            set = id.and_then(|id| id.parse::<u64>().ok());
            object = None;
            continue;
        }
        let Some(set) = set else { continue };
        if line.starts_with("    Object  lvl ") {
            let line = lines.next().unwrap();
            let words: Vec<&str> = line.split_whitespace().collect();
            let number: i64 = words[0].parse().unwrap();
            object = Some(number as u64).filter(|number| *number != 0);
            let [lvl, iblk, dblk, dnsize] = [words[1], words[2], words[3], words[5]];
            // The type comes last, behind the percentage in use; checksum and compression may
            // follow in brackets.
            let kind = words[8..].join(" ");
            let kind = kind.split(" (").next().unwrap();
            if let Some(object) = object {
                let text = format!("{lvl} {iblk} {dblk} {dnsize} {kind}");
                all.insert((set, object), text);
            }
            continue;
        }
        let Some(text) = object.and_then(|object| all.get_mut(&(set, object))) else { continue };
        let trimmed = line.trim();
        if let Some(number) = trimmed.strip_prefix("dnode maxblkid: ") {
            write!(text, " maxblkid {number}").unwrap();
        } else if trimmed.starts_with("microzap: ") {
            write!(text, " {trimmed}").unwrap();
        } else if trimmed == "Fat ZAP stats:" {
            text.push_str(" fat zap");
        } else if let Some(count) = trimmed.strip_prefix("ZAP entries: ") {
            write!(text, " {count}").unwrap();
        } else if let Some(count) = trimmed.strip_prefix("Leaf blocks: ") {
            write!(text, " {count}").unwrap();
        } else if is_histogram(trimmed) {
            histogram = Some(Vec::new());
        }
        if let Some(rows) = &mut histogram {
            if let Some((bucket, count)) = histogram_row(trimmed)
                && count > 0
            {
                rows.push((bucket, count));
            }
            if lines.peek().is_none_or(|next| histogram_row(next.trim()).is_none()) {
                write!(text, " {rows:?}").unwrap();
                histogram = None;
            }
        }
    }
    all
}

fn is_histogram(line: &str) -> bool {
    [
        "Leafs with 2^n pointers:",
        "Blocks with n*5 entries:",
        "Blocks n/10 full:",
        "Entries with n chunks:",
        "Buckets with n entries:",
    ]
    .contains(&line)
}

/// `3:     12 ****`
fn histogram_row(line: &str) -> Option<(usize, u64)> {
    let (bucket, rest) = line.split_once(':')?;
    let mut words = rest.split_whitespace();
    let count = words.next()?.parse().ok()?;
    if words.next().is_some_and(|stars| !stars.starts_with('*')) {
        return None;
    }
    Some((bucket.parse().ok()?, count))
}
