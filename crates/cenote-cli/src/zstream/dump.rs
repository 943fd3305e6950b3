//! `zstream dump`: the records of a stream as text, and how many there are of each type.
//!
//! The stream is shown as far as it can be read. A wrong checksum ends it, and the sums of what was
//! read follow; the status is 0 then, as in OpenZFS.

use std::io::{BufRead, BufReader, Read, Write};

use cenote_ondisk::blkptr::BLOCK_SIZE_MAX;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::nvlist::NvList;
use cenote_ondisk::stream::{
    Begin, CHECKSUM_AT, CipherParams, CorruptRecord, Embedded, End, Object, RECORD_LEN, Record,
    RecordBytes, STREAM_MAGIC, Spill, Write as WriteRecord, WriteByRef, byte_order, checksum_words,
};
use cenote_stream::RunningChecksum;

use super::records::{fill, read_failure};
use super::{BUFFER_LEN, Streams, nvlist, open, parse};
use crate::io::{CommandResult, Exit, Io};
use crate::{err, out};

/// Bytes in a line of a payload, and in a group of them.
const LINE: usize = 16;
const GROUP: usize = 4;
/// Column of a payload's characters.
const CHARACTERS_AT: usize = LINE * 3 + LINE / GROUP + 2;
/// Bytes of the payload of a BEGIN, and of any other record, at most.
const BEGIN_PAYLOAD_MAX: u64 = 256 << 20;
const PAYLOAD_MAX: u64 = BLOCK_SIZE_MAX;
/// Types of records.
const KINDS: usize = 11;

/// Runs the command.
pub(super) fn run(args: &[String], streams: &mut Streams<'_>, io: &mut Io<'_>) -> CommandResult {
    let parsed = parse("dump", args, "vCd")?;
    let options = Options {
        is_verbose: parsed.has('v') || parsed.has('d'),
        shows_checksums: parsed.count('v') > 1 || parsed.has('d'),
        shows_payloads: parsed.has('d'),
        verifies: !parsed.has('C'),
    };
    // Further operands are ignored.
    if let Some(path) = parsed.operands.first() {
        let mut input = BufReader::with_capacity(BUFFER_LEN, open(path)?);
        return Dump::new(&mut input, options).run(io);
    }
    if streams.is_input_terminal {
        return Err(Exit::failed(
            "Error: The send stream is a binary format and can not be read from a\n\
             terminal.  Standard input must be redirected, or a file must be\n\
             specified as a command-line argument.",
        ));
    }
    Dump::new(streams.input, options).run(io)
}

#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent options")]
struct Options {
    is_verbose: bool,
    shows_checksums: bool,
    shows_payloads: bool,
    verifies: bool,
}

/// Records of a type, and bytes of their payloads.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    records: u64,
    bytes: u64,
}

struct Dump<'a> {
    input: &'a mut dyn BufRead,
    options: Options,
    /// Known after the first record.
    endian: Option<Endian>,
    checksum: RunningChecksum,
    /// The checksum before the record that was read last.
    before: [u64; 4],
    /// Bytes of whole parts of records and of whole payloads.
    len: u64,
    counts: [Count; KINDS],
}

impl<'a> Dump<'a> {
    fn new(input: &'a mut dyn BufRead, options: Options) -> Self {
        Self {
            input,
            options,
            endian: None,
            checksum: RunningChecksum::new(Endian::Little),
            before: [0; 4],
            len: 0,
            counts: [Count::default(); KINDS],
        }
    }

    fn run(mut self, io: &mut Io<'_>) -> CommandResult {
        while let Some(bytes) = self.read_record(io)? {
            let endian = self.endian.unwrap_or(Endian::Little);
            let record = match Record::decode(&bytes, endian) {
                Ok(record) => record,
                Err(CorruptRecord::Magic { .. }) => return Err(bad_magic()),
                Err(CorruptRecord::Kind { kind }) => {
                    out!(io, "INVALID record found: type {kind:#x}\nAborting.")?;
                    return Err(Exit::Status(1));
                }
            };
            self.print_record(&record, io)?;
            let len = record.payload_len();
            let payload = self.read_payload(&record, len)?;
            self.print_payload(&record, &payload, io)?;
            if self.options.shows_checksums && !matches!(record, Record::Begin(_)) {
                let words = checksum_text(checksum_words(&bytes, endian));
                out!(io, "    checksum = {words}")?;
            }
            if matches!(record, Record::End(_)) {
                self.checksum = RunningChecksum::new(endian);
            }
            self.before = self.checksum.words();
            if let Some(count) = self.counts.get_mut(record.kind() as usize) {
                count.records += 1;
                count.bytes += len;
            }
        }
        self.print_sums(io)
    }

