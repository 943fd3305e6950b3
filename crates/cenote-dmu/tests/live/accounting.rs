//! Space and objects by owner: after every txg they equal a count over all objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::live::{Live, ObjectSpec, Owned, Owner, OwnerProbe};
use cenote_dmu::{Dnode, ObjSet, Zap};
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::{ObjSetFlags, ObjSetType};
use cenote_rt::Rng;

use crate::bench::{Bench, Layout};
use crate::walk::walk;

/// Owners stored as three bytes, in the bonus or, if that is empty, in the spill block.
struct Bytes;

impl OwnerProbe for Bytes {
    fn owner(&self, dnode: &DnodePhys, spill: Option<&[u8]>) -> Owned {
        let bytes = match (dnode.bonus(), spill) {
            ([], None) => return Owned::InSpill,
            ([], Some(spill)) => spill,
            (bonus, _) => bonus,
        };
        let [uid, gid, project] = [0, 1, 2].map(|index| u64::from(bytes[index]));
        Owned::By(Owner { uid: uid << 20, gid, project })
    }
}

#[test]
fn totals_by_owner_are_exact() {
    let seed = cenote_testkit::rng::seeded("accounting", 0xacc).next_u64();
    cenote_rt::block_on(2, accounted(Rng::seeded(seed))).unwrap();
}

async fn accounted(mut rng: Rng) {
    let bench = Bench::new(Layout::RaidZ { ashift: 9, width: 4 }, 5);
    let live = Live::create(bench.blocks(), 54, ObjSetType::Zfs);
    let mut objects = Vec::new();
    for txg in 4..24 {
        for _ in 0..rng.below(30) {
            change(&live, txg, &mut objects, &mut rng).await;
        }
        bench.pass(&live, txg, 1, Some(&Bytes)).await;
        if rng.below(3) == 0 {
            // As for a set created by a sync task: a second pass in the same txg.
            change(&live, txg, &mut objects, &mut rng).await;
            bench.pass(&live, txg, 2, Some(&Bytes)).await;
        }
        bench.commit(&live, txg);
        let set = ObjSet::open(bench.store.clone(), &live.root(), None, 54).await.unwrap();
        assert_eq!(set.phys().flags, ObjSetFlags::from_bits_retain(7));
        compare(&set).await;
        let walked = walk(&set, txg).await;
        bench.check_alive(&walked.blocks, "accounted");
    }
    assert!(objects.len() > 20);
}

async fn change(live: &Live, txg: u64, objects: &mut Vec<u64>, rng: &mut Rng) {
    let owner = [0; 3].map(|_: u8| rng.below(4) as u8);
    if objects.len() < 10 || rng.below(4) == 0 {
        let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, 4096);
        let spec = match rng.below(5) {
            // An object without an owner.
            0 => spec,
            _ => spec.with_bonus(ObjectType::SA, 168),
        };
        let add = live.apply(txg, |tx| {
            let object = tx.allocate(&spec)?;
            if spec.bonus_len > 0 {
                tx.set_bonus(object, &owner)?;
            }
            Ok(object)
        });
        objects.push(add.await.unwrap());
        return;
    }
    let index = rng.below(objects.len() as u64) as usize;
    let object = objects[index];
    let mut bytes = vec![0; rng.below(20_000) as usize];
    rng.fill(&mut bytes);
    let what = rng.below(6);
    let changed = live.apply(txg, |tx| {
        let has_owner = tx.dnode(object)?.bonus_type == ObjectType::SA;
        match what {
            0 => tx.free(object),
            1 if has_owner => tx.set_bonus(object, &owner),
            2 if has_owner => {
                let mut spill = [0; 512];
                spill[..3].copy_from_slice(&owner);
                spill[3] = 1;
                tx.set_spill(object, Some(&spill))?;
                tx.set_bonus(object, &[])
            }
            3 => tx.free_range(object, 5000, None),
            _ => tx.write(object, 300, &bytes),
        }
    });
    changed.await.unwrap();
    if what == 0 {
        objects.swap_remove(index);
    }
}

/// Counts over all objects and compares.
async fn compare(set: &Arc<ObjSet>) {
    let mut expected: [BTreeMap<String, u64>; 3] = Default::default();
    let mut dnodes = set.dnodes(0);
    while let Some(dnode) = dnodes.next().await {
        let dnode = dnode.unwrap();
        let phys = dnode.phys();
        assert_eq!(phys.flags.bits() & 0xa, 0xa, "flags of object {}", dnode.object());
        if phys.bonus_type != ObjectType::SA {
            continue;
        }
        let spill = dnode.spill().await.unwrap();
        let Owned::By(owner) = Bytes.owner(phys, spill.as_deref()) else { panic!("no owner") };
        for (totals, id) in expected.iter_mut().zip([owner.uid, owner.gid, owner.project]) {
            *totals.entry(format!("{id:x}")).or_default() += 512 + phys.used_bytes();
            *totals.entry(format!("obj-{id:x}")).or_default() += 1;
        }
    }
    let found = [set.user_used(), set.group_used(), set.project_used()];
    for (dnode, expected) in found.into_iter().zip(expected) {
        let found = match dnode {
            Some(dnode) => totals(dnode).await,
            None => BTreeMap::new(),
        };
        assert_eq!(found, expected);
    }
}

async fn totals(dnode: Arc<Dnode>) -> BTreeMap<String, u64> {
    let zap = Zap::of(dnode).await.unwrap();
    let mut entries = zap.entries();
    let mut totals = BTreeMap::new();
    while let Some(entry) = entries.next().await.unwrap() {
        let name = String::from_utf8(entry.key.name().unwrap().to_vec()).unwrap();
        totals.insert(name, entry.value.single().unwrap());
    }
    totals
}
