//! Processes, mounts and FUSE connections, as the kernel shows them.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// A process, distinguished from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// In ticks since the system was started.
    start_time: u64,
}

/// Returns the fields of `/proc/PID/stat` from the state on.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may have any contents.
    let fields = text.rsplit(") ").next()?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Returns the state of a process as a letter: `T` stopped, `Z` zombie.
pub(crate) fn state(pid: u32) -> Option<char> {
    stat(pid)?.first()?.chars().next()
}

/// Returns the children of a process, including zombies.
pub(crate) fn children(parent: u32) -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let of_parent = pids.filter_map(|pid: u32| {
        let fields = stat(pid)?;
        let is_child = fields.get(1)?.parse() == Ok(parent);
        let start_time = fields.get(19)?.parse().ok()?;
        is_child.then_some(Process { pid, start_time })
    });
    of_parent.collect()
}

impl Process {
    /// Whether it has not ended yet.
    pub(crate) fn is_alive(self) -> bool {
        let Some(fields) = stat(self.pid) else { return false };
        let is_same = fields.get(19).and_then(|time| time.parse().ok()) == Some(self.start_time);
        is_same && !matches!(fields.first().map(String::as_str), Some("Z" | "X"))
    }
}

/// A mount below a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountLine {
    /// Minor number of its device: the number of its FUSE connection.
    pub(crate) number: String,
    pub(crate) at: PathBuf,
    /// The file system: `pool/dataset`.
    pub(crate) source: String,
}

/// Returns cenote's mounts at or below a directory, in order.
pub(crate) fn mounts(folder: &Path) -> Vec<MountLine> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = fields.get(2)?.split(':').nth(1)?.to_owned();
        let at = PathBuf::from(fields.get(4)?);
        let source = line.split_once(" - fuse.zfs ")?.1.split(' ').next()?.to_owned();
        at.starts_with(folder).then_some(MountLine { number, at, source })
    };
    table.lines().filter_map(line).collect()
}

/// A FUSE connection: its number, and the inode of its control directory, which no later connection
/// has.
pub(crate) type Connection = (String, u64);

/// Returns the control directory of FUSE connections, `None` without root.
fn control() -> Option<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    fsconfig_create(&context).ok()?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()
}

/// Returns the FUSE connections, `None` if they are unknown.
pub(crate) fn connections() -> Option<BTreeSet<Connection>> {
    let control = control()?;
    let names: Vec<String> = Dir::read_from(&control)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
        .filter(|name| !name.starts_with('.'))
        .collect();
    let with_inode = |name: String| {
        // It may end meanwhile.
        let found = rustix::fs::statat(&control, name.as_str(), AtFlags::empty()).ok()?;
        Some((name, found.st_ino))
    };
    Some(names.into_iter().filter_map(with_inode).collect())
}

/// Returns the kernel stacks of the threads of a process.
pub(crate) fn stacks(pid: u32) -> String {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return String::new() };
    let stack = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stack")).ok();
    tasks.filter_map(|task| stack(task.ok()?)).collect::<Vec<_>>().join("\n")
}
