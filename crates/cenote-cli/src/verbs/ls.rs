//! `cenote ls`: names, attributes, and manifests.
//!
//! The plain forms look like those of the system's `ls`, with numbers for owners. `--json` prints
//! the fields of golden manifests, one object per line; with `-R` every entry below the path and
//! the path itself, sorted by path. Rows are built concurrently and printed in order; contents of
//! large files are read one after another, so that memory stays bounded.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::Arc;

use cenote_fs::{Entry, FileKind, Follow, Node};
use cenote_rt::{Error, FixedSet, JoinHandle, Kind, Result, Semaphore};

use super::json::Row;
use super::walk::{self, Nodes, Order, Step, Walk};
use super::{Contents, Options as VerbOptions, ReachedBefore, describe, parse, shown, wrong_use};
use crate::argument;
use crate::getopt::Long;
use crate::io::{CommandResult, Exit, Io};
use crate::{err, source};

const USAGE: &str = "\
usage: cenote ls [-alR] [--json] [--checksum] [-d DIR|DEVICE]... [-k DATASET=KEYFILE]...
                 POOL/DATASET[@SNAP] [PATH]

Lists a directory, or shows one file.

  -l                  mode, links, owner, group, size, time of change, target
  -R                  list directories recursively
  --json              one JSON object per line; with -R sorted by path, starting with '.'
  --checksum          with --json: SHA-256 of contents and of extended attributes
  -d DIR|DEVICE       where the pool's devices are; may be repeated (-p is the same);
                      without it, a pool of the daemon, or of devices in /dev
  -T TXG              the pool as of that transaction group, if it is still there
  -k DATASET=KEYFILE  file with the key of an encryption root
";

const JSON: char = 'j';
const CHECKSUM: char = 'c';

pub(super) const OPTIONS: VerbOptions =
    ("alR", &[Long::flag("json", JSON), Long::flag("checksum", CHECKSUM)]);

/// Rows that are built concurrently.
const ROWS_AHEAD: usize = 64;
/// Files larger than this are read one after another.
const LARGE_FILE_BYTES: u64 = 4 << 20;
/// Rows that read contents concurrently.
const READERS: usize = 4;

/// The options of the command line.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
struct Options {
    is_long: bool,
    is_recursive: bool,
    has_checksums: bool,
    /// Control characters are replaced, because the output is a terminal.
    is_terminal: bool,
}

/// Runs the verb.
pub(super) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let Some((parsed, source)) = parse(args, OPTIONS, USAGE, io)? else { return Ok(()) };
    let (name, path) = match &parsed.operands[..] {
        [] => return Err(wrong_use("missing dataset argument", USAGE)),
        [name] => (name, "/"),
        [name, path] => (name, path.as_str()),
        _ => return Err(wrong_use("too many arguments", USAGE)),
    };
    let options = Options {
        is_long: parsed.has('l'),
        is_recursive: parsed.has('R'),
        has_checksums: parsed.has(CHECKSUM),
        is_terminal: std::io::stdout().is_terminal(),
    };
    if options.has_checksums && !parsed.has(JSON) {
        return Err(wrong_use("--checksum needs --json", USAGE));
    }
    source::run(async {
        let dataset = source.dataset(name).await?;
        let Contents::Files(fs) = super::open(&dataset).await? else {
            let reason = "operation not applicable to datasets of this type";
            return Err(Exit::failed(format!("cannot open '{name}': {reason}")));
        };
        let bytes = argument::bytes(path);
        let node = fs.walk(&bytes, Follow::No).await.map_err(|error| {
            Exit::failed(format!("ls: cannot access '{}': {}", shown(&bytes), describe(&error)))
        })?;
        let mut listing = Listing { options, is_complete: true };
        if parsed.has(JSON) {
            listing.json(&node, &bytes, io).await?;
        } else {
            listing.plain(&node, &bytes, io).await?;
        }
        if listing.is_complete { Ok(()) } else { Err(Exit::Status(1)) }
    })
}

struct Listing {
    options: Options,
    is_complete: bool,
}

impl Listing {
    fn fail(&mut self, path: &[u8], error: &Error, io: &mut Io<'_>) -> CommandResult {
        self.is_complete = false;
        io.out.flush()?;
        err!(io, "ls: {}: {}", shown(path), describe(error))
    }

