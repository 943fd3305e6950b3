//! Recorded commands of OpenZFS: the command line, its output, its exit status.
//!
//! ```text
//!   $ zpool create -Z t /dev/shm/v/a
//!   stderr: invalid option 'Z'
//!   stderr: usage:
//!   exit 2
//! ```
//!
//! Lines without a mark are standard output. The files are in the folder `wording` of the golden
//! set.

use crate::golden;

/// A command that was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wording {
    /// The command line.
    pub command: String,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// The exit status.
    pub status: i32,
}

/// The commands of a file, in order; if the file is not available, reports that the test is skipped
/// and returns none.
pub fn wordings(file: &str) -> Option<Vec<Wording>> {
    golden::wording(file).map(|text| parse(&text))
}

fn parse(text: &str) -> Vec<Wording> {
    let mut all = Vec::new();
    let mut open: Option<Wording> = None;
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            let (out, err) = (String::new(), String::new());
            open = Some(Wording { command: command.to_owned(), out, err, status: 0 });
            continue;
        }
        // Lines between two commands are ignored.
        let Some(wording) = &mut open else { continue };
        if let Some(line) = line.strip_prefix("stderr: ") {
            wording.err.extend([line, "\n"]);
        } else if line == "stderr:" {
            wording.err.push('\n');
        } else if let Some(status) = line.strip_prefix("exit ") {
            wording.status = status.parse().expect("a status");
            all.extend(open.take());
        } else {
            wording.out.extend([line, "\n"]);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_and_statuses_are_told_apart() {
        let text = "$ zfs list\nNAME\n\nt\nexit 0\n\n$ zfs no\nstderr: a\nstderr:\nexit 2\n";
        let wording = |command: &str, out: &str, err: &str, status| Wording {
            command: command.to_owned(),
            out: out.to_owned(),
            err: err.to_owned(),
            status,
        };
        assert_eq!(
            parse(text),
            [wording("zfs list", "NAME\n\nt\n", "", 0), wording("zfs no", "", "a\n\n", 2)]
        );
    }
}
