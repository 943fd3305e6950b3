//! `cenote cp`: extracts files, trees and volumes.
//!
//!     walk (object order) --> queue: small contents, xattrs --> this task: writes, one at a time
//!
//! Reading runs ahead on all processors; the command's own task writes, in order. An unreadable
//! block becomes a hole and is reported with file, offset and cause; the copy continues, and the
//! exit status is 1. `--strict` stops instead.
//!
//! [`destination`] decides where a single file or a volume goes; the files of a tree are always
//! new.

mod contents;
mod destination;
mod report;
mod target;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cenote_fs::{Extent, FileKind, FileStream, FileSystem, Follow, Lost, Node, Volume};
use cenote_pool::{Dataset, Pool};
use cenote_rt::{Error, FixedMap};
use rustix::fs::{CWD, OFlags};
use rustix::io::Errno;

use self::contents::{Contents as Read, Item, Queue};
use self::destination::{Destination, NewFile, Refusal};
use self::report::Report;
use self::target::{Place, Target, open_directory};
use super::walk::{Order, Step, Walk};
use super::{Contents, Options, Progress, describe, parse, shown, wrong_use};
use crate::getopt::Long;
use crate::io::{CommandResult, Exit, Io, words};
use crate::{argument, source};

const USAGE: &str = "\
usage: cenote cp [-r] [--strict] [--progress] [-d DIR|DEVICE]... [-k DATASET=KEYFILE]...
                 POOL/DATASET[@SNAP] [PATH] TARGET

Copies a file, a directory with its contents, a whole file system, or a volume out of a
pool. Holes stay holes; modes, times, extended attributes and hard links are kept,
owners and devices too when run as root. If TARGET is a directory, the copy of PATH is put
into it; without PATH, the contents of the file system are. A file or a volume may be copied
to a block device that is not in use and is large enough: holes are written as zeros.

  -r                  copy directories recursively
  --strict            stop at the first damage, instead of leaving a hole
  --progress          show progress even if standard error is not a terminal
  -d DIR|DEVICE       where the pool's devices are; may be repeated (-p is the same);
                      without it, a pool of the daemon, or of devices in /dev
  -T TXG              the pool as of that transaction group, if it is still there
  -k DATASET=KEYFILE  file with the key of an encryption root

Damage is reported with file, offset and cause; the status is then 1.
";

const STRICT: char = 's';
const PROGRESS: char = 'P';

pub(super) const OPTIONS: Options =
    ("r", &[Long::flag("strict", STRICT), Long::flag("progress", PROGRESS)]);

/// Runs the verb.
pub(super) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let Some((parsed, source)) = parse(args, OPTIONS, USAGE, io)? else { return Ok(()) };
    let (name, path, to) = match &parsed.operands[..] {
        [name, to] => (name, None, to),
        [name, path, to] => (name, Some(argument::bytes(path)), to),
        [] => return Err(wrong_use("missing dataset argument", USAGE)),
        [_] => return Err(wrong_use("missing target argument", USAGE)),
        _ => return Err(wrong_use("too many arguments", USAGE)),
    };
    let to = argument::path(to);
    source::run(async {
        let dataset = source.dataset(name).await?;
        let contents = super::open(&dataset).await?;
        let mut copy = Copy::new(parsed.has(STRICT), Progress::new(parsed.has(PROGRESS), None));
        let result = match contents {
            Contents::Volume(_) if path.is_some() => {
                Err(Exit::failed(format!("cp: '{name}' is a volume and has no files")))
            }
            Contents::Objects(_) => {
                Err(Exit::failed(format!("cp: '{name}' holds neither files nor a volume")))
            }
            Contents::Volume(volume) => copy.volume(&dataset, &volume, &to, io).await,
            Contents::Files(fs) => {
                let path = path.unwrap_or_else(|| b"/".to_vec());
                copy.files(&dataset, &fs, (&path, parsed.has('r')), &to, io).await
            }
        };
        let Copy { report, mut progress, target, .. } = copy;
        if result.is_err() {
            progress.clear(io.err)?;
        }
        result?;
        report.finish(&target.omitted, &mut progress, io)
    })
}

/// A directory being filled.
struct Open {
    directory: OwnedFd,
    read: Read,
}

/// A copy in progress.
struct Copy {
    target: Target,
    report: Report,
    progress: Progress,
    /// Directories from the start down to the current one; `None` for each that could not be
    /// created.
    open: Vec<Option<Open>>,
    /// A second handle of the first of them, which targets of hard links are relative to.
    base: Option<OwnedFd>,
    /// The first path of each object with several links.
    links: FixedMap<u64, Vec<u8>>,
}

