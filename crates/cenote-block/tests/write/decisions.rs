//! Decisions of the write path: holes, embedding, nopwrite, rewriting in place, refusals.

use cenote_block::policy::{BlockSpec, CompressionPolicy, DatasetPolicy, PoolPolicy, WritePolicy};
use cenote_block::{
    BlockError, Draft, ReadContext, SentForm, WriteContext, WriteError, WriteMethod,
};
use cenote_codec::checksum::ChecksumAlgorithm;
use cenote_codec::compress::{Compression, ZstdLevel, compress};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_ondisk::compression_type::CompressionType;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Buf, Kind};

use crate::bench::{Bench, Shape, TXG, Top, wait};
use crate::round_trip::{Content, block, context, policy};

fn bench(ashift: u64) -> Bench {
    Bench::new(Shape::new(Top::Single, ashift))
}

fn in_pass(pass: u64) -> WriteContext {
    WriteContext { pass, ..context() }
}

#[test]
fn zeros_are_holes_and_punched_holes_record_their_birth() {
    let bench = bench(9);
    let lz4 = policy(15, ChecksumType::On);
    let zeros = block(Content::Zero, 4096, 0);
    wait(async {
        let write = |old: Option<BlockPtr>, policy: WritePolicy| {
            let (store, zeros) = (&bench.store, zeros.clone());
            async move { store.write(zeros, &policy, old.as_ref(), &context()).await.unwrap() }
        };
        let fresh = write(None, lz4).await;
        assert_eq!((fresh.method, fresh.bp), (WriteMethod::Hole, BlockPtr::HOLE));
        let never = write(Some(BlockPtr::HOLE), lz4).await;
        assert_eq!(never.bp, BlockPtr::HOLE);

        let text = block(Content::Text, 4096, 1);
        let old = bench.store.write(text, &lz4, None, &context()).await.unwrap();
        let punched = write(Some(old.bp), lz4).await;
        assert!(punched.bp.is_hole() && punched.method.replaces());
        let (birth, lsize) = (punched.bp.birth(), punched.bp.lsize());
        assert_eq!((birth, lsize, punched.bp.object_type()), (TXG, 4096, lz4.object_type));
        let again = write(Some(punched.bp), lz4).await;
        assert_eq!(again.bp, punched.bp);
        let forgetful = WritePolicy { punches_holes: false, ..lz4 };
        assert_eq!(write(Some(old.bp), forgetful).await.bp, BlockPtr::HOLE);

        let raw = write(None, policy(2, ChecksumType::On)).await;
        assert_eq!((raw.method, raw.bp.psize()), (WriteMethod::New, 4096));
    });
}

/// Number of compression `off`.
const OFF: u64 = 2;

/// Spec 02 §5.2: with sectors of 4 KiB a block of 4 KiB is stored raw unless it fits the pointer.
#[test]
fn compression_must_save_an_eighth() {
    let rows = [
        // ashift, size, content, may embed, expected physical size (0: embedded)
        (9, 4096, Content::Text, true, 1536),
        (12, 4096, Content::Text, true, 4096),
        (12, 4096, Content::Sparse, true, 0),
        (12, 4096, Content::Sparse, false, 4096),
        (9, 4096, Content::Sparse, false, 512),
        (12, 8192, Content::Text, true, 4096),
        (9, 512, Content::Text, true, 512),
        (9, 4096, Content::MostlyRandom, true, 4096),
        (9, 131_072, Content::Sparse, false, 1024),
    ];
    for (ashift, size, content, may_embed, expected) in rows {
        let bench = bench(ashift);
        let policy = WritePolicy { may_embed, ..policy(15, ChecksumType::On) };
        let data = block(content, size, 3);
        let written = wait(bench.store.write(data, &policy, None, &context())).unwrap();
        let what = format!("{ashift} {size} {content:?}");
        assert_eq!(written.bp.psize(), expected, "{what}");
        assert_eq!(written.method == WriteMethod::Embedded, expected == 0, "{what}");
        let is_raw = expected == size as u64;
        let function = if is_raw { CompressionType::Off } else { CompressionType::Lz4 };
        assert_eq!(written.bp.compression(), Some(function), "{what}");
    }
}

