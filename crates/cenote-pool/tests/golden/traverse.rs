//! The order of the traversal on golden pools: a walk started anywhere visits what a whole walk
//! visits from there on, and a walk with parents last visits the same blocks.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

use std::sync::Arc;

use cenote_dmu::SPILL_BLKID;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_OBJSET};
use cenote_pool::import::{self, ScanOptions};
use cenote_pool::traverse::{self, Damage, Flow, Mark, Options, Order, Visitor};
use cenote_pool::{OpenOptions, Pool};
use cenote_rt::Result;
use cenote_testkit::golden;

/// Objects in a block of dnodes.
const SLOTS: u64 = 32;

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

async fn places(pool: &Arc<Pool>, order: Order, start: Option<Mark>) -> Vec<Bookmark> {
    let mut places = Places::default();
    let options = Options { order, start, ..Options::default() };
    traverse::pool(pool, options, &mut places).await.unwrap();
    places.0
}

/// Returns the mark at a place: data blocks, blocks of dnodes and object sets have one.
fn mark(place: &Bookmark) -> Option<Mark> {
    let &Bookmark { objset, object, level, blkid } = place;
    match (level, object) {
        (LEVEL_OBJSET, _) => Some(Mark { objset, object: 0, blkid: 0 }),
        (0, 0) => Some(Mark { objset, object: blkid * SLOTS, blkid: 0 }),
        (0, _) if blkid != SPILL_BLKID => Some(Mark { objset, object, blkid }),
        _ => None,
    }
}

#[test]
fn traverse_from_a_mark_visits_the_remaining_blocks() {
    for name in ["g-basic", "g-zvol", "g-crypt"] {
        let Some(golden) = golden(name) else { continue };
        let images = golden.images();
        cenote_rt::block_on(2, async {
            let scan = import::scan(&ScanOptions { paths: vec![images] }).await.unwrap();
            let candidate = scan.find(name).unwrap();
            let pool = Pool::open(candidate, &OpenOptions::default()).await.unwrap();
            let whole = places(&pool, Order::Down, None).await;
            for (index, place) in whole.iter().enumerate().step_by(13) {
                // The first block of dnodes begins where its object set does.
                let Some(start) = mark(place).filter(|mark| mark.object != 0) else { continue };
                // Parents that begin at the mark are visited again.
                let starts_there = |place: &Bookmark| {
                    mark(place).map_or_else(|| begins(place, &start), |mark| mark == start)
                };
                let before = whole[..index].iter().rev();
                let from = index - before.take_while(|place| starts_there(place)).count();
                let rest = places(&pool, Order::Down, Some(start)).await;
                let differs = rest.iter().zip(&whole[from..]).find(|(a, b)| a != b);
                assert!(rest == whole[from..], "{name}: from {start:?}: {differs:?}");
            }
            let mut up = places(&pool, Order::Up, None).await;
            assert_eq!(up.last().map(|place| place.level), Some(LEVEL_OBJSET), "{name}");
            let mut down = whole;
            up.sort_unstable();
            down.sort_unstable();
            assert!(up == down, "{name}");
        })
        .unwrap();
    }
}

/// Whether an indirect block begins at the mark, according to its number.
fn begins(place: &Bookmark, mark: &Mark) -> bool {
    let is_there = place.objset == mark.objset && place.level > 0;
    let is_own = place.object == mark.object
        && mark.blkid >> (10 * place.level) == place.blkid
        && place.blkid << (10 * place.level) == mark.blkid;
    let is_of_dnodes = place.object == 0
        && mark.blkid == 0
        && place.blkid << (10 * place.level) == mark.object / SLOTS
        && mark.object.is_multiple_of(SLOTS);
    is_there && (is_own || is_of_dnodes)
}
