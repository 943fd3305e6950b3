//! Estimates of the length of streams, and the lines about them (spec 07 B6).

use std::fmt::Write as _;

use cenote_ondisk::stream::{RECORD_LEN, Record};
use cenote_pool::dsl::DslError;
use cenote_pool::props::PropValue;
use cenote_pool::{Dataset, DatasetKind, RedactionList};
use cenote_rt::Error;
use cenote_stream::send::{Estimate, Payload, RecordSink, SendOptions, SendPlan, estimate};

use super::increment::Increment;
use crate::nicenum;

/// Block size of a dataset whose property has no number.
const BLOCK_SIZE: u64 = 128 << 10;

/// Estimates the length of the stream of a snapshot. That of a redacted one, or of an increment
/// from a bookmark without sums, is counted.
pub(super) async fn size(
    target: &Dataset,
    (from, redaction): (&Increment, Option<&RedactionList>),
    options: &SendOptions,
    block_size: u64,
) -> Result<u64, Error> {
    let [logical, compressed] = match from {
        _ if redaction.is_some() => return count(target, (from, redaction), options).await,
        Increment::Full => {
            let phys = target.phys();
            [phys.uncompressed_bytes, phys.compressed_bytes]
        }
        Increment::Snapshot(from) => {
            let space = target.space_since(from).await?;
            [space.uncomp, space.comp]
        }
        Increment::Bookmark(_, bookmark) if bookmark.phys.redaction_obj != 0 => {
            return count(target, (from, None), options).await;
        }
        Increment::Bookmark(_, bookmark) => match target.space_since_bookmark(bookmark).await {
            Ok(space) => [space.uncomp, space.comp],
            Err(error) if matches!(error.cause(), Some(DslError::NoFreedSums(_))) => {
                return count(target, (from, None), options).await;
            }
            Err(error) => return Err(error),
        },
    };
    let is_compressed = options.compressed || options.raw;
    Ok(estimate(&Estimate { logical, compressed, block_size }, is_compressed))
}

/// Counts the bytes of a stream.
async fn count(
    target: &Dataset,
    (from, redaction): (&Increment, Option<&RedactionList>),
    options: &SendOptions,
) -> Result<u64, Error> {
    let state = from.state(target).await?;
    let plan = SendPlan::new(target, state.as_ref(), redaction, options, None).await?;
    let mut counter = Counter(0);
    plan.run(&plan.open(target).await?, &mut counter).await?;
    Ok(counter.0)
}

/// Returns the size of the blocks that a dataset has most of: its record size, or a volume's block
/// size.
pub(super) async fn block_size(target: &Dataset) -> Result<u64, Error> {
    let head = target.head().await?;
    let property = match head.kind().await? {
        DatasetKind::Volume => "volblocksize",
        _ => "recordsize",
    };
    Ok(match head.props().await?.get(property).await?.map(|row| row.value) {
        Some(PropValue::Number(size)) => size,
        _ => BLOCK_SIZE,
    })
}

/// The lines about the estimated streams of a command.
#[derive(Debug)]
pub(super) struct Lines {
    is_parsable: bool,
    text: String,
    total: u64,
}

impl Lines {
    pub(super) const fn new(is_parsable: bool) -> Self {
        Self { is_parsable, text: String::new(), total: 0 }
    }

    /// Adds the line of one snapshot. Packages name the source by its short name, which the words
    /// show with an `@`.
    pub(super) fn add(&mut self, name: &str, from: Option<FromText<'_>>, size: u64) {
        self.total = self.total.saturating_add(size);
        let text = &mut self.text;
        let each = nicenum::bytes_b(size);
        let _ = match (from, self.is_parsable) {
            (None, true) => writeln!(text, "full\t{name}\t{size}"),
            (None, false) => writeln!(text, "full send of {name} estimated size is {each}"),
            (Some(FromText::Whole(from) | FromText::Short(from)), true) => {
                writeln!(text, "incremental\t{from}\t{name}\t{size}")
            }
            (Some(FromText::Whole(from)), false) => {
                writeln!(text, "send from {from} to {name} estimated size is {each}")
            }
            (Some(FromText::Short(from)), false) => {
                writeln!(text, "send from @{from} to {name} estimated size is {each}")
            }
        };
    }

    /// Returns all lines, with that of the sum.
    pub(super) fn finish(mut self) -> String {
        let total = self.total;
        let _ = if self.is_parsable {
            writeln!(self.text, "size\t{total}")
        } else {
            writeln!(self.text, "total estimated size is {}", nicenum::bytes(total))
        };
        self.text
    }
}

/// The name of the source of an increment.
#[derive(Debug, Clone, Copy)]
pub(super) enum FromText<'a> {
    Whole(&'a str),
    Short(&'a str),
}

/// Counts the bytes of a stream.
struct Counter(u64);

impl RecordSink for Counter {
    async fn put(&mut self, _record: &Record, payload: Payload) -> Result<(), Error> {
        self.0 += (RECORD_LEN + payload.len()) as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are those that OpenZFS 2.3.2 printed.
    #[test]
    fn lines_are_those_of_openzfs() {
        let lines = |is_parsable| {
            let mut lines = Lines::new(is_parsable);
            lines.add("t/a@one", None, 4_208_976);
            lines.add("t/a@two", Some(FromText::Short("one")), 2_111_456);
            lines.add("t/c@x", Some(FromText::Whole("t/a@two")), 624);
            lines.finish()
        };
        let parsable = "full\tt/a@one\t4208976\nincremental\tone\tt/a@two\t2111456\n\
                        incremental\tt/a@two\tt/c@x\t624\nsize\t6321056\n";
        assert_eq!(lines(true), parsable);
        let words = "full send of t/a@one estimated size is 4.01M\n\
                     send from @one to t/a@two estimated size is 2.01M\n\
                     send from t/a@two to t/c@x estimated size is 624B\n\
                     total estimated size is 6.03M\n";
        assert_eq!(lines(false), words);
    }
}
