//! Colours of `zpool status`, as OpenZFS has them: labels are bold, texts about problems yellow,
//! states yellow or red, and counts of errors red.
//!
//! `ZFS_COLOR` asks for them, and standard output has to be a terminal
//! ([`environment::wants_colours`](crate::environment::wants_colours)). The plain text is coloured
//! line by line, so that what a line says does not depend on its colours.

use std::fmt::Write as _;

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";
const END: &str = "\x1b[0m";

/// Labels at the beginning of lines.
const LABELS: [&str; 9] = [
    "  pool:", " state:", "status:", "action:", "   see:", "  scan:", "remove:", "config:",
    "errors:",
];
/// Labels whose text describes a problem.
const PROBLEMS: [&str; 2] = ["status:", "action:"];

/// Returns the colour of a state; none for healthy ones.
fn of_state(state: &str) -> Option<&'static str> {
    match state {
        "FAULTED" | "SUSPENDED" | "UNAVAIL" => Some(RED),
        "OFFLINE" | "DEGRADED" | "REMOVED" => Some(YELLOW),
        _ => None,
    }
}

/// Colours the output of `zpool status`.
pub(super) fn status(text: &str) -> String {
    let (mut coloured, mut is_problem, mut is_table) = (String::new(), false, false);
    for line in text.lines() {
        if let Some(label) = LABELS.into_iter().find(|label| line.starts_with(label)) {
            is_problem = PROBLEMS.contains(&label);
            is_table = label == "config:";
            let rest = &line[label.len()..];
            let colour = if is_problem { Some(YELLOW) } else { of_state(rest.trim()) };
            let _ = writeln!(coloured, "{BOLD}{label}{END}{}", painted(rest, colour));
        } else if is_problem && line.starts_with('\t') {
            let _ = writeln!(coloured, "{}", painted(line, Some(YELLOW)));
        } else if is_table && line.starts_with('\t') {
            let _ = writeln!(coloured, "{}", row(line));
        } else {
            let _ = writeln!(coloured, "{line}");
        }
    }
    coloured
}

fn painted(text: &str, colour: Option<&str>) -> String {
    match colour {
        Some(colour) if !text.is_empty() => format!("{colour}{text}{END}"),
        _ => text.to_owned(),
    }
}

/// Colours a row of the table of vdevs: name and state, and counts other than 0.
fn row(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.starts_with(&["NAME", "STATE"]) {
        return painted(line, Some(BOLD));
    }
    let Some(state) = words.get(1).copied() else { return line.to_owned() };
    let Some(end) = line.rfind(&format!(" {state}")).map(|at| at + 1 + state.len()) else {
        return line.to_owned();
    };
    let (head, mut rest) = line.split_at(end);
    let mut coloured = painted(head, of_state(state));
    // Three counts; notes may follow.
    for _ in 0..3 {
        let start = rest.len() - rest.trim_start().len();
        let len = rest[start..].find(' ').unwrap_or(rest.len() - start);
        let (space, count, after) =
            (&rest[..start], &rest[start..start + len], &rest[start + len..]);
        let is_count = count.starts_with(|c: char| c.is_ascii_digit());
        coloured.push_str(space);
        coloured.push_str(&painted(count, (is_count && count != "0").then_some(RED)));
        rest = after;
    }
    coloured + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes colours.
    fn plain(text: &str) -> String {
        [BOLD, RED, YELLOW, END].iter().fold(text.to_owned(), |text, code| text.replace(code, ""))
    }

    #[test]
    fn status_is_coloured_and_says_the_same() {
        let text = "  pool: t\n state: DEGRADED\nstatus: One or more\n\tdevices.\naction: Do it.\n\
                    \x20  see: https://x\n  scan: none\nconfig:\n\n\
                    \tNAME        STATE     READ WRITE CKSUM\n\
                    \tt           DEGRADED     0     0     0\n\
                    \t  /d/0      ONLINE       0     3  1.2K  (resilvering)\n\
                    \t  /d/1      UNAVAIL      0     0     0  cannot open\n\
                    \tspares\n\t  /d/2      AVAIL   \n\nerrors: No known data errors\n";
        let coloured = status(text);
        assert_eq!(plain(&coloured), text);
        for part in [
            "\x1b[1m state:\x1b[0m\x1b[33m DEGRADED\x1b[0m\n",
            "\x1b[33m\tdevices.\x1b[0m\n",
            "\t  /d/0      ONLINE       0     \x1b[31m3\x1b[0m  \x1b[31m1.2K\x1b[0m  (resilvering)\n",
            "\x1b[31m\t  /d/1      UNAVAIL\x1b[0m      0     0     0  cannot open\n",
            "\x1b[1merrors:\x1b[0m No known data errors\n",
        ] {
            assert!(coloured.contains(part), "{part:?}\n{coloured:?}");
        }
    }
}
