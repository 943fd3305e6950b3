//! ZAPs against maps: random changes with randomly missing blocks; an independent walk checks every
//! invariant of the bytes.

use std::collections::{BTreeMap, BTreeSet};

use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::words;
use cenote_ondisk::zap::{
    Cursor, Entry, FatHeader, HashBits, Key, KeyRef, Leaf, MatchKind, MicroZap, NormFlags, Value,
    ZapFlags, ZapKind,
};
use cenote_rt::{Kind, Result, Rng};
use cenote_testkit::shrink::{play, steps};

use super::*;
use crate::live::{ObjectSpec, TxResult};
use crate::objects::Objects;
use crate::objects::model::Model;

const SPEC: ObjectSpec = ObjectSpec::new(ObjectType::ZAP_OTHER, 512);

fn make(model: &mut Model, options: ZapOptions) -> u64 {
    model.apply(|tx| create(tx, &SPEC, options)).unwrap()
}

fn kind_of<T: std::fmt::Debug>(result: Result<T>) -> Kind {
    result.unwrap_err().kind()
}

/// Decodes the object by the rules of reading alone, checks the header, and returns all entries in
/// cursor order.
fn read_all(model: &mut Model, object: u64) -> Vec<Entry> {
    model
        .apply(|tx| {
            let block = tx.block(object, 0)?.unwrap();
            match ZapKind::of(&block).unwrap() {
                ZapKind::Micro => {
                    let entries = MicroZap::decode(&block).unwrap().entries();
                    assert!(entries.is_sorted_by(|a, b| a.cursor() < b.cursor()));
                    Ok(entries)
                }
                ZapKind::Fat => read_fat(tx, object, &FatHeader::decode(&block).unwrap()),
            }
        })
        .unwrap()
}

fn read_fat(tx: &mut dyn Objects, object: u64, header: &FatHeader) -> TxResult<Vec<Entry>> {
    let words = header.flags.contains(ZapFlags::UINT64_KEY);
    let (mut entries, mut leaves, mut index) = (Vec::new(), BTreeSet::new(), 0);
    while index < header.pointer_count() {
        let pointer = |tx: &mut dyn Objects, index| -> TxResult<u64> {
            let table = tx.block(object, header.place(index).block)?.unwrap();
            Ok(header.pointer(&table, index).unwrap())
        };
        let number = pointer(tx, index)?;
        assert!(leaves.insert(number), "pointers to a leaf are consecutive");
        let block = tx.block(object, number)?.unwrap();
        let leaf = Leaf::decode(&block, words).unwrap();
        let own = *leaf.header();
        assert!(u32::from(own.prefix_len) <= header.table_shift);
        let pointers = header.pointers_of(own.prefix, own.prefix_len.into());
        assert_eq!(pointers.start, index);
        for span in header.spans(pointers.clone()) {
            let table = tx.block(object, span.block)?.unwrap();
            let found = words::iter(&table).skip(span.words.start).take(span.words.len());
            assert!(found.clone().all(|found| found == number) && found.len() > 0);
        }
        index = pointers.end;
        let found = leaf.entries().unwrap();
        assert_eq!(found.len(), usize::from(own.entry_count));
        assert!(found.iter().all(|entry| leaf.owns(entry.hash)));
        for entry in &found {
            assert_eq!(header.hash().key(&KeyRef::from(&entry.key)), entry.hash);
            let place = leaf.find(entry.hash, &KeyRef::from(&entry.key)).unwrap().unwrap();
            assert_eq!(leaf.entry(&place).unwrap(), *entry);
        }
        entries.extend(found);
    }
    let table = header.table_block..header.table_block + header.table_block_count;
    assert!(leaves.iter().all(|leaf| *leaf < header.free_block && !table.contains(leaf)));
    assert!(table.end <= header.free_block);
    assert_eq!(leaves.len() as u64, header.leaf_count);
    assert_eq!(entries.len() as u64, header.entry_count);
    assert!(entries.is_sorted_by(|a, b| a.cursor() < b.cursor()));
    Ok(entries)
}

