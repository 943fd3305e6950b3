//! `zstream redup`: replaces references to blocks sent before by these blocks.
//!
//! Deduplicated streams (`zfs send -D` before OpenZFS 2.0) have a record `WRITE_BYREF` in place of
//! a block that equals an earlier one. The table has the offsets of earlier blocks, not the blocks,
//! so that the stream must be a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::FileExt;

use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::{RECORD_LEN, Record, StreamFeatures, Write as WriteRecord, WriteByRef};

use super::records::{Rewriter, Strictness, for_each_record, read_failure};
use super::{BUFFER_LEN, Streams, open, parse, refuse_output};
use crate::err;
use crate::io::{CommandResult, Exit, Io};
use crate::nicenum;

/// Bytes that OpenZFS's table has for each block, which `-v` reports.
const ENTRY_LEN: u64 = 40;

/// Runs the command.
pub(super) fn run(args: &[String], streams: &Streams<'_>, io: &mut Io<'_>) -> CommandResult {
    let parsed = parse("redup", args, "v")?;
    let [path] = &parsed.operands[..] else { return Err(Exit::usage("")) };
    refuse_output(streams)?;
    let file = open(path)?;
    let clone = file.try_clone().map_err(|error| read_failure(&error))?;
    let mut input = BufReader::with_capacity(BUFFER_LEN, clone);
    let mut table = Table { file, blocks: BTreeMap::new(), inserted: 0 };
    let (mut records, mut references) = (0_u64, 0_u64);
    let mut rewriter = Rewriter::new();
    for_each_record(&mut input, Strictness::Lenient, |mut item, endian| {
        records += 1;
        match &mut item.record {
            Record::Begin(begin) => {
                begin.features -= StreamFeatures::DEDUP | StreamFeatures::DEDUP_PROPS;
            }
            Record::Write(write) => table.insert(write, item.offset),
            Record::WriteByRef(reference) => {
                references += 1;
                let (write, payload) = table.find(reference, endian)?;
                item.record = Record::Write(write);
                item.payload = payload;
            }
            _ => {}
        }
        rewriter.write(&item.record, &item.payload, endian, io.out)
    })?;
    if parsed.has('v') {
        io.out.flush()?;
        let memory = nicenum::bytes(table.inserted * ENTRY_LEN);
        err!(
            io,
            "converted stream with {records} total records, including {references} dedup records, \
             using {memory}B memory."
        )?;
    }
    Ok(())
}

/// Where blocks are in the file.
struct Table {
    file: File,
    /// Offsets of WRITE records by guid of the snapshot, object and offset.
    blocks: BTreeMap<(u64, u64, u64), u64>,
    inserted: u64,
}

impl Table {
    fn insert(&mut self, write: &WriteRecord, at: u64) {
        self.blocks.insert((write.to_guid, write.object, write.offset), at);
        self.inserted += 1;
    }

    /// Reads the block that a reference names, as a block at the place of the reference. Its
    /// checksum was verified when it was read first.
    fn find(
        &self,
        reference: &WriteByRef,
        endian: Endian,
    ) -> CommandResult<(WriteRecord, Vec<u8>)> {
        let WriteByRef { object, offset, to_guid, ref_guid, ref_object, ref_offset, .. } =
            *reference;
        let missing = || {
            Exit::failed(format!(
                "Error: object {object} offset {offset} refers to object {ref_object} offset \
                 {ref_offset} of snapshot {ref_guid:#x}, which is not in the stream before it"
            ))
        };
        let at = *self.blocks.get(&(ref_guid, ref_object, ref_offset)).ok_or_else(missing)?;
        let mut bytes = [0; RECORD_LEN];
        let read = |bytes: &mut [u8], at| self.file.read_exact_at(bytes, at);
        read(&mut bytes, at).map_err(|error| read_failure(&error))?;
        let Ok(Record::Write(write)) = Record::decode(&bytes, endian) else {
            return Err(missing());
        };
        let len = Record::Write(write).payload_len();
        let mut payload = vec![0; usize::try_from(len).map_err(|_| missing())?];
        read(&mut payload, at + RECORD_LEN as u64).map_err(|error| read_failure(&error))?;
        Ok((WriteRecord { object, offset, to_guid, ..write }, payload))
    }
}