    /// Reads a record and compares its checksum. Returns none at the end, and if the checksum
    /// differs.
    fn read_record(&mut self, io: &mut Io<'_>) -> CommandResult<Option<RecordBytes>> {
        let mut bytes = [0; RECORD_LEN];
        let read = fill(self.input, &mut bytes)?;
        if read < RECORD_LEN {
            self.len += if read < CHECKSUM_AT { 0 } else { CHECKSUM_AT as u64 };
            return Ok(None);
        }
        self.len += RECORD_LEN as u64;
        let endian = match self.endian {
            Some(endian) => endian,
            None => byte_order(&bytes).map_err(|_| bad_magic())?,
        };
        if self.endian.is_none() {
            self.endian = Some(endian);
            self.checksum = RunningChecksum::new(endian);
        }
        if !self.options.verifies {
            return Ok(Some(bytes));
        }
        let (body, words) = bytes.split_at(CHECKSUM_AT);
        self.checksum.feed(body);
        let stored = checksum_words(&bytes, endian);
        let expected = self.checksum.words();
        let is_begin = matches!(Record::decode(&bytes, endian), Ok(Record::Begin(_)));
        // The name of a BEGIN reaches over the words.
        if !is_begin && stored != [0; 4] && stored != expected {
            err!(io, "invalid checksum")?;
            out!(io, "Incorrect checksum in record header.")?;
            out!(io, "Expected checksum = {}", checksum_text(expected))?;
            return Ok(None);
        }
        self.checksum.feed(words);
        Ok(Some(bytes))
    }

    /// Reads a payload; bytes behind the end of the stream are zero.
    fn read_payload(&mut self, record: &Record, len: u64) -> CommandResult<Vec<u8>> {
        let is_begin = matches!(record, Record::Begin(_));
        let most = if is_begin { BEGIN_PAYLOAD_MAX } else { PAYLOAD_MAX };
        if len > most {
            let name = record.name();
            return Err(Exit::failed(format!("Error: {name} record with {len} bytes of payload")));
        }
        let mut payload = Vec::new();
        let read = (&mut *self.input).take(len).read_to_end(&mut payload);
        read.map_err(|error| read_failure(&error))?;
        if payload.len() as u64 == len {
            self.len += len;
            if self.options.verifies {
                self.checksum.feed(&payload);
            }
        }
        payload.resize(len as usize, 0);
        Ok(payload)
    }

    fn print_record(&self, record: &Record, io: &mut Io<'_>) -> CommandResult {
        match record {
            Record::Begin(begin) => return self.print_begin(begin, io),
            Record::End(end) => return self.print_end(end, io),
            _ if !self.options.is_verbose => return Ok(()),
            _ => {}
        }
        let line = match record {
            Record::Object(object) => object_line(object),
            Record::FreeObjects(range) => {
                format!("FREEOBJECTS firstobj = {} numobjs = {}", range.first, range.count)
            }
            Record::Write(write) => write_line(write),
            Record::Free(range) => format!(
                "FREE object = {} offset = {} length = {}",
                range.object, range.offset, range.len as i64
            ),
            Record::WriteByRef(reference) => reference_line(reference),
            Record::Spill(spill) => spill_line(spill),
            Record::WriteEmbedded(embedded) => embedded_line(embedded),
            Record::ObjectRange(range) => format!(
                "OBJECT_RANGE firstobj = {} numslots = {} flags = {} {}",
                range.first,
                range.slots,
                range.flags.bits(),
                cipher_text(&range.cipher)
            ),
            Record::Redact(range) => format!(
                "REDACT object = {} offset = {} length = {}",
                range.object, range.offset, range.len
            ),
            Record::Begin(_) | Record::End(_) => return Ok(()),
        };
        out!(io, "{line}")
    }

    fn print_begin(&self, begin: &Begin, io: &mut Io<'_>) -> CommandResult {
        out!(io, "BEGIN record")?;
        out!(io, "\thdrtype = {}", begin.header.number())?;
        out!(io, "\tfeatures = {:x}", begin.features)?;
        out!(io, "\tmagic = {STREAM_MAGIC:x}")?;
        out!(io, "\tcreation_time = {:x}", begin.creation_time)?;
        out!(io, "\ttype = {}", begin.objset_kind)?;
        out!(io, "\tflags = {:#x}", begin.flags.bits())?;
        out!(io, "\ttoguid = {:x}", begin.to_guid)?;
        out!(io, "\tfromguid = {:x}", begin.from_guid)?;
        io.out.write_all(&[b"\ttoname = ", &begin.to_name[..], b"\n"].concat())?;
        out!(io, "\tpayloadlen = {}", begin.payload_len)?;
        if self.options.is_verbose { out!(io) } else { Ok(()) }
    }

    fn print_end(&self, end: &End, io: &mut Io<'_>) -> CommandResult {
        if self.options.verifies && end.checksum != self.before {
            out!(io, "Expected checksum differs from checksum in stream.")?;
            out!(io, "Expected checksum = {}", checksum_text(self.before))?;
        }
        out!(io, "END checksum = {}", checksum_text(end.checksum))
    }

    fn print_payload(&self, record: &Record, payload: &[u8], io: &mut Io<'_>) -> CommandResult {
        if payload.is_empty() {
            return Ok(());
        }
        if matches!(record, Record::Begin(_)) {
            return match NvList::decode(payload) {
                Ok(list) => Ok(nvlist::print(io.out, &list, 0)?),
                Err(error) => err!(io, "payload of BEGIN: {error}"),
            };
        }
        if self.options.shows_payloads { Ok(print_block(io.out, payload)?) } else { Ok(()) }
    }

