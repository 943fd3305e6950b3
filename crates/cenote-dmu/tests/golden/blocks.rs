//! Scrubs, reads and streams every block of the golden pools; checks sums of lists and maps.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::{Bpobj, Deadlist, Dnode, ObjSet, SpaceMap};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::spacemap::{Action, Geometry, Item};
use cenote_rt::{BoxFuture, Kind, Result};
use cenote_testkit::golden;
use sha2::{Digest, Sha256};

use crate::pool::Pool;
use crate::pools;

#[test]
fn every_copy_of_every_block_is_right() {
    for golden in pools() {
        let (blocks, bad) = cenote_rt::block_on(2, async {
            let pool = Pool::open(&golden.devices()).await;
            let mut all = Vec::new();
            for set in pool.sets().await.into_values() {
                all.push(*set.root());
                gather_set(&set, &mut all).await;
            }
            let mut seen = BTreeSet::new();
            let mut bad = 0;
            for bp in &all {
                let Some(dva) = bp.dva(0) else { continue };
                if seen.insert((dva, bp.physical_birth())) {
                    let report =
                        pool.store.scrub(bp, &cenote_block::Grounds::Offline).await.unwrap();
                    assert!(report.is_readable(), "{}: {}", golden.name(), bp.verbose());
                    bad += report.bad.len();
                }
            }
            (seen.len(), bad)
        })
        .unwrap();
        println!("{}: {blocks} blocks, {bad} bad parts", golden.name());
        // The damage of g-degraded lies beside its allocated blocks.
        assert_eq!(bad, 0, "{}", golden.name());
    }
}

#[test]
fn every_object_reads_the_same_in_every_way() {
    for golden in pools() {
        let (objects, bytes) = cenote_rt::block_on(2, async {
            let pool = Pool::open(&golden.devices()).await;
            let (mut count, mut bytes) = (0, 0);
            for set in pool.sets().await.into_values() {
                let mut objects = set.dnodes(0);
                while let Some(dnode) = objects.next().await {
                    let dnode = dnode.unwrap();
                    match compare_ways(&dnode).await {
                        Ok(len) => bytes += len,
                        Err(error) => assert_eq!(error.kind(), expected(&set), "{error}"),
                    }
                    count += 1;
                }
            }
            let stats = pool.store.cache_stats();
            assert!(stats.peak_bytes <= stats.capacity_bytes, "{stats:?}");
            (count, bytes)
        })
        .unwrap();
        println!("{}: {objects} objects, {bytes} bytes", golden.name());
    }
}

/// How reading may fail: because the key is missing, or because the data was redacted.
fn expected(set: &ObjSet) -> Kind {
    if set.is_locked() { Kind::KeyUnavailable } else { Kind::Io }
}

/// Reads an object block by block, and as a stream from an odd offset; at most the first 4 MiB.
pub(crate) async fn compare_ways(dnode: &Arc<Dnode>) -> Result<u64> {
    let size = dnode.geometry().block_size;
    let len = dnode.geometry().byte_count().min(4 << 20);
    let mut whole = Vec::with_capacity(len as usize);
    for blkid in 0..len.div_ceil(size) {
        match dnode.read_block(0, blkid).await? {
            Some(block) => whole.extend_from_slice(&block),
            None => whole.resize(whole.len() + size as usize, 0),
        }
    }
    whole.truncate(len as usize);
    let start = len.min(77);
    let mut streamed = Vec::new();
    let mut next_data = None;
    let mut stream = dnode.stream(start..len);
    while let Some(extent) = stream.next().await {
        let extent = extent?;
        assert_eq!(extent.offset, start + streamed.len() as u64, "extents are in order");
        match &extent.data {
            Some(data) => {
                next_data = next_data.or(Some(extent.offset));
                assert_eq!(data.len() as u64, extent.len);
                streamed.extend_from_slice(data);
            }
            None => streamed.resize(streamed.len() + extent.len as usize, 0),
        }
    }
    assert!(streamed == whole[start as usize..], "object {}: stream differs", dnode.object());
    if let Some(next_data) = next_data {
        assert_eq!(dnode.next_data(start).await?, Some(next_data));
    }
    let middle = (len / 3, (len / 2) as usize);
    let part = dnode.read_at(middle.0, middle.1).await?;
    assert!(part[..] == whole[middle.0 as usize..][..middle.1], "a part differs");
    Ok(len)
}