/// Checks that the used blocks of a fat ZAP are exactly those that are not holes.
fn check_blocks(model: &mut Model, object: u64) {
    let header = model.apply(|tx| Ok(tx.block(object, 0)?.unwrap())).unwrap();
    let header = FatHeader::decode(&header).unwrap();
    let count = 1 + header.leaf_count + header.table_block_count;
    assert_eq!(model.block_numbers(object).len() as u64, count);
}

fn compare(model: &mut Model, object: u64, wanted: &BTreeMap<Key, Value>) {
    let entries = read_all(model, object);
    // Small pages decode a leaf many times over.
    let page = if entries.len() < 1000 { 7 } else { 2000 };
    assert_eq!(pages(model, object, page), entries);
    assert_eq!(model.apply(|tx| len(tx, object)).unwrap(), wanted.len() as u64);
    let found: BTreeMap<Key, Value> =
        entries.into_iter().map(|entry| (entry.key, entry.value)).collect();
    assert_eq!(found.len(), wanted.len());
    assert_eq!(&found, wanted);
}

fn pages(model: &mut Model, object: u64, max: usize) -> Vec<Entry> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    while cookie != Cursor::END {
        let page = model.apply(|tx| entries_from(tx, object, cookie, max)).unwrap();
        assert!(page.entries.len() <= max);
        all.extend(page.entries);
        cookie = page.cookie;
    }
    all
}

/// Parameters of a random history.
#[derive(Clone, Copy)]
struct Plan {
    options: ZapOptions,
    block_size: u64,
    ops: u64,
    names: u64,
    /// Whether values are other than single u64s.
    varied: bool,
}

fn key_of(plan: &Plan, number: u64) -> Key {
    if plan.options.flags.contains(ZapFlags::UINT64_KEY) {
        return Key::Words(vec![number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number, 7]);
    }
    let len = if plan.varied { (number * 7 % 90) as usize } else { 0 };
    Key::Name(format!("{}{number:x}", "n".repeat(len)).into_bytes())
}

fn value_of(plan: &Plan, rng: &mut Rng) -> Value {
    if !plan.varied || rng.below(2) == 0 {
        return Value::U64(rng.next_u64());
    }
    let size = [1_usize, 2, 4, 8][rng.below(4) as usize];
    let bytes = vec![rng.next_u64() as u8; size * rng.below(40) as usize];
    match (size, bytes.len()) {
        (8, 8) => Value::U64(u64::from_be_bytes([bytes[0]; 8])),
        _ => Value::Array { integer_size: size as u8, bytes },
    }
}

/// How many of ten steps insert. Stored in the lowest bits of a step; the other bits are a seed.
const PHASES: [u64; 3] = [8, 5, 1];
const PHASE_MASK: u64 = 15;

fn run(plan: Plan, seed: u64) {
    let mut steps = steps(seed, plan.ops as usize);
    // Phases of growing, changing and emptying.
    for (number, step) in steps.iter_mut().enumerate() {
        let phase = PHASES[number * 6 / plan.ops as usize % 3];
        *step = *step & !PHASE_MASK | phase;
    }
    play(steps, |steps| history(plan, steps));
}