/// A block that another pool stored keeps its form, if that pays with the sectors of this one.
#[test]
fn sent_forms_are_kept() {
    let (text, sparse) = (block(Content::Text, 8192, 3), block(Content::Sparse, 8192, 3));
    let rows = [
        // ashift, contents, embedded, may embed, physical size if it is kept (0: embedded)
        (9, &text, false, true, Some(1536)),
        (12, &text, false, true, Some(4096)),
        (13, &text, false, true, None),
        (9, &sparse, true, true, Some(0)),
        (9, &sparse, true, false, None),
        (9, &sparse, false, true, Some(512)),
    ];
    for (ashift, data, is_embedded, may_embed, kept) in rows {
        let bench = bench(ashift);
        let gzip = Compression::Gzip(6);
        let mut bytes = vec![0; data.len()];
        let len = compress(gzip, ZstdLevel::default(), data, &mut bytes).unwrap();
        bytes.truncate(if is_embedded { len } else { len.next_multiple_of(512) });
        let sent = SentForm { bytes: Buf::from(bytes), compression: gzip, is_embedded, seal: None };
        for compression in [OFF, 15] {
            let policy = WritePolicy { may_embed, ..policy(compression, ChecksumType::On) };
            let old = BlockPtr::HOLE;
            let sent = Some(sent.clone());
            let draft =
                Draft { data: data.clone(), policy, sent, old, keys: None, context: context() };
            let what = format!("{ashift} {is_embedded} {may_embed} {compression}");
            let written = wait(bench.store.write_one(&draft)).unwrap();
            let together = wait(bench.store.write_all(&[draft])).remove(0).unwrap();
            assert_eq!(written.method, together.method, "{what}");
            let is_kept = written.bp.compression() == Some(CompressionType::Gzip(6));
            assert_eq!(is_kept, kept.is_some(), "{what}");
            if let Some(psize) = kept {
                assert_eq!(written.bp.psize(), psize, "{what}");
                assert_eq!(written.method == WriteMethod::Embedded, psize == 0, "{what}");
            }
            let read = wait(bench.store.read(&written.bp, &ReadContext::default())).unwrap();
            assert!(read[..] == data[..], "{what}");
        }
    }
}

#[test]
fn nopwrite_keeps_equal_data_in_place() {
    let bench = bench(9);
    let data = block(Content::Text, 8192, 1);
    let later = WriteContext { txg: TXG + 1, ..context() };
    let sha = policy(15, ChecksumType::Sha256);
    wait(async {
        let old = bench.store.write(data.clone(), &sha, None, &context()).await.unwrap().bp;
        let how = |policy: WritePolicy, data: Buf| {
            let (store, later) = (&bench.store, &later);
            async move {
                let written = store.write(data, &policy, Some(&old), later).await.unwrap();
                assert_eq!(written.bp == old, written.method == WriteMethod::Kept);
                written.method
            }
        };
        assert_eq!(how(sha, data.clone()).await, WriteMethod::Kept);
        assert_eq!(how(sha, block(Content::Text, 8192, 2)).await, WriteMethod::New);
        let rows = [
            WritePolicy { copies: 2, ..sha },
            WritePolicy { checksum: ChecksumAlgorithm::Sha512, ..sha },
            WritePolicy { is_metadata: true, ..sha },
            policy(2, ChecksumType::Sha256),
            policy(9, ChecksumType::Sha256),
            policy(15, ChecksumType::Fletcher4),
        ];
        for policy in rows {
            assert_eq!(how(policy, data.clone()).await, WriteMethod::New, "{policy:?}");
        }
        // A forgeable checksum does not prove that the data is equal.
        let fletcher = policy(15, ChecksumType::Fletcher4);
        let old = bench.store.write(data.clone(), &fletcher, None, &context()).await.unwrap().bp;
        let again = bench.store.write(data.clone(), &fletcher, Some(&old), &later).await.unwrap();
        assert_eq!(again.method, WriteMethod::New);
    });
}

fn mos_policy() -> WritePolicy {
    let spec = BlockSpec::new(ObjectType::OBJECT_DIRECTORY, 0);
    WritePolicy::of(&PoolPolicy::FULL, &DatasetPolicy::MOS, &spec).expect("valid")
}

