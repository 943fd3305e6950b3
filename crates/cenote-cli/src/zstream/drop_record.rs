//! `zstream drop_record`: removes chosen blocks from a stream.

use std::collections::BTreeSet;

use cenote_ondisk::stream::Record;

use super::decompress::deduplicated;
use super::places::Place;
use super::records::{Rewriter, Strictness, for_each_record};
use super::{Streams, parse, refuse_terminals};
use crate::err;
use crate::io::{CommandResult, Io};

/// Runs the command.
pub(super) fn run(args: &[String], streams: &mut Streams<'_>, io: &mut Io<'_>) -> CommandResult {
    let parsed = parse("drop_record", args, "v")?;
    let mut dropped = BTreeSet::new();
    for argument in &parsed.operands {
        let place = Place::parse(argument)?;
        dropped.insert((place.object, place.offset));
    }
    refuse_terminals(streams)?;
    let is_verbose = parsed.has('v');
    let mut rewriter = Rewriter::new();
    for_each_record(streams.input, Strictness::Lenient, |item, endian| {
        let place = match &item.record {
            Record::WriteByRef(_) => return Err(deduplicated()),
            Record::Write(write) => Some((write.object, write.offset)),
            Record::WriteEmbedded(embedded) => Some((embedded.object, embedded.offset)),
            _ => None,
        };
        if let Some((object, offset)) = place.filter(|place| dropped.contains(place)) {
            if is_verbose {
                let name = item.record.name();
                err!(io, "zstream: dropping {name} record for object {object} offset {offset}")?;
            }
            return Ok(());
        }
        rewriter.write(&item.record, &item.payload, endian, io.out)
    })
}