fn history(plan: Plan, steps: &[u64]) {
    let mut model = Model::with_misses();
    let spec = ObjectSpec::new(ObjectType::ZAP_OTHER, plan.block_size);
    let object = model.apply(|tx| create(tx, &spec, plan.options)).unwrap();
    let mut wanted = BTreeMap::new();
    for (step, number) in steps.iter().zip(0_u64..) {
        let (mut rng, inserts) = (Rng::seeded(*step), step & PHASE_MASK);
        let key = key_of(&plan, rng.below(plan.names));
        let name = KeyRef::from(&key);
        let is_there = wanted.contains_key(&key);
        if rng.below(10) < inserts {
            let value = value_of(&plan, &mut rng);
            if rng.below(2) == 0 {
                model.apply(|tx| update(tx, object, name, value.clone())).unwrap();
            } else {
                let result = model.apply(|tx| insert(tx, object, name, value.clone()));
                if is_there {
                    assert_eq!(kind_of(result), Kind::Exists);
                    continue;
                }
                result.unwrap();
            }
            wanted.insert(key, value);
        } else {
            let removed = model.apply(|tx| take(tx, object, name)).unwrap();
            assert_eq!(removed, wanted.remove(&key));
        }
        if number % 16 == 0 {
            model.evict();
            let key = key_of(&plan, rng.below(plan.names));
            let found = model.apply(|tx| lookup(tx, object, &key)).unwrap();
            assert_eq!(found.as_ref(), wanted.get(&key));
        }
        if number % (plan.ops / 12) == 0 {
            compare(&mut model, object, &wanted);
        }
    }
    compare(&mut model, object, &wanted);
    for key in wanted.keys() {
        model.apply(|tx| remove(tx, object, key)).unwrap();
    }
    compare(&mut model, object, &BTreeMap::new());
    let block = model.apply(|tx| Ok(tx.block(object, 0)?.unwrap())).unwrap();
    if ZapKind::of(&block) == Ok(ZapKind::Fat) {
        check_blocks(&mut model, object);
        assert_eq!(FatHeader::decode(&block).unwrap().leaf_count, 1, "all leaves have joined");
    }
    model.apply(|tx| destroy(tx, object)).unwrap();
    assert!(model.object_numbers().is_empty());
}

#[test]
fn large_zap_equals_a_map() {
    let plan = Plan {
        options: ZapOptions::default(),
        block_size: 512,
        ops: 100_000,
        names: 30_000,
        varied: false,
    };
    run(plan, 1);
}

#[test]
fn small_zap_equals_a_map() {
    let plan = Plan {
        options: ZapOptions::default(),
        block_size: 512,
        ops: 4000,
        names: 300,
        varied: false,
    };
    run(plan, 2);
}

#[test]
fn values_of_all_kinds() {
    let plan = Plan {
        options: ZapOptions::default(),
        block_size: 512,
        ops: 20_000,
        names: 3000,
        varied: true,
    };
    run(plan, 3);
}

/// Small blocks, so that the pointer table moves out of the header and doubles many times.
#[test]
fn keys_of_words() {
    let flags = ZapFlags::UINT64_KEY | ZapFlags::HASH64;
    let options = ZapOptions { flags, ..ZapOptions::default() };
    run(Plan { options, block_size: 1024, ops: 10_000, names: 4000, varied: false }, 4);
    let flags = flags | ZapFlags::PRE_HASHED_KEY;
    let options = ZapOptions { flags, ..ZapOptions::default() };
    run(Plan { options, block_size: 8192, ops: 5000, names: 3000, varied: false }, 5);
}

#[test]
fn folded_names_share_a_hash() {
    let normflags = NormFlags::TOUPPER | NormFlags::FORM_D;
    let mut model = Model::with_misses();
    let object = make(&mut model, ZapOptions { normflags, ..ZapOptions::default() });
    for fat in [false, true] {
        if fat {
            let long = "x".repeat(60);
            model.apply(|tx| insert(tx, object, &long, 0)).unwrap();
        }
        let (first, second) = ("Éa".as_bytes(), "e\u{301}A".as_bytes());
        model.apply(|tx| insert(tx, object, first, 1)).unwrap();
        model.apply(|tx| insert(tx, object, second, 2)).unwrap();
        let cds: Vec<u32> = read_all(&mut model, object)
            .iter()
            .filter(|entry| entry.key.name().is_some_and(|name| name.len() < 60))
            .map(|entry| entry.cd)
            .collect();
        assert_eq!(cds, [0, 1]);
        let mut find = |name: &str, kind| {
            let found =
                model.apply(|tx| lookup_normalized(tx, object, name.as_bytes(), kind)).unwrap();
            found.and_then(|entry| entry.value.single())
        };
        assert_eq!(find("éA", MatchKind::Normalized), Some(1));
        assert_eq!(find("éA", MatchKind::NormalizedCase), Some(2));
        assert_eq!(find("éA", MatchKind::Exact), None);
        model.apply(|tx| remove(tx, object, first)).unwrap();
        assert_eq!(
            model
                .apply(|tx| lookup_normalized(tx, object, first, MatchKind::Normalized))
                .unwrap()
                .unwrap()
                .cd,
            1
        );
        model.apply(|tx| remove(tx, object, second)).unwrap();
    }
    let plain = make(&mut model, ZapOptions::default());
    let refused = model.apply(|tx| lookup_normalized(tx, plain, b"a", MatchKind::Normalized));
    assert_eq!(kind_of(refused), Kind::Unsupported);
}

