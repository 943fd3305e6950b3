//! The order of the traversal on golden pools: a walk from any bookmark visits exactly what a whole
//! walk visits from this block on, and a walk with parents last visits the blocks of one with
//! parents first.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_OBJSET, LEVEL_ZIL};
use cenote_pool::import::{self, ScanOptions};
use cenote_pool::traverse::{self, Damage, Flow, Options, Order, Visitor};
use cenote_pool::{OpenOptions, Pool};
use cenote_rt::Result;
use cenote_testkit::golden;

#[derive(Default)]
struct Places(Vec<Bookmark>);

impl Visitor for Places {
    async fn block(&mut self, _bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
        self.0.push(*place);
        Ok(Flow::Continue)
    }

    fn damage(&mut self, damage: Damage) {
        panic!("{damage:?}");
    }
}

async fn places(pool: &Arc<Pool>, order: Order, start: Option<Bookmark>) -> Vec<Bookmark> {
    let mut places = Places::default();
    let options = Options { order, start, ..Options::default() };
    traverse::pool(pool, options, &mut places).await.unwrap();
    places.0
}

#[test]
fn traverse_from_a_bookmark_visits_the_remaining_blocks() {
    for name in ["g-basic", "g-zvol", "g-crypt"] {
        let Some(golden) = golden(name) else { continue };
        let images = golden.images();
        cenote_rt::block_on(2, async {
            let scan = import::scan(&ScanOptions { paths: vec![images] }).await.unwrap();
            let candidate = scan.find(name).unwrap();
            let pool = Pool::open(candidate, &OpenOptions::default()).await.unwrap();
            let mut walks = Vec::new();
            for (order, step) in [(Order::Down, 13), (Order::Up, 17)] {
                let whole = places(&pool, order, None).await;
                for (index, start) in whole.iter().enumerate().step_by(step) {
                    // Logs have no bookmarks: they are walked with the start of their object set.
                    if start.level == LEVEL_ZIL {
                        continue;
                    }
                    let rest = places(&pool, order, Some(*start)).await;
                    let differs = rest.iter().zip(&whole[index..]).find(|(a, b)| a != b);
                    assert!(rest == whole[index..], "{name}: {order:?} {start:?}: {differs:?}");
                }
                walks.push(whole);
            }
            assert_eq!(walks[1].last().map(|place| place.level), Some(LEVEL_OBJSET), "{name}");
            for walk in &mut walks {
                walk.sort_unstable();
            }
            assert!(walks[0] == walks[1], "{name}");
        })
        .unwrap();
    }
}