    fn print_sums(&self, io: &mut Io<'_>) -> CommandResult {
        out!(io, "SUMMARY:")?;
        for (kind, name) in [
            (0, "BEGIN"),
            (5, "END"),
            (1, "OBJECT"),
            (2, "FREEOBJECTS"),
            (3, "WRITE"),
            (6, "WRITE_BYREF"),
            (8, "WRITE_EMBEDDED"),
            (4, "FREE"),
            (7, "SPILL"),
        ] {
            let Count { records, bytes } = self.counts.get(kind).copied().unwrap_or_default();
            out!(io, "\tTotal DRR_{name} records = {records} ({bytes} bytes)")?;
        }
        let records: u64 = self.counts.iter().map(|count| count.records).sum();
        let payload: u64 = self.counts.iter().map(|count| count.bytes).sum();
        let overhead = records * RECORD_LEN as u64;
        out!(io, "\tTotal records = {records}")?;
        out!(io, "\tTotal payload size = {payload} ({payload:#x})")?;
        out!(io, "\tTotal header overhead = {overhead} ({overhead:#x})")?;
        out!(io, "\tTotal stream length = {} ({:#x})", self.len, self.len)
    }
}

fn bad_magic() -> Exit {
    Exit::failed("Invalid stream (bad magic number)")
}

fn checksum_text(words: [u64; 4]) -> String {
    words.map(|word| format!("{word:x}")).join("/")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().copied().flat_map(digits).collect()
}

fn digits(byte: u8) -> [char; 2] {
    [byte >> 4, byte & 15].map(|nibble| char::from_digit(nibble.into(), 16).unwrap_or('0'))
}

fn cipher_text(cipher: &CipherParams) -> String {
    format!("salt = {} iv = {} mac = {}", hex(&cipher.salt), hex(&cipher.iv), hex(&cipher.mac))
}

fn object_line(object: &Object) -> String {
    format!(
        "OBJECT object = {} type = {} bonustype = {} blksz = {} bonuslen = {} dn_slots = {} \
         raw_bonuslen = {} flags = {} maxblkid = {} indblkshift = {} nlevels = {} nblkptr = {}",
        object.object,
        object.kind,
        object.bonus_kind,
        object.block_size,
        object.bonus_len,
        object.slots,
        object.raw_bonus_len,
        object.flags.bits(),
        object.max_block,
        object.indirect_block_shift,
        object.levels,
        object.blkptr_count
    )
}

fn write_line(write: &WriteRecord) -> String {
    format!(
        "WRITE object = {} type = {} checksum type = {} compression type = {} flags = {} \
         offset = {} logical_size = {} compressed_size = {} payload_size = {} props = {:x} {}",
        write.object,
        write.kind,
        write.key.checksum_kind,
        write.compression,
        write.flags.bits(),
        write.offset,
        write.logical_len,
        write.compressed_len,
        Record::Write(*write).payload_len(),
        write.key.properties,
        cipher_text(&write.cipher)
    )
}

fn reference_line(reference: &WriteByRef) -> String {
    format!(
        "WRITE_BYREF object = {} checksum type = {} props = {:x} offset = {} length = {} \
         toguid = {:x} refguid = {:x} refobject = {} refoffset = {}",
        reference.object,
        reference.key.checksum_kind,
        reference.key.properties,
        reference.offset,
        reference.len,
        reference.to_guid,
        reference.ref_guid,
        reference.ref_object,
        reference.ref_offset
    )
}

fn spill_line(spill: &Spill) -> String {
    format!(
        "SPILL block for object = {} length = {} flags = {} compression type = {} \
         compressed_size = {} payload_size = {} {}",
        spill.object,
        spill.len,
        spill.flags.bits(),
        spill.compression,
        spill.compressed_len,
        Record::Spill(*spill).payload_len(),
        cipher_text(&spill.cipher)
    )
}

fn embedded_line(embedded: &Embedded) -> String {
    format!(
        "WRITE_EMBEDDED object = {} offset = {} length = {} toguid = {:x} comp = {} etype = {} \
         lsize = {} psize = {}",
        embedded.object,
        embedded.offset,
        embedded.len,
        embedded.to_guid,
        embedded.compression,
        embedded.embedded_kind,
        embedded.logical_len,
        embedded.physical_len
    )
}

/// Prints bytes in hexadecimal, and as characters.
fn print_block(out: &mut (dyn Write + Send), bytes: &[u8]) -> std::io::Result<()> {
    for line in bytes.chunks(LINE) {
        let (mut text, mut characters) = (String::new(), String::new());
        for (index, group) in line.chunks(GROUP).enumerate() {
            text.push(' ');
            characters.push_str(if index == 0 { "" } else { " " });
            for byte in group {
                text.extend(digits(*byte));
                text.push(' ');
                let is_shown = byte.is_ascii_graphic() || *byte == b' ';
                characters.push(if is_shown { char::from(*byte) } else { '.' });
            }
        }
        writeln!(out, "{text:CHARACTERS_AT$}{characters}")?;
    }
    Ok(())
}