#[test]
fn conversion_keeps_cookies() {
    let mut model = Model::with_misses();
    let object = make(&mut model, ZapOptions::default());
    for number in 0..2047_u64 {
        model.apply(|tx| insert(tx, object, &format!("file{number}"), number)).unwrap();
    }
    let size = |model: &mut Model| model.apply(|tx| tx.dnode(object)).unwrap().data_block_size();
    assert_eq!(size(&mut model), 128 << 10);
    let before = read_all(&mut model, object);
    let page = model.apply(|tx| entries_from(tx, object, 0, 1000)).unwrap();
    model.apply(|tx| insert(tx, object, "one more", 1)).unwrap();
    assert_eq!(size(&mut model), 16 << 10);
    let mut after = read_all(&mut model, object);
    after.retain(|entry| entry.key.name() != Some(b"one more"));
    assert_eq!(after, before);
    let mut rest =
        model.apply(|tx| entries_from(tx, object, page.cookie, usize::MAX)).unwrap().entries;
    rest.retain(|entry| entry.key.name() != Some(b"one more"));
    assert_eq!(rest, before[1000..]);
    assert_eq!(page.cookie, before[1000].cursor().serialize(HashBits::B28));
}

#[test]
fn micro_zap_becomes_fat() {
    let mut model = Model::default();
    let is_fat = |model: &mut Model, object| {
        let block = model.apply(|tx| Ok(tx.block(object, 0)?.unwrap())).unwrap();
        ZapKind::of(&block) == Ok(ZapKind::Fat)
    };
    let long = "l".repeat(50);
    for (name, value) in [
        (long.as_str(), Value::U64(1)),
        ("text", Value::text("text")),
        ("words", Value::words_of(&[1, 2])),
        ("nothing", Value::bytes_of(&[])),
    ] {
        let object = make(&mut model, ZapOptions::default());
        model.apply(|tx| insert(tx, object, &long[..49], 1)).unwrap();
        assert!(!is_fat(&mut model, object));
        let again = model.apply(|tx| insert(tx, object, &long[..49], Value::text("x")));
        assert_eq!(kind_of(again), Kind::Exists);
        assert!(!is_fat(&mut model, object), "a refusal changes nothing");
        model.apply(|tx| insert(tx, object, name, value.clone())).unwrap();
        assert!(is_fat(&mut model, object), "{name}");
        assert_eq!(model.apply(|tx| lookup(tx, object, name)).unwrap(), Some(value));
        assert_eq!(model.apply(|tx| lookup_u64(tx, object, &long[..49])).unwrap(), Some(1));
    }
}

