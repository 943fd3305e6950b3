//! `zdb -h`: prints the pool's history; `-hh`: with every field of each record.

use cenote_pool::Pool;
use cenote_pool::history::HistoryEvent;

use super::{Options, text};
use crate::io::{CommandResult, Io};
use crate::{err, out};

/// Columns before the fields of a record.
const FIELD_INDENT: usize = 2;
/// Columns before the input and output lists of an ioctl.
const IOCTL_INDENT: usize = 8;

/// Prints the history.
pub(super) async fn run(pool: &Pool, options: &Options, io: &mut Io<'_>) -> CommandResult {
    out!(io, "\nHistory:")?;
    let history = pool.history().await?;
    for record in &history.records {
        let time = text::history_time(record.time);
        match &record.event {
            HistoryEvent::Command(command) => out!(io, "{time} {command}")?,
            HistoryEvent::Internal { txg, name, dataset, text } => {
                write!(io.out, "{time} [txg:{txg}] {name}")?;
                if let Some((dataset, object)) = dataset {
                    write!(io.out, " {dataset} ({object})")?;
                }
                out!(io, " {text}")?;
            }
            HistoryEvent::Ioctl { name, input, output, output_size, errno, .. } => {
                out!(io, "{time} ioctl {name}")?;
                if let Some(input) = input {
                    out!(io, "    input:")?;
                    text::nvlist(io, input, IOCTL_INDENT)?;
                }
                if let Some(output) = output {
                    out!(io, "    output:")?;
                    text::nvlist(io, output, IOCTL_INDENT)?;
                }
                if let Some(size) = output_size {
                    out!(io, "    output nvlist omitted; original size: {}KB", size / 1024)?;
                }
                if *errno != 0 {
                    out!(io, "    errno: {errno}")?;
                }
            }
            HistoryEvent::Other => {
                if options.count('h') < 2 {
                    text::nvlist(io, &record.list, FIELD_INDENT)?;
                }
            }
        }
        if options.count('h') >= 2 {
            text::nvlist(io, &record.list, FIELD_INDENT)?;
        }
    }
    if let Some(damage) = &history.damage {
        err!(io, "Unable to read history: {damage}")?;
    }
    Ok(())
}
