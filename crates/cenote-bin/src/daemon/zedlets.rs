//! Scripts that run on events: OpenZFS's zedlets.
//!
//! ```text
//!   events of each pool ──> queue, bounded ──> one thread: for each event, each script whose name
//!                                              begins with `all`, the class or the subclass
//! ```
//!
//! Scripts are in `zed.d` of the state directory, or in `CENOTE_ZEDLET_DIR`. The conventions are
//! those of zed(8): a name matches if a character that is no letter follows, scripts run in the
//! order of their names with the event in `ZEVENT_…` variables, and a script must be executable,
//! owned by root (or by the daemon's user) and not writable by others; the same holds for the
//! folder. Scripts run one at a time, in the order of the events: each is synchronous (`-sync-`). A
//! script that takes longer than [`TIMEOUT`] is killed with its children.
//!
//! Events wait in a bounded queue and never hold back the engine: if scripts are too slow, later
//! events are dropped, and their number is logged. Events of a stopped daemon are not caught up.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_cli::{EventDescription, describe_event};
use cenote_engine::{Engine, Event, EventLog, PoolEvent};
use rustix::process::{Pid, Signal, geteuid, kill_process_group};

use super::log;
use super::place::Place;

/// Time that a script may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of checks whether a script has ended.
const STEP: Duration = Duration::from_millis(5);
/// Events that wait for scripts.
const QUEUED_MAX: usize = 1000;
/// Class of records of the history.
const HISTORY_CLASS: &str = "sysevent.fs.zfs.history_event";
/// Search path of scripts: C's `_PATH_STDPATH`.
const SEARCH_PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin";
/// Permissions to write for the group and for others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Permission to execute for the owner.
const EXECUTABLE: u32 = 0o100;
/// Programs that scripts find by a variable of the same name.
const PROGRAMS: [&str; 4] = ["zpool", "zfs", "zdb", "zinject"];

/// The queue of events for scripts.
#[derive(Debug)]
pub(super) struct Zedlets {
    queue: SyncSender<EventDescription>,
    /// Events that did not fit into the queue since this was last logged.
    dropped: Arc<AtomicU64>,
    /// Records of histories in the queue: half of it at most, so that many of them at once do not
    /// keep failures out.
    records: Arc<AtomicUsize>,
}

impl Zedlets {
    /// Starts the thread that runs scripts.
    pub(super) fn start(place: &Place) -> std::io::Result<Self> {
        let (queue, events) = sync_channel(QUEUED_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let records = Arc::new(AtomicUsize::new(0));
        let runner = Runner {
            records: Arc::clone(&records),
            folder: place.zedlets(),
            programs: link_programs(place),
            place: place.clone(),
            dropped: Arc::clone(&dropped),
            refused: BTreeSet::new(),
        };
        let thread = std::thread::Builder::new().name("zedlets".to_owned());
        thread.spawn(move || runner.run(&events))?;
        Ok(Self { queue, dropped, records })
    }

    /// Runs scripts on the events of a pool, until it is closed.
    pub(super) fn follow(self: &Arc<Self>, engine: &Arc<Engine>) {
        let (zedlets, events) = (Arc::clone(self), Arc::clone(engine.health().events()));
        let engine = Arc::downgrade(engine);
        drop(cenote_rt::spawn_background(async move {
            let mut last = 0;
            loop {
                // Before reading, so that later events wake this task.
                let told = events.told();
                if zedlets.pass_on(&events, &engine, &mut last) {
                    return;
                }
                told.await;
            }
        }));
    }

    /// Queues the events after `last`. Returns whether the pool was closed.
    fn pass_on(&self, events: &EventLog, engine: &Weak<Engine>, last: &mut u64) -> bool {
        let mut has_left = false;
        for noted in events.after(*last) {
            *last = noted.eid;
            has_left |=
                matches!(noted.event, Event::Pool(PoolEvent::Exported | PoolEvent::Destroyed));
            let is_record = matches!(noted.event, Event::History(_));
            let is_too_many = is_record && self.records.load(Ordering::Relaxed) >= QUEUED_MAX / 2;
            let described = describe_event(events, &noted, engine.upgrade().as_deref());
            // Before the runner takes it.
            self.records.fetch_add(usize::from(is_record), Ordering::Relaxed);
            if is_too_many || self.queue.try_send(described).is_err() {
                self.records.fetch_sub(usize::from(is_record), Ordering::Relaxed);
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        has_left
    }
}

/// Links the programs into a folder of the state directory, and returns the folder.
fn link_programs(place: &Place) -> Option<PathBuf> {
    let folder = place.state.join("zedlet-bin");
    let link = || {
        let program = std::env::current_exe()?;
        std::fs::create_dir_all(&folder)?;
        for name in PROGRAMS {
            let at = folder.join(name);
            std::fs::remove_file(&at).ok();
            std::os::unix::fs::symlink(&program, at)?;
        }
        Ok::<_, std::io::Error>(())
    };
    match link() {
        Ok(()) => Some(folder),
        Err(error) => {
            log::warn!(path = %folder.display(), cause = %error, "no programs for zedlets");
            None
        }
    }
}

/// Whether a script of this name is for events of this class.
fn matches(name: &str, event: &EventDescription) -> bool {
    [event.class, event.subclass, "all"].into_iter().any(|prefix| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphabetic()))
    })
}

