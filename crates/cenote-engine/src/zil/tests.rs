//! Packing of records, the order of the queue, the states of a chain.

use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::Tx;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::zil::record::records;
use cenote_ondisk::zil::{Body, RecordKind, block_seq};
use cenote_rt::{Buf, BufMut, block_on, oneshot};

use crate::txg::apply::ApplyOptions;
use crate::zil::chain::{BlockState, Chain, Stage, no_header};
use crate::zil::queue::Queue;
use crate::zil::record::{LogRecord, Piece};
use crate::{Engine, testing};

fn data(len: usize) -> Buf {
    let mut buf = BufMut::zeroed(len);
    for (index, byte) in buf.iter_mut().enumerate() {
        *byte = index as u8;
    }
    buf.freeze()
}

#[test]
fn log_write_is_split_at_the_end_of_a_block() {
    for len in [1, 8, 511, 4096, 70_001] {
        let mut piece = Piece::new(9, LogRecord::write(3, 100, data(len)));
        let (mut seq, mut found, mut blocks) = (5, Vec::new(), 0);
        loop {
            let mut block = Vec::new();
            let is_whole = piece.pack(&mut block, 4096 - 184, &mut seq);
            assert!(block.len() <= 4096 - 184 && block.len().is_multiple_of(8));
            let record = records(&block).next().unwrap().unwrap();
            assert_eq!((record.txg, record.seq), (9, seq));
            let body = Body::decode(&record, record.bytes).unwrap();
            let Body::Write { object, offset, data: Some(part), .. } = body else {
                panic!("{body:?}");
            };
            assert_eq!((object, offset), (3, 100 + found.len() as u64));
            found.extend_from_slice(part);
            blocks += 1;
            if is_whole {
                break;
            }
            assert!((100 + found.len()).is_multiple_of(512), "cut inside a sector");
        }
        assert_eq!(found, data(len)[..], "{len} bytes in {blocks} blocks");
    }
}

#[test]
fn log_write_can_point_at_its_blocks() {
    let bp = block(1, 5);
    let record = LogRecord::write_later(3, 1000, 10_000);
    let mut pieces = Piece::new(9, record).by_block(4096);
    let ranges: Vec<_> = pieces.iter().map(Piece::wanted).collect();
    assert_eq!(ranges, [Some(1000..4096), Some(4096..8192), Some(8192..11_000)]);
    let (mut seq, mut block) = (0, Vec::new());
    pieces[0].point_at(bp);
    assert!(pieces[0].pack(&mut block, 192, &mut seq));
    assert!(!pieces[1].pack(&mut block, 192, &mut seq), "its data is not there");
    pieces[1].give(data(4096));
    assert!(pieces[1].pack(&mut block, 8192, &mut seq));
    let bodies: Vec<_> = records(&block).map(|record| record.unwrap()).collect();
    let body = Body::decode(&bodies[0], bodies[0].bytes).unwrap();
    let Body::Write { object: 3, offset: 1000, len: 3096, bp: found, data: None } = body else {
        panic!("{body:?}");
    };
    assert_eq!(found, bp);
    let body = Body::decode(&bodies[1], bodies[1].bytes).unwrap();
    assert!(matches!(body, Body::Write { offset: 4096, data: Some(_), .. }), "{body:?}");
}

#[test]
fn log_sync_waits_for_early_blocks() {
    let mut chain = chain(&[5]);
    chain.hold(6);
    chain.hold(6);
    assert!(!chain.is_unsettled(5) && chain.is_unsettled(6) && chain.is_unsettled(7));
    chain.note_early(6, block(8, 6));
    chain.release(6);
    assert!(chain.is_unsettled(6));
    chain.release(6);
    assert!(!chain.is_unsettled(6) && chain.has_orphans());
    assert!(chain.take_early(5).is_empty());
    assert_eq!(chain.take_early(6).len(), 1);
    assert!(!chain.has_orphans());
}