    async fn plain(&mut self, start: &Node, path: &[u8], io: &mut Io<'_>) -> CommandResult {
        if !start.is_directory() {
            return self.row(path, Some(start), io).await;
        }
        let mut pending = vec![(path.to_vec(), start.clone())];
        let mut visited = FixedSet::default();
        while let Some((path, directory)) = pending.pop() {
            if !visited.insert(directory.object()) {
                self.fail(&path, &Error::corrupt(ReachedBefore), io)?;
                continue;
            }
            if self.options.is_recursive {
                io.out.write_all(if visited.len() == 1 { b"" } else { b"\n" })?;
                self.write_name(&path, io)?;
                io.out.write_all(b":\n")?;
            }
            self.directory(&directory, &path, &mut pending, io).await?;
        }
        Ok(())
    }

    /// Lists one directory, and pushes its subdirectories onto the stack, the first one on top.
    async fn directory(
        &mut self,
        directory: &Node,
        path: &[u8],
        pending: &mut Vec<(Vec<u8>, Node)>,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let (mut entries, errors) = walk::list(directory).await;
        for error in errors {
            self.fail(path, &error, io)?;
        }
        entries.sort_by(|a, b| walk::compare(&a.name, &b.name));
        let wants_node = |entry: &&Entry| {
            let may_descend = matches!(entry.kind, None | Some(FileKind::Directory));
            self.options.is_long || (self.options.is_recursive && may_descend)
        };
        let objects = entries.iter().filter(wants_node).map(|entry| entry.object).collect();
        let opened: Vec<bool> = entries.iter().map(|entry| wants_node(&entry)).collect();
        let mut nodes = Nodes::new(directory.filesystem(), objects);
        let mut below = Vec::new();
        for (entry, is_opened) in entries.iter().zip(opened) {
            let node = if is_opened { nodes.next().await.transpose() } else { Ok(None) };
            match node {
                Ok(node) => {
                    self.row(&entry.name, node.as_ref(), io).await?;
                    let directory = node.filter(Node::is_directory);
                    below.extend(directory.map(|node| (walk::join(path, &entry.name), node)));
                }
                Err(error) => self.fail(&walk::join(path, &entry.name), &error, io)?,
            }
        }
        if self.options.is_recursive {
            pending.extend(below.into_iter().rev());
        }
        Ok(())
    }

    async fn row(&mut self, name: &[u8], node: Option<&Node>, io: &mut Io<'_>) -> CommandResult {
        let node = node.filter(|_| self.options.is_long);
        if let Some(node) = node {
            write!(io.out, "{} ", long(node))?;
        }
        self.write_name(name, io)?;
        if let Some(node) = node.filter(|node| node.kind() == FileKind::Symlink) {
            match node.target().await {
                Ok(target) => {
                    io.out.write_all(b" -> ")?;
                    self.write_name(&target, io)?;
                }
                Err(error) => self.fail(name, &error, io)?,
            }
        }
        Ok(io.out.write_all(b"\n")?)
    }

    /// Writes a name unchanged, or, on a terminal, without control characters.
    fn write_name(&self, name: &[u8], io: &mut Io<'_>) -> CommandResult {
        if self.options.is_terminal {
            let clean = |c: char| if c.is_control() { '?' } else { c };
            let name: String = shown(name).chars().map(clean).collect();
            io.out.write_all(name.as_bytes())?;
        } else {
            io.out.write_all(name)?;
        }
        Ok(())
    }

    async fn json(&mut self, start: &Node, path: &[u8], io: &mut Io<'_>) -> CommandResult {
        let readers = Arc::new(Semaphore::new(READERS));
        let mut rows = Rows { pending: VecDeque::new(), readers, options: self.options };
        let start_path = if start.is_directory() { b".".to_vec() } else { path.to_vec() };
        if self.options.is_recursive || !start.is_directory() {
            rows.start(start_path, start.clone());
        }
        if start.is_directory() {
            let mut walk = Walk::new(start, Vec::new(), Order::Path).await;
            if !self.options.is_recursive {
                walk = walk.shallow();
            }
            while let Some(step) = walk.next().await {
                match step {
                    Step::Node { path, node } => rows.start(path, node),
                    Step::Leave => {}
                    Step::Failed { path, error } => self.fail(&path, &error, io)?,
                }
                while rows.pending.len() >= ROWS_AHEAD {
                    self.finish(&mut rows, io).await?;
                }
            }
        }
        while !rows.pending.is_empty() {
            self.finish(&mut rows, io).await?;
        }
        Ok(())
    }