#[test]
fn refusals() {
    let mut model = Model::default();
    let object = make(&mut model, ZapOptions::default());
    let long = "l".repeat(256);
    for key in ["", "a\0b", long.as_str()] {
        assert_eq!(kind_of(model.apply(|tx| insert(tx, object, key, 1))), Kind::Invalid, "{key}");
    }
    let words = [1_u64];
    let result = model.apply(|tx| insert(tx, object, KeyRef::Words(&words), 1));
    assert_eq!(kind_of(result), Kind::Invalid);
    let big = Value::bytes_of(&[1; 8193]);
    assert_eq!(kind_of(model.apply(|tx| insert(tx, object, "a", big.clone()))), Kind::Invalid);
    let odd = Value::Array { integer_size: 3, bytes: vec![0; 3] };
    assert_eq!(kind_of(model.apply(|tx| insert(tx, object, "a", odd.clone()))), Kind::Invalid);
    assert_eq!(kind_of(model.apply(|tx| remove(tx, object, "a"))), Kind::NotFound);
    assert_eq!(kind_of(model.apply(|tx| require_u64(tx, object, "a"))), Kind::NotFound);
    model.apply(|tx| insert(tx, object, "a", Value::text("b"))).unwrap();
    assert_eq!(kind_of(model.apply(|tx| lookup_u64(tx, object, "a"))), Kind::Invalid);
    let spec = ObjectSpec::new(ObjectType::DIRECTORY_CONTENTS, 512);
    let directory = model.apply(|tx| create(tx, &spec, ZapOptions::default())).unwrap();
    let longest = "l".repeat(1023);
    model.apply(|tx| insert(tx, directory, &longest, 1)).unwrap();
    assert_eq!(model.apply(|tx| lookup_u64(tx, directory, &longest)).unwrap(), Some(1));
    model.apply(|tx| remove(tx, directory, &longest)).unwrap();
    let file = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, 512);
    let file = model.apply(|tx| tx.allocate(&file)).unwrap();
    assert_eq!(kind_of(model.apply(|tx| lookup(tx, file, "a"))), Kind::Invalid);
}

#[test]
fn counters_and_sets_of_numbers() {
    let mut model = Model::with_misses();
    let object = make(&mut model, ZapOptions::default());
    assert_eq!(model.apply(|tx| increment(tx, object, "u", 5)).unwrap(), 5);
    assert_eq!(model.apply(|tx| increment(tx, object, "u", -2)).unwrap(), 3);
    assert_eq!(model.apply(|tx| increment(tx, object, "u", -3)).unwrap(), 0);
    assert!(!model.apply(|tx| contains(tx, object, "u")).unwrap());
    assert_eq!(model.apply(|tx| increment(tx, object, "u", 0)).unwrap(), 0);
    assert_eq!(model.apply(|tx| len(tx, object)).unwrap(), 0);
    model.apply(|tx| insert_number(tx, object, 34)).unwrap();
    assert_eq!(model.apply(|tx| lookup_u64(tx, object, "22")).unwrap(), Some(34));
    assert!(model.apply(|tx| contains_number(tx, object, 34)).unwrap());
    assert_eq!(model.apply(|tx| numbers(tx, object)).unwrap(), [(34, 34)]);
    assert_eq!(model.apply(|tx| name_of(tx, object, 34, !0)).unwrap(), Some(b"22".to_vec()));
    model.apply(|tx| remove_number(tx, object, 34)).unwrap();
    assert_eq!(model.apply(|tx| name_of(tx, object, 34, !0)).unwrap(), None);
}

/// A table that OpenZFS left half doubled is completed by the next split, from its start.
#[test]
fn a_half_doubled_table_is_finished() {
    let flags = ZapFlags::UINT64_KEY | ZapFlags::HASH64;
    let options = ZapOptions { flags, ..ZapOptions::default() };
    let plan = Plan { options, block_size: 1024, ops: 0, names: 0, varied: false };
    let mut model = Model::with_misses();
    let spec = ObjectSpec::new(ObjectType::DDT_ZAP, 1024);
    let object = model.apply(|tx| create(tx, &spec, options)).unwrap();
    let header = |model: &mut Model| {
        let block = model.apply(|tx| Ok(tx.block(object, 0)?.unwrap())).unwrap();
        FatHeader::decode(&block).unwrap()
    };
    let mut wanted = BTreeMap::new();
    let mut number = 0;
    let mut add = |model: &mut Model, wanted: &mut BTreeMap<Key, Value>| {
        let key = key_of(&plan, number);
        model.apply(|tx| insert(tx, object, &key, number)).unwrap();
        wanted.insert(key, Value::U64(number));
        number += 1;
    };
    while header(&mut model).table_block_count < 2 {
        add(&mut model, &mut wanted);
    }
    // The copy has begun: its blocks are allocated, its first half is written and stale.
    let mut half = header(&mut model);
    half.next_table_block = half.free_block;
    half.free_block += 2 * half.table_block_count;
    half.table_blocks_copied = 1;
    model
        .apply(|tx| {
            let stale = vec![0xee; 1024];
            tx.write_block(object, half.next_table_block, stale.into())?;
            tx.write(object, 0, &half.encode())
        })
        .unwrap();
    compare(&mut model, object, &wanted);
    while header(&mut model).next_table_block != 0 {
        add(&mut model, &mut wanted);
    }
    let done = header(&mut model);
    assert!(done.table_block_count >= 2 * half.table_block_count);
    compare(&mut model, object, &wanted);
    check_blocks(&mut model, object);
}