#[test]
fn volumes_are_as_the_kernel_read_them() {
    for golden in pools() {
        // The checksums of this pool are of the state after the replay of its log.
        let has_log = golden.name() == "g-zil";
        for label in golden.volume_labels() {
            let wanted = golden.volume_sum(&label);
            let sums = cenote_rt::block_on(2, async {
                volume_sums(&Pool::open(&golden.devices()).await).await
            });
            let sums = sums.unwrap();
            let is_there = sums.contains(&(wanted.size, wanted.sha256.clone()));
            // Without its key an encrypted volume cannot be read.
            assert!(
                is_there || has_log || golden.name() == "g-crypt",
                "{}: {label}",
                golden.name()
            );
        }
    }
}

async fn volume_sums(pool: &Pool) -> BTreeSet<(u64, String)> {
    let mut sums = BTreeSet::new();
    for set in pool.sets().await.into_values() {
        if set.kind() != ObjSetType::Zvol || set.is_locked() {
            continue;
        }
        let properties = cenote_dmu::Zap::open(&set, 2).await.unwrap();
        let size = properties.require_u64("size").await.unwrap();
        let data = set.dnode(1).await.unwrap();
        let mut hash = Sha256::new();
        let mut done = 0;
        let mut stream = data.stream(0..size);
        let zeros = vec![0; 1 << 20];
        while let Some(extent) = stream.next().await {
            let extent = extent.unwrap();
            match &extent.data {
                Some(data) => hash.update(data),
                None => zero(&mut hash, extent.len, &zeros),
            }
            done += extent.len;
        }
        zero(&mut hash, size - done, &zeros);
        let words = hash.finalize();
        let sum = words.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        sums.insert((size, sum));
    }
    sums
}

fn zero(hash: &mut Sha256, mut len: u64, zeros: &[u8]) {
    while len > 0 {
        let part = len.min(zeros.len() as u64);
        hash.update(&zeros[..part as usize]);
        len -= part;
    }
}

#[test]
fn an_encrypted_pool_opens_with_its_keys() {
    let Some(golden) = golden::golden("g-crypt") else { return };
    cenote_rt::block_on(2, async {
        let pool = Pool::unlocked(&golden).await;
        let mut encrypted = 0;
        for set in pool.sets().await.into_values() {
            assert!(!set.is_locked());
            encrypted += u64::from(set.is_encrypted());
            let mut objects = set.dnodes(0);
            while let Some(dnode) = objects.next().await {
                let dnode = dnode.unwrap();
                dnode.bonus().unwrap();
                dnode.spill().await.unwrap();
                compare_ways(&dnode).await.unwrap();
                if dnode.phys().object_type.is_zap() {
                    cenote_dmu::Zap::of(dnode).await.unwrap().to_vec().await.unwrap();
                }
            }
        }
        assert_eq!(encrypted, 6);
        let volume = golden.volume_sum("vol");
        assert!(volume_sums(&pool).await.contains(&(volume.size, volume.sha256)));
    })
    .unwrap();
}

#[test]
fn space_maps_and_lists_add_up() {
    for golden in pools() {
        let (maps, lists) = cenote_rt::block_on(2, async {
            let pool = Pool::open(&golden.devices()).await;
            let (mut maps, mut lists) = (0, 0);
            let mut objects = pool.mos.dnodes(0);
            while let Some(dnode) = objects.next().await {
                let dnode = dnode.unwrap();
                match dnode.phys().object_type {
                    ObjectType::SPACE_MAP => {
                        check_space_map(&pool.mos, dnode.object()).await;
                        maps += 1;
                    }
                    ObjectType::BPOBJ => {
                        check_bpobj(&pool, dnode.object()).await;
                        lists += 1;
                    }
                    ObjectType::DEADLIST => {
                        check_deadlist(&pool.mos, dnode.object()).await;
                        lists += 1;
                    }
                    _ => {}
                }
            }
            (maps, lists)
        })
        .unwrap();
        println!("{}: {maps} space maps, {lists} lists", golden.name());
        assert!(maps > 0 && lists > 0);
    }
}