#[test]
fn late_passes_rewrite_in_place_without_compression() {
    for top in [Top::Single, Top::Mirror(2), Top::RaidZ { width: 4, nparity: 2 }] {
        let bench = Bench::new(Shape::new(top, 9));
        let mos = mos_policy();
        wait(async {
            let write = |seed, pass, old: Option<BlockPtr>| {
                let data = block(Content::Text, 4096, seed);
                let store = &bench.store;
                async move { store.write(data, &mos, old.as_ref(), &in_pass(pass)).await.unwrap() }
            };
            let first = write(1, 1, None).await.bp;
            assert_eq!(first.dva_count(), 3);
            let early = write(2, 1, Some(first)).await;
            assert_eq!(early.method, WriteMethod::New, "pass 1 never rewrites");
            let second = write(3, 2, Some(early.bp)).await;
            assert_eq!((second.method, second.method.replaces()), (WriteMethod::InPlace, false));
            assert!(second.bp.dvas().eq(early.bp.dvas()) && second.bp != early.bp);
            let stored = bench.read_stored(&second.bp).await.unwrap();
            assert_eq!(stored[..], block(Content::Text, 4096, 3)[..]);
            assert!(
                bench
                    .store
                    .scrub(&second.bp, &cenote_block::Grounds::Allocated)
                    .await
                    .unwrap()
                    .is_clean()
            );
            // A reader with the old pointer gets an error, not other bytes.
            let stale = bench.store.read(&early.bp, &ReadContext::default()).await.unwrap_err();
            assert_eq!(stale.kind(), Kind::Checksum);

            let late = write(4, 8, Some(second.bp)).await;
            assert_eq!((late.method, late.bp.psize()), (WriteMethod::New, 4096));
            let later = write(5, 9, Some(late.bp)).await;
            assert_eq!(later.method, WriteMethod::InPlace);
            let fresh = write(6, 9, None).await;
            assert_eq!(fresh.bp.compression(), Some(CompressionType::Lz4));
        });
    }
}

/// Readers of the old pointer race with the rewrite: whenever they complete, a reader with the new
/// pointer gets the new block.
#[test]
fn late_readers_do_not_cache_old_bytes_of_a_rewritten_block() {
    let bench = bench(9);
    let mos = mos_policy();
    let rounds = async {
        let mut kinds = [0, 0];
        for round in 0..200 {
            let (one, two) = (2 * round, 2 * round + 1);
            let text = |seed| block(Content::Text, 4096, seed);
            let old = bench.store.write(text(one), &mos, None, &in_pass(1)).await.unwrap().bp;
            bench.store.clear_cache();
            let readers: Vec<_> = (0..4)
                .map(|_| {
                    let store = std::sync::Arc::clone(&bench.store);
                    cenote_rt::spawn(async move { store.read(&old, &ReadContext::default()).await })
                })
                .collect();
            let new = bench.store.write(text(two), &mos, Some(&old), &in_pass(2)).await.unwrap();
            assert_eq!(new.method, WriteMethod::InPlace);
            for reader in readers {
                // Old bytes or an error, never the new ones.
                match reader.await.unwrap() {
                    Ok(read) => assert_eq!(read[..], text(one)[..]),
                    Err(error) => assert_eq!(error.kind(), Kind::Checksum),
                }
                let read = bench.store.read(&new.bp, &ReadContext::default()).await.unwrap();
                assert_eq!(read[..], text(two)[..]);
            }
            kinds[usize::from(bench.store.cached(&old, &ReadContext::default()).is_some())] += 1;
        }
        eprintln!("old block in the cache after the rewrite: {} of 200 times", kinds[1]);
    };
    cenote_rt::block_on(4, rounds).expect("runtime");
}