/// More keys with one hash than a leaf holds end with an error at the table's limit, not in a loop.
#[test]
fn a_full_table_is_an_error() {
    let flags = ZapFlags::UINT64_KEY | ZapFlags::PRE_HASHED_KEY;
    let options = ZapOptions { flags, ..ZapOptions::default() };
    let mut model = Model::default();
    let spec = ObjectSpec::new(ObjectType::DDT_ZAP, 4096);
    let object = model.apply(|tx| create(tx, &spec, options)).unwrap();
    // Pre-hashed keys choose their hash: all share the high bits that the table can distinguish.
    let header = model
        .apply(|tx| {
            let block = tx.block(object, 0)?.unwrap();
            let header = FatHeader::decode(&block).unwrap();
            let full = FatHeader {
                table_block: 2,
                table_block_count: 1 << 17,
                table_shift: 26,
                free_block: 2 + (1 << 17),
                ..header
            };
            tx.write(object, 0, &full.encode())?;
            let ones: Vec<u8> = std::iter::repeat_n(1_u64.to_le_bytes(), 512).flatten().collect();
            tx.write_block(object, 1 + (1 << 17), ones.into())?;
            Ok(full)
        })
        .unwrap();
    assert!(header.double().is_none());
    model
        .apply(|tx| {
            // A leaf that the table cannot split any more.
            let leaf = cenote_ondisk::zap::leaf_edit::format(12, (1 << 26) - 1, 26, false);
            tx.write_block(object, 1, leaf.into())
        })
        .unwrap();
    let mut last = Ok(());
    for number in 0..200_u64 {
        let key = [u64::MAX, number];
        last = model.apply(|tx| insert(tx, object, &key[..], number));
        if last.is_err() {
            break;
        }
    }
    assert_eq!(kind_of(last), Kind::NoSpace);
}

/// A ZAP that is written at once has what one has whose entries were added, of every size, and can
/// be changed like it.
#[test]
fn zaps_that_are_filled_at_once_are_like_others() {
    for count in [0, 1, 7, 8, 300, 2047, 2048, 6000] {
        let mut model = Model::default();
        let entries: Vec<_> = (0..count).map(|number| (hex_key(number * 7), number)).collect();
        let filled = make(&mut model, ZapOptions::default());
        model.apply(|tx| fill(tx, filled, &entries)).unwrap();
        let names = |entries: Vec<Entry>| -> BTreeMap<Key, Value> {
            entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
        };
        let wanted: BTreeMap<_, _> = entries
            .iter()
            .map(|(name, value)| (Key::Name(name.clone().into()), Value::U64(*value)))
            .collect();
        assert_eq!(names(read_all(&mut model, filled)), wanted, "{count}");
        let (kind, is_micro) = (ZapKind::Micro, count <= 2047);
        let block = model.apply(|tx| tx.block(filled, 0)).unwrap().unwrap();
        assert_eq!(ZapKind::of(&block).unwrap() == kind, is_micro, "{count}");
        model.apply(|tx| insert(tx, filled, "new", 1)).unwrap();
        if count > 0 {
            model.apply(|tx| remove(tx, filled, &hex_key(0))).unwrap();
            assert_eq!(model.apply(|tx| lookup_u64(tx, filled, &hex_key(0))).unwrap(), None);
        }
        assert_eq!(model.apply(|tx| lookup_u64(tx, filled, "new")).unwrap(), Some(1));
        let len = read_all(&mut model, filled).len() as u64;
        assert_eq!(len, if count > 0 { count } else { 1 }, "{count}");
    }
}