    /// Prints the row that was started first.
    async fn finish(&mut self, rows: &mut Rows, io: &mut Io<'_>) -> CommandResult {
        let Some((path, row)) = rows.pending.pop_front() else { return Ok(()) };
        let row = match row {
            Pending::Task(task) => task.await.unwrap_or_else(|e| Err(Error::new(Kind::Io, e))),
            Pending::Row(row) => Ok(row),
        };
        match row {
            Ok(row) => {
                io.out.write_all(row.to_line().as_bytes())?;
                io.out.write_all(b"\n")?;
                Ok(())
            }
            Err(error) => self.fail(&path, &error, io),
        }
    }
}

/// Rows being built, in print order.
struct Rows {
    pending: VecDeque<(Vec<u8>, Pending)>,
    readers: Arc<Semaphore>,
    options: Options,
}

enum Pending {
    Task(JoinHandle<Result<Row>>),
    Row(Row),
}

impl Rows {
    fn start(&mut self, path: Vec<u8>, node: Node) {
        let has_checksums = self.options.has_checksums;
        let has_contents = has_checksums
            && (node.has_xattrs() || (node.kind() == FileKind::Regular && node.size() > 0));
        if !has_contents && node.kind() != FileKind::Symlink {
            let row = Row::of_attributes(path.clone(), node, has_checksums);
            self.pending.push_back((path, Pending::Row(row)));
            return;
        }
        let readers = Arc::clone(&self.readers);
        let permits = if node.size() > LARGE_FILE_BYTES { READERS } else { 1 } as u32;
        let below = path.clone();
        let task = cenote_rt::spawn(async move {
            // The semaphore is never closed; without a permit the row would only be built earlier.
            let _permit = readers.acquire_many(permits).await;
            Row::gather(below, node, has_checksums).await
        });
        self.pending.push_back((path, Pending::Task(task)));
    }
}

/// Returns the columns of `-l` before the name.
fn long(node: &Node) -> String {
    let attributes = node.attributes();
    let size = match node.device() {
        Some((major, minor)) => format!("{major}, {minor}"),
        None => attributes.size.to_string(),
    };
    let (uid, gid) = (attributes.uid.rid(), attributes.gid.rid());
    let time = jiff::Timestamp::from_second(attributes.mtime.seconds)
        .map(|time| time.to_zoned(jiff::tz::TimeZone::system()).strftime("%F %R").to_string());
    let time = time.unwrap_or_else(|_| attributes.mtime.seconds.to_string());
    let mode = mode_text(node.kind(), attributes.mode);
    let plus = if node.has_xattrs() { '+' } else { ' ' };
    format!("{mode}{plus}{:>4} {uid:>5} {gid:>5} {size:>12} {time}", attributes.links)
}

/// Returns kind and permissions in ten characters.
fn mode_text(kind: FileKind, mode: u64) -> String {
    let first = match kind {
        FileKind::Fifo => 'p',
        FileKind::CharDevice => 'c',
        FileKind::Directory => 'd',
        FileKind::BlockDevice => 'b',
        FileKind::Regular => '-',
        FileKind::Symlink => 'l',
        FileKind::Socket => 's',
        FileKind::Other(_) => '?',
    };
    let mut text = String::from(first);
    for (shift, special, letters) in
        [(6, 0o4000, ('s', 'S')), (3, 0o2000, ('s', 'S')), (0, 0o1000, ('t', 'T'))]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letters.0,
            (true, false) => letters.1,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        for (kind, mode, want) in [
            (FileKind::Directory, 0o755, "drwxr-xr-x"),
            (FileKind::Regular, 0o4755, "-rwsr-xr-x"),
            (FileKind::Regular, 0o2644, "-rw-r-Sr--"),
            (FileKind::Directory, 0o1777, "drwxrwxrwt"),
            (FileKind::Symlink, 0o777, "lrwxrwxrwx"),
        ] {
            assert_eq!(mode_text(kind, mode), want);
        }
    }
}