/// Returns why a file or folder is not trusted.
fn distrust(metadata: &Metadata, owner: u32) -> Option<&'static str> {
    match metadata.uid() {
        uid if uid != 0 && uid != owner => Some("not owned by root or the daemon's user"),
        _ if metadata.permissions().mode() & WRITABLE_BY_OTHERS != 0 => {
            Some("writable by group or other")
        }
        _ => None,
    }
}

/// Returns why a file is no script.
fn refusal(metadata: &Metadata, owner: u32) -> Option<&'static str> {
    if !metadata.is_file() {
        return Some("not a regular file");
    }
    let is_executable = metadata.permissions().mode() & EXECUTABLE != 0;
    distrust(metadata, owner).or((!is_executable).then_some("not executable by user"))
}

/// The thread that runs scripts.
struct Runner {
    folder: PathBuf,
    /// Folder with links to this program.
    programs: Option<PathBuf>,
    place: Place,
    dropped: Arc<AtomicU64>,
    records: Arc<AtomicUsize>,
    /// Names of files that were refused, which is logged once.
    refused: BTreeSet<String>,
}

impl Runner {
    fn run(mut self, events: &Receiver<EventDescription>) {
        while let Ok(event) = events.recv() {
            if event.class == HISTORY_CLASS {
                self.records.fetch_sub(1, Ordering::Relaxed);
            }
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                log::warn!(count = %dropped, "events without zedlets");
            }
            for name in self.scripts(&event) {
                self.carry_out(&name, &event);
            }
        }
    }

    /// Returns the names of the scripts for an event, sorted.
    fn scripts(&mut self, event: &EventDescription) -> Vec<String> {
        let owner = geteuid().as_raw();
        // Without a folder there are no scripts.
        let Ok(folder) = std::fs::metadata(&self.folder) else { return Vec::new() };
        if let Some(cause) = distrust(&folder, owner) {
            self.refuse(".", cause);
            return Vec::new();
        }
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<_> =
            names.filter(|name| !name.starts_with('.') && matches(name, event)).collect();
        names.sort_unstable();
        names.retain(|name| {
            // As in zed, links are followed.
            let Ok(metadata) = std::fs::metadata(self.folder.join(name)) else { return false };
            let refusal = refusal(&metadata, owner);
            refusal.inspect(|cause| self.refuse(name, cause)).is_none()
        });
        names
    }

    fn refuse(&mut self, name: &str, cause: &str) {
        if self.refused.insert(name.to_owned()) {
            let path = self.folder.join(name);
            log::warn!(path = %path.display(), cause = %cause, "zedlet ignored");
        }
    }

    fn carry_out(&self, name: &str, event: &EventDescription) {
        match self.command(name, event).spawn() {
            Ok(child) => {
                let outcome = wait(child);
                log::debug!(zedlet = %name, class = %event.class, outcome = %outcome, "zedlet ended");
            }
            Err(error) => log::warn!(zedlet = %name, cause = %error, "zedlet not started"),
        }
    }

    fn command(&self, name: &str, event: &EventDescription) -> Command {
        let mut command = Command::new(self.folder.join(name));
        command.arg0(name).current_dir("/").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.env_clear().env("PATH", SEARCH_PATH).env("IFS", " \t\n");
        if let Some(zone) = std::env::var_os("TZ") {
            command.env("TZ", zone);
        }
        command.envs(event.variables.iter().map(|(name, value)| (name, value)));
        command.env("ZED_PID", std::process::id().to_string());
        command.env("ZED_ZEDLET_DIR", &self.folder);
        for name in PROGRAMS {
            let path = self.programs.as_ref().map(|folder| folder.join(name));
            command.env(name.to_ascii_uppercase(), path.unwrap_or_else(|| name.into()));
        }
        let version = env!("CARGO_PKG_VERSION");
        command.env("ZFS_ALIAS", format!("cenote-{version}"));
        command.env("ZFS_VERSION", version).env("ZFS_RELEASE", "1");
        // Their commands find this daemon.
        self.place.give_to(&mut command);
        command
    }
}

/// Waits for a script, and kills it after the time limit. Returns how it ended.
#[expect(clippy::disallowed_methods, reason = "a thread that waits for another process")]
fn wait(mut child: Child) -> String {
    let end = cenote_rt::monotonic() + TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.to_string(),
            Ok(None) if cenote_rt::monotonic() < end => std::thread::sleep(STEP),
            _ => break,
        }
    }
    // The group of the script: its children as well.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    log::warn!(process = %child.id(), "zedlet killed, it took too long");
    child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
}

impl Place {
    /// Returns the directory of scripts that run on events.
    fn zedlets(&self) -> PathBuf {
        let set = std::env::var_os("CENOTE_ZEDLET_DIR").filter(|value| !value.is_empty());
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        set.map_or_else(|| self.state.join("zed.d"), |folder| absolute(Path::new(&folder)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_scripts_select_events() {
        let event = EventDescription {
            class: "sysevent.fs.zfs.scrub_finish",
            subclass: "scrub_finish",
            variables: Vec::new(),
        };
        for (name, want) in [
            ("all-syslog.sh", true),
            ("all", true),
            ("all.sh", true),
            ("allocate.sh", false),
            ("scrub_finish-notify.sh", true),
            ("scrub_finish-sync-x.sh", true),
            ("scrub_finished.sh", false),
            ("scrub-notify.sh", false),
            ("sysevent.fs.zfs.scrub_finish-x", true),
            ("statechange-notify.sh", false),
            ("zed.rc", false),
        ] {
            assert_eq!(matches(name, &event), want, "{name}");
        }
    }
}
