//! Real damage is repaired during writes by live readers and open snapshots. Views count it and do
//! not repair it.

use std::sync::Arc;

use cenote_device::Device;
use cenote_vdev::DATA_START;

use crate::world::{self, BLOCK, DATASET, FIXED, Layout, World, salt_of};

/// Kind of reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    Live,
    Snapshot,
    View,
}

/// Overwrites one side of the blocks that do not change.
async fn spoil(world: &World) {
    let view = world.engine().view().await.unwrap();
    let set = view.dataset(DATASET).await.unwrap().open().await.unwrap();
    let dnode = set.dnode(world.object).await.unwrap();
    for block in world.blocks() - FIXED..world.blocks() {
        let pointer = dnode.block_pointer(0, block).await.unwrap().expect("it was written");
        let offset = DATA_START + pointer.dva(0).unwrap().offset;
        let rubbish = cenote_rt::Buf::from(vec![0x5a; 512]);
        world.devices[0].write(offset, vec![rubbish]).await.unwrap();
    }
}

async fn read_all(world: &World, reader: Reader) {
    // Both sides of a mirror are read in the course of this.
    for _ in 0..4 {
        world.engine().store().clear_cache();
        let (first, end) = (world.blocks() - FIXED, world.blocks());
        let open = world.engine().snapshots().open(&format!("{DATASET}@kept")).await.unwrap();
        let view = world.engine().view().await.unwrap();
        let set = match reader {
            Reader::Live => None,
            Reader::Snapshot => Some(Arc::clone(open.contents())),
            Reader::View => Some(view.dataset(DATASET).await.unwrap().open().await.unwrap()),
        };
        for block in first..end {
            let bytes = match &set {
                None => {
                    let head = world.head();
                    let live = head.live();
                    let read =
                        live.inspect(|tx| tx.read(world.object, block * BLOCK, BLOCK as usize));
                    read.await.unwrap()
                }
                Some(set) => {
                    let dnode = set.dnode(world.object).await.unwrap();
                    dnode.read_at(block * BLOCK, BLOCK as usize).await.unwrap().to_vec()
                }
            };
            assert_eq!(salt_of(block, &bytes), 1, "block {block}");
        }
    }
}

fn run(reader: Reader) {
    cenote_rt::simulate(world::machine(7, None), async {
        let world = World::new(Layout::Mirror, 5, 7).await;
        world.engine().snapshots().create(vec![format!("{DATASET}@kept")]).await.unwrap();
        spoil(&world).await;
        let churned = Arc::clone(&world);
        let churn = cenote_rt::spawn(async move { churned.churn(0..10).await });
        read_all(&world, reader).await;
        churn.await.unwrap();
        let stats = world.engine().tree().leaves().next().unwrap().1.stats();
        let may_repair = reader != Reader::View;
        assert!(stats.checksum_errors > 0, "{reader:?}: {stats:?}");
        assert_eq!(stats.repairs > 0, may_repair, "{reader:?}: {stats:?}");
    })
    .unwrap();
}

#[test]
fn damage_is_repaired_by_live_readers() {
    run(Reader::Live);
}

#[test]
fn damage_of_an_open_snapshot_is_repaired() {
    run(Reader::Snapshot);
}

#[test]
fn damage_is_counted_but_not_repaired_by_views() {
    run(Reader::View);
}