#[test]
fn log_blocks_before_those_of_a_commit_must_be_written() {
    let mut chain = chain(&[5, 5, 5, 6]);
    for (written, count, want) in
        [(0, 1, Some(3)), (1, 1, None), (1, 2, Some(2)), (3, 3, None), (3, 9, None)]
    {
        for (index, link) in chain.links.iter_mut().rev().skip(1).enumerate() {
            let is_written = index < written;
            link.state = if is_written { BlockState::Written } else { BlockState::Writing };
        }
        assert_eq!(chain.unwritten_of_last(count), want, "{written} are written");
    }
}

#[test]
fn log_records_continue_in_the_next_block() {
    let mut seq = 0;
    let mut piece = Piece::new(9, LogRecord::of_names(RecordKind::Remove, vec![1; 60]));
    assert_eq!((piece.len(), piece.whole_len()), (96, 96));
    let mut block = Vec::new();
    assert!(!piece.pack(&mut block, 88, &mut seq) && block.is_empty() && seq == 0);
    assert!(piece.pack(&mut block, 96, &mut seq) && block.len() == 96 && seq == 1);
}

#[test]
fn log_commit_includes_names_and_its_object() {
    let mut queue = Queue::default();
    let named = || LogRecord::of_names(RecordKind::Remove, vec![0; 16]);
    for (txg, record) in [
        (5, LogRecord::truncate(1, 0, 1)),
        (5, named()),
        (6, LogRecord::truncate(2, 0, 2)),
        (6, LogRecord::truncate(1, 0, 3)),
        (6, named()),
    ] {
        queue.push(txg, record);
    }
    assert_eq!(queue.pull(Some(1)), Some(1));
    let (taken, ticket) = queue.take();
    let taken = taken.unwrap();
    let seen: Vec<_> = taken.iter().map(|queued| (queued.txg, queued.record.object)).collect();
    assert_eq!(seen, [(5, 1), (5, 0), (6, 1), (6, 0)]);
    // Until their result is known, others wait.
    assert_eq!(queue.pull(Some(1)), Some(1));
    assert!(queue.take().0.is_none(), "the first writer never came back");
    queue.finish(ticket);
    assert_eq!(queue.pull(Some(1)), None);
    queue.committed(5);
    assert_eq!(queue.pull(None), Some(2));
    queue.committed(6);
    queue.push(6, named());
    assert_eq!(queue.take().0.map(|records| records.len()), Some(0));
}

/// A block pointer with the fields that the chain uses.
fn block(seq: u64, birth: u64) -> BlockPtr {
    let mut words = [0; 16];
    (words[0], words[1], words[6]) = (8, seq << 12, 0x8009_0902_0007_0007);
    (words[10], words[15]) = (birth, seq);
    BlockPtr::from_words(words)
}

fn chain(births: &[u64]) -> Chain {
    let mut chain = Chain::default();
    chain.adopt(no_header());
    chain.begin([1, 2]);
    for (seq, birth) in (1..).zip(births) {
        assert!(chain.push(block(seq, *birth)));
    }
    chain
}

fn write(chain: &mut Chain, index: usize, max_txg: u64, state: BlockState) {
    let link = &mut chain.links[index];
    (link.max_txg, link.state) = (max_txg, state);
}

#[test]
fn log_blocks_are_freed_after_their_txgs() {
    let mut chain = chain(&[5, 5, 6]);
    write(&mut chain, 0, 5, BlockState::Written);
    write(&mut chain, 1, 6, BlockState::Writing);
    // Blocks allocated in txg 5 can be reached; those of txg 6 not yet.
    assert!(!chain.is_unsettled(5) && chain.is_unsettled(6));
    let step = chain.step(5);
    assert!(step.is_begun && step.freed.iter().map(block_seq).eq([1]));
    assert_eq!(block_seq(&step.header.unwrap().log), 2);
    chain.committed(4);
    assert!(!chain.is_usable);
    chain.committed(5);
    assert!(chain.is_usable);
    write(&mut chain, 0, 6, BlockState::Written);
    let step = chain.step(6);
    assert!(step.freed.iter().map(block_seq).eq([2]) && !step.is_begun);
    // The last one stays, and nothing changes any more.
    let step = chain.step(7);
    assert!(step.freed.is_empty() && step.header.is_none());
}