impl Copy {
    fn new(is_strict: bool, progress: Progress) -> Self {
        let (target, report) = (Target::new(), Report::new(is_strict));
        let (open, base, links) = (Vec::new(), None, FixedMap::default());
        Self { target, report, progress, open, base, links }
    }

    async fn volume(
        &mut self,
        dataset: &Dataset,
        volume: &Volume,
        to: &Path,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let short = volume.name().rsplit('/').next().unwrap_or_default();
        let (parent, name) = place_of(to, short.as_bytes())?;
        self.progress = Progress::new(self.progress.is_wanted(), Some(volume.size()));
        let place = (parent.as_fd(), &name[..]);
        let destination = open_destination(place, volume.size(), dataset.pool(), to)?;
        let shown_name = volume.name().as_bytes();
        let stream = (volume.stream(), volume.size());
        if self.stream(&destination, stream, shown_name, io).await? {
            self.finish(destination, None, shown_name, io)?;
        }
        Ok(())
    }

    /// Copies one regular file to the destination that the caller named.
    async fn single_file(
        &mut self,
        pool: &Pool,
        read: &Read,
        (parent, name): (BorrowedFd<'_>, &[u8]),
        to: &Path,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let size = read.node.size();
        let destination = open_destination((parent, name), size, pool, to)?;
        let stream = match read.node.stream() {
            Ok(stream) => stream,
            Err(error) => return self.unreadable(&read.path, &error, io),
        };
        if self.stream(&destination, (stream, size), &read.path, io).await? {
            self.finish(destination, Some(read), &read.path, io)?;
        }
        Ok(())
    }

    /// Completes a copy to the destination that the caller named: a new file gets its attributes
    /// and its name, a device is flushed.
    fn finish(
        &mut self,
        destination: Destination<'_>,
        read: Option<&Read>,
        path: &[u8],
        io: &mut Io<'_>,
    ) -> CommandResult {
        match destination {
            Destination::File(new) => {
                if let Some(read) = read {
                    self.attributes(Place::Open(new.file().as_fd()), read, io)?;
                }
                self.outcome(path, "cannot create", new.keep(true), io)
            }
            Destination::Device(file) => {
                let flushed = file.sync_all().map_err(|error| errno(&error));
                self.outcome(path, "cannot flush the device", flushed, io)
            }
        }
    }

    async fn files(
        &mut self,
        dataset: &Dataset,
        fs: &std::sync::Arc<FileSystem>,
        (path, is_recursive): (&[u8], bool),
        to: &Path,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let node = fs.walk(path, Follow::No).await.map_err(|error| {
            Exit::failed(format!("cp: cannot open '{}': {}", shown(path), describe(&error)))
        })?;
        let name = path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
        let name = name.filter(|name| *name != b"." && *name != b"..").unwrap_or_default();
        if node.is_directory() && !is_recursive {
            let path = shown(path);
            return Err(Exit::failed(format!("cp: -r not specified; omitting directory '{path}'")));
        }
        let (parent, name) = place_of(to, name)?;
        if !node.is_directory() {
            self.progress = Progress::new(self.progress.is_wanted(), Some(node.size()));
            let is_regular = node.kind() == FileKind::Regular;
            let read = Read::read(path.to_vec(), node).await;
            let place = (parent.as_fd(), &name[..]);
            if is_regular {
                return self.single_file(dataset.pool(), &read, place, to, io).await;
            }
            return self.entry(read, place, io).await;
        }
        if node.object() == fs.root_object() {
            let total = dataset.phys().uncompressed_bytes;
            self.progress = Progress::new(self.progress.is_wanted(), Some(total));
        }
        let failed = |error| cannot("create directory", to.as_os_str().as_bytes(), error);
        let directory = match &name[..] {
            b"" => open_directory(parent.as_fd(), b"", OFlags::empty()),
            name => Target::directory(parent.as_fd(), name),
        };
        self.tree(node, path, directory.map_err(failed)?, io).await
    }

    /// Copies the contents of the directory `start` into `directory`.
    async fn tree(
        &mut self,
        start: Node,
        path: &[u8],
        directory: OwnedFd,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let mut walk = Walk::new(&start, Vec::new(), Order::Object).await;
        let read = Read::read(path.to_vec(), start).await;
        self.base = directory.try_clone().ok();
        self.open.push(Some(Open { directory, read }));
        let mut queue = Queue::default();
        let mut is_walking = true;
        loop {
            while is_walking && !queue.is_full() {
                match walk.next().await {
                    Some(Step::Node { path, node }) => queue.push(path, node),
                    Some(Step::Leave) => queue.push_item(Item::Leave),
                    Some(Step::Failed { path, error }) => {
                        queue.push_item(Item::Failed(path, error));
                    }
                    None => is_walking = false,
                }
            }
            match queue.pop().await {
                Some(item) => self.item(item, io).await?,
                None => return Ok(()),
            }
        }
    }

    async fn item(&mut self, item: Item, io: &mut Io<'_>) -> CommandResult {
        match item {
            Item::Failed(path, error) => self.unreadable(&path, &error, io),
            Item::Leave => self.leave(io),
            Item::Entry(read) if read.node.is_directory() => self.enter(*read, io),
            Item::Entry(read) => {
                // The directory is borrowed from here on while the rest of `self` is used.
                let Some(open) = self.open.pop() else { return Ok(()) };
                let result = match &open {
                    Some(Open { directory, .. }) => {
                        let name = last_name(&read.path).to_vec();
                        self.entry(*read, (directory.as_fd(), &name), io).await
                    }
                    None => Ok(()),
                };
                self.open.push(open);
                result
            }
        }
    }

    /// Creates a directory and enters it. Its attributes are set when it is left.
    fn enter(&mut self, read: Read, io: &mut Io<'_>) -> CommandResult {
        let Some(Some(Open { directory, .. })) = self.open.last() else {
            self.open.push(None);
            return Ok(());
        };
        match Target::directory(directory.as_fd(), last_name(&read.path)) {
            Ok(directory) => self.open.push(Some(Open { directory, read })),
            Err(error) => {
                self.open.push(None);
                self.outcome(&read.path, "cannot create directory", Err(error), io)?;
            }
        }
        Ok(())
    }

    fn leave(&mut self, io: &mut Io<'_>) -> CommandResult {
        let Some(Some(Open { directory, read })) = self.open.pop() else { return Ok(()) };
        self.attributes(Place::Open(directory.as_fd()), &read, io)
    }

    /// Copies anything but a directory.
    async fn entry(
        &mut self,
        mut read: Read,
        (parent, name): (BorrowedFd<'_>, &[u8]),
        io: &mut Io<'_>,
    ) -> CommandResult {
        let node = read.node.clone();
        if node.attributes().links > 1
            && let Some(base) = &self.base
        {
            if let Some(first) = self.links.get(&node.object()) {
                let linked = Target::link((base.as_fd(), first), (parent, name));
                return self.outcome(&read.path, "cannot create link", linked, io);
            }
            self.links.insert(node.object(), read.path.clone());
        }
        let made = match node.kind() {
            FileKind::Regular => return self.file(read, (parent, name), io).await,
            FileKind::Symlink => match read.target.take() {
                Some(Ok(target)) => Target::symlink(&target, parent, name).map(Some),
                Some(Err(error)) => return self.unreadable(&read.path, &error, io),
                None => Ok(None),
            },
            kind => self.target.special(kind, node.device(), parent, name),
        };
        match made {
            Ok(Some(handle)) => self.attributes(Place::Handle(handle.as_fd()), &read, io),
            Ok(None) => Ok(()),
            Err(error) => self.outcome(&read.path, "cannot create", Err(error), io),
        }
    }

    async fn file(
        &mut self,
        mut read: Read,
        (parent, name): (BorrowedFd<'_>, &[u8]),
        io: &mut Io<'_>,
    ) -> CommandResult {
        let size = read.node.size();
        let destination = match NewFile::create(parent, name) {
            Ok(new) => Destination::File(new),
            Err(error) => return self.outcome(&read.path, "cannot create", Err(error), io),
        };
        let is_whole = match read.pieces.take() {
            Some(pieces) => {
                let mut pieces = pieces.into_iter();
                self.fill(&destination, size, async || pieces.next(), &read.path, io).await?
            }
            None => match read.node.stream() {
                Ok(stream) => self.stream(&destination, (stream, size), &read.path, io).await?,
                Err(error) => return self.unreadable(&read.path, &error, io),
            },
        };
        let Destination::File(new) = destination else { return Ok(()) };
        if is_whole {
            self.attributes(Place::Open(new.file().as_fd()), &read, io)?;
            return self.outcome(&read.path, "cannot create", new.keep(false), io);
        }
        Ok(())
    }

    async fn stream(
        &mut self,
        destination: &Destination<'_>,
        (mut stream, size): (FileStream, u64),
        path: &[u8],
        io: &mut Io<'_>,
    ) -> CommandResult<bool> {
        self.fill(destination, size, async || stream.next().await, path, io).await
    }

    /// Writes the pieces of a file at their offsets; the gaps are holes. Returns false if this
    /// machine refused a write, which has been reported.
    async fn fill(
        &mut self,
        destination: &Destination<'_>,
        size: u64,
        mut next: impl AsyncFnMut() -> Option<std::result::Result<Extent, Lost>>,
        path: &[u8],
        io: &mut Io<'_>,
    ) -> CommandResult<bool> {
        if let Err(error) = destination.set_size(size) {
            self.outcome(path, "cannot set the size", Err(errno(&error)), io)?;
            return Ok(false);
        }
        while let Some(piece) = next().await {
            let (written, len) = match piece {
                Ok(Extent { offset, len, data: Some(data) }) => {
                    (destination.write(&data, offset), len)
                }
                Ok(Extent { offset, len, data: None }) => (destination.zero(offset, len), len),
                Err(lost) => {
                    self.progress.clear(io.err)?;
                    self.report.lost(path, &lost, io)?;
                    (destination.zero(lost.offset, lost.len), 0)
                }
            };
            if let Err(error) = written {
                self.outcome(path, "cannot write", Err(errno(&error)), io)?;
                return Ok(false);
            }
            self.progress.add(len, io.err)?;
        }
        Ok(true)
    }

    /// Sets the attributes of an entry, and reports those that cannot be read.
    fn attributes(&mut self, place: Place<'_>, read: &Read, io: &mut Io<'_>) -> CommandResult {
        for (name, error) in &read.lost_xattrs {
            self.progress.clear(io.err)?;
            let what = format!("extended attribute '{}': {}", shown(name), describe(error));
            self.report.failed(&read.path, &what, io)?;
        }
        let set = self.target.attributes(place, read.node.attributes(), &read.xattrs);
        self.outcome(&read.path, "cannot set attributes", set, io)
    }

    fn unreadable(&mut self, path: &[u8], error: &Error, io: &mut Io<'_>) -> CommandResult {
        self.progress.clear(io.err)?;
        self.report.unreadable(path, error, io)
    }

    /// Reports an error of this machine. Ends the command if every further operation would fail as
    /// well.
    fn outcome(
        &mut self,
        path: &[u8],
        what: &str,
        result: target::Result<()>,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let Err(error) = result else { return Ok(()) };
        if matches!(error, Errno::NOSPC | Errno::DQUOT | Errno::ROFS) {
            return Err(cannot(what.trim_start_matches("cannot "), path, error));
        }
        self.progress.clear(io.err)?;
        self.report.failed(path, &format!("{what}: {}", words(&error.into())), io)
    }
}

/// Returns the directory and name for something called `name`: in `to` if that is a directory, else
/// `to` itself.
fn place_of(to: &Path, name: &[u8]) -> CommandResult<(OwnedFd, Vec<u8>)> {
    let text = to.as_os_str().as_bytes();
    let failed = |error| cannot("open", text, error);
    let open = |path: &[u8]| open_directory(CWD, path, OFlags::empty());
    match open(text) {
        Ok(directory) => Ok((directory, name.to_vec())),
        Err(Errno::NOENT | Errno::NOTDIR) => {
            let last = to.file_name().ok_or_else(|| failed(Errno::NOENT))?;
            let parent = to.parent().map(|parent| parent.as_os_str().as_bytes());
            let parent = open(parent.unwrap_or_default()).map_err(failed)?;
            Ok((parent, last.as_bytes().to_vec()))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Opens the destination that the caller named as `to` for the bytes of one file or volume.
fn open_destination<'a>(
    (parent, name): (BorrowedFd<'a>, &'a [u8]),
    size: u64,
    pool: &Pool,
    to: &Path,
) -> CommandResult<Destination<'a>> {
    Destination::open(parent, name, size, pool).map_err(|refusal| {
        let what = match refusal {
            Refusal::System(_) => "create",
            _ => "write to",
        };
        let to = shown(to.as_os_str().as_bytes());
        Exit::failed(format!("cp: cannot {what} '{to}': {refusal}"))
    })
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn cannot(what: &str, path: &[u8], error: Errno) -> Exit {
    Exit::failed(format!("cp: cannot {what} '{}': {}", shown(path), words(&error.into())))
}

fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}