async fn check_space_map(mos: &Arc<ObjSet>, object: u64) {
    let map = SpaceMap::open(mos, object).await.unwrap();
    let mut units = 0_i64;
    let geometry = Geometry { start: 0, size: u64::MAX, shift: 0 };
    map.for_each(geometry, |item| {
        if let Item::Entry(entry) = item {
            let sign = if entry.action == Action::Alloc { 1 } else { -1 };
            units += sign * entry.size as i64;
        }
        Ok(())
    })
    .await
    .unwrap();
    // The unit is known only to the map's owner: any power of two is accepted.
    let allocated = map.phys().allocated;
    let is_right = [0, 9, 12, 13].iter().any(|shift| units << shift == allocated);
    assert!(is_right, "object {object}: {units} units, header says {allocated} bytes");
}

async fn check_bpobj(pool: &Pool, object: u64) {
    let list = Bpobj::open(&pool.mos, object).await.unwrap();
    let (mut bytes, mut comp) = (0_i64, 0_i64);
    let is_livelist = list.phys().num_freed > 0;
    list.for_each(|bp| {
        let sign = if is_livelist && bp.words()[11] & 1 == 1 { -1 } else { 1 };
        let dsize = |dva: cenote_ondisk::blkptr::Dva| {
            let ratio = pool.store.tree().deflate_ratio(dva.vdev.into()).unwrap_or(512);
            (dva.asize >> 9) * ratio
        };
        bytes += sign * bp.dvas().map(dsize).sum::<u64>() as i64;
        comp += sign * bp.psize() as i64;
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!((bytes, comp), (list.phys().bytes as i64, list.phys().comp as i64), "{object}");
}

async fn check_deadlist(mos: &Arc<ObjSet>, object: u64) {
    let list = Deadlist::open(mos, object).await.unwrap();
    let keys: Vec<u64> = list.entries().unwrap().keys().copied().collect();
    let first = keys.first().copied().unwrap_or(0);
    assert_eq!(list.range_sums(first, u64::MAX).await.unwrap(), list.sums(), "{object}");
    // Entries come by ascending key, so births never fall below an earlier key.
    let mut index = 0;
    let mut count = 0;
    list.for_each(|bp| {
        count += 1;
        index = index.max(keys.partition_point(|key| *key < bp.allocation_birth()));
        Ok(())
    })
    .await
    .unwrap();
    assert!(count == 0 || (1..=keys.len()).contains(&index), "{object}: {count} entries");
}

/// All pointers of a set's objects, of all levels.
pub(crate) async fn gather_set(set: &Arc<ObjSet>, all: &mut Vec<BlockPtr>) {
    gather(set.meta_dnode(), all).await;
    for dnode in [set.user_used(), set.group_used(), set.project_used()].into_iter().flatten() {
        gather(&dnode, all).await;
    }
    let mut objects = set.dnodes(0);
    while let Some(dnode) = objects.next().await {
        gather(&dnode.unwrap(), all).await;
    }
}

async fn gather(dnode: &Dnode, all: &mut Vec<BlockPtr>) {
    let top = dnode.geometry().levels - 1;
    for (index, pointer) in dnode.pointers().enumerate() {
        descend(dnode, pointer, top, index as u64, all).await;
    }
    all.extend(dnode.phys().spill());
}

fn descend<'a>(
    dnode: &'a Dnode,
    pointer: BlockPtr,
    level: u8,
    blkid: u64,
    all: &'a mut Vec<BlockPtr>,
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        if pointer.is_hole() || pointer.is_embedded() {
            return;
        }
        all.push(pointer);
        if level > 0 {
            let block = dnode.read_pointer(&pointer, level, blkid, false).await.unwrap();
            let span = block.len() as u64 / 128;
            for (index, child) in BlockPtr::all_in(&block).enumerate() {
                descend(dnode, child, level - 1, blkid * span + index as u64, all).await;
            }
        }
    })
}
