//! The ring against a list of records.

use std::collections::VecDeque;

use cenote_ondisk::history::records;

use super::*;
use crate::objects::model::Model;

fn record(number: u64, len: usize, is_command: bool) -> NvList {
    let mut list = NvList::default();
    list.insert(key::TIME, number);
    list.insert(key::INTERNAL_STR, "x".repeat(len).as_str());
    if is_command {
        list.insert(key::COMMAND, "zpool create");
    }
    list
}

fn header(model: &mut Model, object: u64) -> HistoryPhys {
    HistoryPhys::decode(&model.apply(|tx| tx.bonus(object)).unwrap()).unwrap()
}

fn all(model: &mut Model, object: u64) -> Vec<NvList> {
    let phys = header(model, object);
    let mut bytes = Vec::new();
    for part in std::iter::once(0..phys.create_len).chain(phys.live()) {
        let len = (part.end - part.start) as usize;
        bytes.extend(model.apply(|tx| tx.read(object, part.start, len)).unwrap());
    }
    records(&bytes).map(|record| NvList::decode(record.unwrap()).unwrap()).collect()
}

#[test]
fn history_keeps_the_creation_and_the_newest_records() {
    let mut model = Model::with_misses();
    let object = model.apply(|tx| create(tx, 15 << 24)).unwrap();
    assert_eq!(header(&mut model, object).phys_max_off, 251_658);
    let kept = [record(0, 10, false), record(1, 20, true)];
    for record in &kept {
        model.apply(|tx| append(tx, object, record)).unwrap();
    }
    let phys = header(&mut model, object);
    assert_eq!((phys.create_len, phys.bof), (phys.eof, phys.eof));
    let mut ring = VecDeque::new();
    for number in 2..400 {
        let one = record(number, (number * 7919 % 5000) as usize, number % 3 == 0);
        model.apply(|tx| append(tx, object, &one)).unwrap();
        ring.push_back(one);
        let after = header(&mut model, object);
        assert_eq!(after.create_len, phys.create_len);
        while ring.len() as u64 + after.records_lost > number - 1 {
            ring.pop_front();
        }
        if number % 37 == 0 || number > 390 {
            model.evict();
            let wanted: Vec<NvList> = kept.iter().cloned().chain(ring.iter().cloned()).collect();
            assert_eq!(all(&mut model, object), wanted);
        }
    }
    assert!(header(&mut model, object).records_lost > 100);
    let big = record(1, 300_000, false);
    assert_eq!(model.apply(|tx| append(tx, object, &big)).unwrap_err().kind(), Kind::Limit);
}

/// Reading the new records after each change reads all of them in the end.
#[test]
fn new_records_are_read_once() {
    let mut model = Model::with_misses();
    let object = model.apply(|tx| create(tx, 0)).unwrap();
    let (mut end, mut read) = (0, Vec::new());
    let mut wanted = Vec::new();
    for number in 0..300 {
        for _ in 0..number % 3 {
            let one = record(number, (number * 7919 % 5000) as usize, number == 4);
            model.apply(|tx| append(tx, object, &one)).unwrap();
            wanted.push(one);
        }
        let (now, bytes) =
            model.apply(|tx| records_from(tx, object, end, BLOCK_SIZE as usize)).unwrap();
        read.extend(records(&bytes).map(|record| NvList::decode(record.unwrap()).unwrap()));
        end = now;
    }
    assert!(end > 2 * BLOCK_SIZE && read == wanted);
    // Of too many, and after a nonsense end, there are none.
    let (now, bytes) = model.apply(|tx| records_from(tx, object, 0, 1000)).unwrap();
    assert_eq!((now, bytes.len()), (end, 0));
    let (now, bytes) = model.apply(|tx| records_from(tx, object, u64::MAX, 1000)).unwrap();
    assert_eq!((now, bytes.len()), (end, 0));
}

#[test]
fn sizes() {
    assert_eq!([0, 1 << 30, u64::MAX].map(size_for), [128 << 10, (1 << 30) / 1000, 1 << 30]);
}
