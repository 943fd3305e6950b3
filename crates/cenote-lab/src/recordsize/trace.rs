//! Reads what `cenote trace` has recorded. Anybody may have written the file.

/// Longest access: requests to the daemon are shorter.
const LEN_MAX: u64 = 64 << 20;
/// Greatest end of a file.
const END_MAX: u64 = 1 << 62;

/// A read or a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Microseconds since the start of the recording.
    pub us: u64,
    /// Whether it is a write.
    pub is_write: bool,
    /// Number of the file.
    pub object: u64,
    /// Where it begins.
    pub offset: u64,
    /// Its length, not zero.
    pub len: u64,
}

impl Access {
    /// Returns where it ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// A recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// Its accesses.
    pub accesses: Vec<Access>,
    /// Accesses that the recorder lost.
    pub lost: u64,
    /// Whether the last line is there.
    pub is_complete: bool,
}

/// Why a text is not a recording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The first line is another one.
    #[error("its first line is not that of 'cenote trace'")]
    Head,
    /// A line is not an access.
    #[error("line {line} is not an access: microseconds, R or W, object, offset, length")]
    Line {
        /// Its number, from 1 on.
        line: usize,
    },
    /// An access is longer than requests are, or beyond the end of the longest file.
    #[error("line {line}: no access has this offset and length")]
    Range {
        /// Its number, from 1 on.
        line: usize,
    },
    /// There are no accesses.
    #[error("it has no reads and no writes")]
    Empty,
}

impl Trace {
    /// Reads a recording. A last line that was cut off is left out.
    ///
    /// # Errors
    /// Why the text is not a recording.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut lines = (1..).zip(text.split_inclusive('\n'));
        if !lines.next().is_some_and(|(_, line)| line.starts_with("# cenote trace 1, of ")) {
            return Err(TraceError::Head);
        }
        let mut trace = Self::default();
        for (number, line) in lines {
            let Some(line) = line.strip_suffix('\n') else { break };
            if let Some(end) = line.strip_prefix("# ") {
                trace.lost = lost(end).ok_or(TraceError::Line { line: number })?;
                trace.is_complete = true;
                continue;
            }
            let access = access(line).ok_or(TraceError::Line { line: number })?;
            let is_possible = access.len <= LEN_MAX
                && access.offset.checked_add(access.len).is_some_and(|end| end <= END_MAX);
            if !is_possible {
                return Err(TraceError::Range { line: number });
            }
            // A read at the end of a file.
            if access.len > 0 {
                trace.accesses.push(access);
            }
        }
        // Accesses of several threads are recorded when they end.
        trace.accesses.sort_by_key(|access| access.us);
        if trace.accesses.is_empty() { Err(TraceError::Empty) } else { Ok(trace) }
    }
}

fn lost(end: &str) -> Option<u64> {
    end.split_once(" accesses, ")?.1.strip_suffix(" lost")?.parse().ok()
}

fn access(line: &str) -> Option<Access> {
    let mut words = line.split(' ');
    let us = words.next()?.parse().ok()?;
    let is_write = match words.next()? {
        "R" => false,
        "W" => true,
        _ => return None,
    };
    let mut number = || words.next()?.parse::<u64>().ok();
    let (object, offset, len) = (number()?, number()?, number()?);
    words.next().is_none().then_some(Access { us, is_write, object, offset, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# cenote trace 1, of tank/vm\n";

    #[test]
    fn recordings_are_read() {
        let text =
            format!("{HEAD}20 R 1 8192 4096\n10 W 2 0 100\n30 R 2 100 0\n# 3 accesses, 7 lost\n");
        let trace = Trace::parse(&text).unwrap();
        let access =
            |us, is_write, object, offset, len| Access { us, is_write, object, offset, len };
        assert_eq!(trace.accesses, [access(10, true, 2, 0, 100), access(20, false, 1, 8192, 4096)]);
        assert_eq!((trace.lost, trace.is_complete), (7, true));
        let cut = Trace::parse(&text[..HEAD.len() + 20]).unwrap();
        assert_eq!((cut.accesses.len(), cut.is_complete), (1, false));
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, error) in [
            ("", TraceError::Head),
            ("1 R 1 0 1\n", TraceError::Head),
            (HEAD, TraceError::Empty),
            (&format!("{HEAD}1 X 1 0 1\n"), TraceError::Line { line: 2 }),
            (&format!("{HEAD}1 R 1 0 1 1\n"), TraceError::Line { line: 2 }),
            (&format!("{HEAD}1 R 1 0\n"), TraceError::Line { line: 2 }),
            (&format!("{HEAD}1 R 1 0 -1\n"), TraceError::Line { line: 2 }),
            (&format!("{HEAD}# hello\n"), TraceError::Line { line: 2 }),
            (&format!("{HEAD}1 R 1 0 99999999999\n"), TraceError::Range { line: 2 }),
            (&format!("{HEAD}1 R 1 {} 1\n", u64::MAX), TraceError::Range { line: 2 }),
        ] {
            assert_eq!(Trace::parse(text), Err(error), "{text}");
        }
    }
}
