//! `zfs holds`.

use std::fmt::Write as _;

use cenote_pool::{Dataset, DatasetName, Suffix, mos};

use super::value;
use crate::err;
use crate::getopt;
use crate::io::{CommandResult, Exit, Io};
use crate::source::{Source, dataset_of};
use crate::zpool::block_on;

/// Format of a hold's time.
const TIME: &str = "%a %b %e %H:%M %Y";

/// Runs `zfs holds`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "rHp", &[])?;
    if parsed.operands.is_empty() {
        return Err(Exit::usage("too few arguments"));
    }
    block_on(async {
        let (mut rows, mut is_incomplete) = (Vec::new(), false);
        for name in &parsed.operands {
            match holds(source, name, parsed.has('r')).await {
                Ok(found) => rows.extend(found),
                Err(Exit::Failed(message)) => {
                    err!(io, "{message}")?;
                    is_incomplete = true;
                }
                Err(other) => return Err(other),
            }
        }
        write!(io.out, "{}", render(&rows, parsed.has('H'), parsed.has('p')))?;
        if is_incomplete { Err(Exit::Status(1)) } else { Ok(()) }
    })
}

/// Returns snapshot, tag and time of each hold on the snapshot, with `is_recursive` also on
/// snapshots of the same name below.
async fn holds(
    source: &Source,
    name: &str,
    is_recursive: bool,
) -> Result<Vec<(String, String, u64)>, Exit> {
    let parsed = DatasetName::parse(name)
        .map_err(|error| Exit::failed(format!("cannot open '{name}': {error}")))?;
    let Suffix::Snapshot(short) = parsed.suffix else {
        return Err(Exit::usage(format!("'{name}' is not a snapshot")));
    };
    if !source.has_pools() {
        let dataset = parsed.dataset;
        return Err(Exit::failed(format!("cannot open '{dataset}': dataset does not exist")));
    }
    let head = source.dataset(parsed.dataset).await?;
    if !is_recursive {
        let whole = format!("{}@{short}", head.name());
        let snapshot = dataset_of(head.pool(), &whole).await?;
        return of_snapshot(&snapshot).await;
    }
    let mut rows = Vec::new();
    let mut todo = vec![head];
    while let Some(dataset) = todo.pop() {
        if let Some(snapshot) = mos::optional(dataset.snapshot(short).await)? {
            rows.extend(of_snapshot(&snapshot).await?);
        }
        todo.extend(dataset.children().await?.into_iter().rev());
    }
    Ok(rows)
}

async fn of_snapshot(snapshot: &Dataset) -> Result<Vec<(String, String, u64)>, Exit> {
    let holds = snapshot.holds().await?.into_iter();
    Ok(holds.map(|hold| (snapshot.name().to_owned(), hold.tag, hold.time)).collect())
}

/// Formats the table; headings widen only with their cells.
fn render(rows: &[(String, String, u64)], is_scripted: bool, is_literal: bool) -> String {
    let mut text = String::new();
    let widest = |part: fn(&(String, String, u64)) -> &String| {
        rows.iter().map(|row| part(row).chars().count()).max().unwrap_or(0)
    };
    let (name_width, tag_width) = (widest(|row| &row.0), widest(|row| &row.1));
    if !is_scripted && !rows.is_empty() {
        text = format!("{:name_width$}  {:tag_width$}  TIMESTAMP\n", "NAME", "TAG");
    }
    for (name, tag, time) in rows {
        let time = if is_literal { time.to_string() } else { value::date(*time, TIME) };
        let _ = if is_scripted {
            writeln!(text, "{name}\t{tag}\t{time}")
        } else {
            writeln!(text, "{name:name_width$}  {tag:tag_width$}  {time}")
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_prints_the_table_of_openzfs() {
        let rows = [("t/a@r".to_owned(), "k".to_owned(), 7)];
        assert_eq!(render(&rows, false, true), "NAME   TAG  TIMESTAMP\nt/a@r  k  7\n");
        assert_eq!(render(&rows, true, true), "t/a@r\tk\t7\n");
        assert_eq!(render(&[], false, true), "");
    }
}