#[test]
fn retired_log_is_removed_with_its_last_txg() {
    let mut chain = chain(&[5, 5, 7]);
    write(&mut chain, 0, 5, BlockState::Written);
    write(&mut chain, 1, 6, BlockState::Written);
    chain.step(5);
    chain.retire();
    let step = chain.step(6);
    assert!(step.is_ended && step.header == Some(no_header()));
    assert!(step.freed.iter().map(block_seq).eq([2]));
    assert_eq!(chain.stage, Stage::None);
    // The block allocated in the next txg is freed with that one.
    assert!(chain.has_orphans());
    assert!(chain.step(7).freed.iter().map(block_seq).eq([3]));
}

#[test]
fn destroyed_dataset_frees_its_log() {
    let mut chain = chain(&[5, 6]);
    chain.step(5);
    assert!(chain.doom(5).unwrap().iter().map(block_seq).eq([1]));
    chain.close();
    assert!(!chain.push(block(3, 6)));
    assert!(chain.step(6).freed.iter().map(block_seq).eq([2, 3]));
}

#[test]
#[should_panic(expected = "another number than the chain")]
fn log_block_out_of_sequence_is_found() {
    chain(&[5]).push(block(3, 5));
}

#[test]
#[should_panic(expected = "was committed before blocks that lead to it")]
fn log_hold_of_a_committed_txg_is_found() {
    let mut chain = chain(&[5]);
    chain.hold(6);
    chain.committed(5);
    chain.committed(6);
}

#[test]
#[should_panic(expected = "a counted hold")]
fn log_hold_that_is_released_twice_is_found() {
    let mut chain = chain(&[5]);
    chain.hold(5);
    chain.release(5);
    chain.release(5);
}

/// A thread that writes a log block may be blocked in the kernel, by a device that does not answer.
/// Whatever waits for it ends when the pool is closed by force.
#[test]
fn close_by_force_ends_waits_for_a_blocked_writer_of_a_log() {
    block_on(2, async {
        let engine = testing::pool().await;
        let head = engine.head("t").await.unwrap();
        let log = Arc::clone(&head);
        let named = || LogRecord::of_names(RecordKind::Remove, vec![0; 16]);
        let change = move |tx: &mut Tx<'_>| {
            log.log().record(tx.txg(), named());
            Ok(())
        };
        engine.apply(&head, ApplyOptions::new(), change).await.unwrap();
        let (begun, is_begun) = oneshot::channel();
        let blocked = Arc::clone(&head);
        let _thread = cenote_rt::spawn(async move {
            let _writer = blocked.log().writer.lock().await;
            let mut links = chain(&[1, 1]);
            write(&mut links, 0, 1, BlockState::Writing);
            *blocked.log().chain() = links;
            begun.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        is_begun.await.unwrap();
        let of = |engine: &Arc<Engine>| (Arc::clone(engine), Arc::clone(&head));
        let waits = {
            let ((one, _), (two, head), (three, _)) = (of(&engine), of(&engine), of(&engine));
            [
                cenote_rt::spawn(async move { one.sync().await.map(drop) }),
                cenote_rt::spawn(async move { two.intent_logs().commit(&head, None).await }),
                cenote_rt::spawn(async move { three.intent_logs().retire().await }),
            ]
        };
        cenote_rt::sleep(Duration::from_millis(200)).await;
        assert!(waits.iter().all(|wait| !wait.is_finished()), "nothing waits for the writer");
        engine.close_by_force().await;
        for wait in waits {
            let ended = cenote_rt::until(Duration::from_secs(20), wait).await;
            ended.expect("it waits for ever").unwrap().expect_err("closed");
        }
    })
    .unwrap();
}