#[test]
fn blocks_of_other_txgs_are_never_written_over() {
    let bench = bench(9);
    let mos = mos_policy();
    let data = block(Content::Text, 4096, 1);
    wait(async {
        let old = bench.store.write(data.clone(), &mos, None, &in_pass(1)).await.unwrap().bp;
        let next = WriteContext { txg: TXG + 1, ..in_pass(5) };
        let written = bench.store.write(data.clone(), &mos, Some(&old), &next).await.unwrap();
        assert_eq!(written.method, WriteMethod::New);
        let past = WriteContext { txg: TXG - 1, ..in_pass(5) };
        let error = bench.store.write(data.clone(), &mos, Some(&old), &past).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invariant);
        // Born in an older txg and only referenced in this one.
        let mut words = *old.words();
        (words[9], words[10]) = (TXG - 1, TXG);
        let clone = BlockPtr::from_words(words);
        let error = bench.store.write(data, &mos, Some(&clone), &in_pass(5)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invariant);
        assert!(matches!(error.cause(), Some(WriteError::RewriteOfAnotherTxg { .. })), "{error}");
    });
}

#[test]
fn unsupported_writes_are_refused() {
    let bench = bench(9);
    let lz4 = policy(15, ChecksumType::On);
    let data = || block(Content::Text, 4096, 1);
    wait(async {
        let bp = bench.store.write(data(), &lz4, None, &context()).await.unwrap().bp;
        let dedup = WritePolicy { is_dedup: true, ..lz4 };
        let encrypted = WritePolicy { is_encrypted: true, ..lz4 };
        let refused = [
            (dedup, Kind::Unsupported, WriteError::Dedup),
            (encrypted, Kind::KeyUnavailable, WriteError::NoKeys),
        ];
        for (policy, kind, cause) in refused {
            let error = bench.store.write(data(), &policy, None, &context()).await.unwrap_err();
            assert_eq!((error.kind(), error.cause()), (kind, Some(&cause)));
            assert_eq!(error.at().txg, Some(TXG));
        }
        for size in [0, 100, 17 << 20] {
            let odd = Buf::from(vec![1; size]);
            let error = bench.store.write(odd, &lz4, None, &context()).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{size}");
        }
        let change = |word: usize, bits: u64| {
            let mut words = *bp.words();
            words[word] |= bits;
            BlockPtr::from_words(words)
        };
        let rows = [(change(6, 1 << 62), WriteError::Dedup), (change(9, 1), WriteError::Cloned)];
        for (bp, cause) in rows {
            let error = bench.store.free(&bp, TXG).await.unwrap_err();
            assert_eq!((error.kind(), error.cause()), (Kind::Unsupported, Some(&cause)));
        }
        bench.store.free(&bp, TXG).await.expect("it is ours");
        let twice = bench.store.free(&bp, TXG).await.unwrap_err();
        assert_eq!(twice.kind(), Kind::Invariant);
        bench.store.free(&BlockPtr::HOLE, TXG).await.expect("nothing to free");
        let sparse = block(Content::Sparse, 4096, 1);
        let embedded = bench.store.write(sparse, &lz4, None, &context()).await.unwrap().bp;
        assert!(embedded.is_embedded());
        bench.store.free(&embedded, TXG).await.expect("nothing to free");
    });

    let salted = policy(15, ChecksumType::Blake3);
    let config = cenote_block::CacheConfig { capacity_bytes: 1 << 20 };
    let reader = cenote_block::BlockStore::new(std::sync::Arc::clone(bench.tree()), config);
    let error = wait(reader.write(data(), &salted, None, &context())).unwrap_err();
    assert!(matches!(error.cause(), Some(BlockError::NoSalt { checksum: 14 })));
    let error = wait(reader.write(data(), &lz4, None, &context())).unwrap_err();
    assert_eq!((error.kind(), error.cause()), (Kind::ReadOnly, Some(&WriteError::NoAllocator)));
}

#[test]
fn compression_empty_stores_other_blocks_uncompressed() {
    let bench = bench(9);
    let empty = policy(4, ChecksumType::On);
    assert_eq!(empty.compression, CompressionPolicy::Empty);
    let text = block(Content::Text, 4096, 1);
    let written = wait(bench.store.write(text, &empty, None, &context())).unwrap();
    assert_eq!(written.bp.compression(), Some(CompressionType::Off));
    let zeros = block(Content::Zero, 4096, 1);
    let written = wait(bench.store.write(zeros, &empty, None, &context())).unwrap();
    assert_eq!(written.method, WriteMethod::Hole);
}
