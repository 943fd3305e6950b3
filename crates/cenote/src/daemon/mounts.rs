//! What is mounted of a pool.
//!
//! Where a file system is mounted is a matter of its properties: `mountpoint`, `canmount`. A change
//! of a pool (creation, renaming, setting, rollback) is followed: file systems that are new are
//! mounted, what is mounted elsewhere than it should be moves, what has gone is unmounted. What
//! somebody unmounted stays unmounted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_cli::{CommandResult, Exit};
use cenote_fs::Mount;
use cenote_pool::engine::Engine;
use cenote_pool::props::PropValue;
use cenote_pool::{Dataset, DatasetKind};
use cenote_rt::{AsyncMutex, Kind};
use cenote_serve::fuse::{self, FuseMount, MountOptions, Unmount};

/// `canmount`: mounted with all others.
const CANMOUNT_OFF: u64 = 0;
const CANMOUNT_ON: u64 = 1;

/// How long an unmounted file system has until its last request is answered.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is mounted of one pool.
pub(super) struct Mounts {
    engine: Arc<Engine>,
    altroot: Option<PathBuf>,
    // Held for a whole change, across awaits: mounts and unmounts come one after the other.
    changing: AsyncMutex<()>,
    // Held for a look, never across an await.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By number of the dataset.
    mounted: BTreeMap<u64, Mounted>,
    /// File systems that were there before.
    known: BTreeSet<u64>,
}

#[derive(Clone)]
struct Mounted {
    dataset: String,
    fuse: Arc<FuseMount>,
    options: MountOptions,
}

/// A file system as its properties have it.
struct Wanted {
    object: u64,
    dataset: String,
    /// None for `none` and `legacy`.
    place: Option<PathBuf>,
    mountpoint: String,
    canmount: u64,
    options: MountOptions,
}

impl Mounts {
    pub(super) fn new(engine: &Arc<Engine>, altroot: Option<PathBuf>) -> Self {
        Self {
            engine: Arc::clone(engine),
            altroot,
            changing: AsyncMutex::new(()),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes snapshots that were looked at below `.zfs` of what is mounted.
    pub(super) fn let_go_of_snapshots(&self) {
        for mounted in self.state().mounted.values() {
            mounted.fuse.let_go_of_snapshots();
        }
    }

    /// What is mounted, by dataset, and where.
    pub(super) fn list(&self) -> Vec<(String, PathBuf)> {
        let state = self.state();
        let mounted = state.mounted.values();
        let mut list: Vec<_> = mounted
            .map(|mounted| (mounted.dataset.clone(), mounted.fuse.at().to_owned()))
            .collect();
        list.sort();
        list
    }

    /// The dataset that is meant by its name or by where it is mounted.
    pub(super) fn find(&self, what: &str) -> Option<String> {
        let list = self.list();
        let found = list.into_iter().find(|(name, at)| name == what || at == Path::new(what));
        found.map(|(name, _)| name)
    }

    /// Mounts everything that wants to be.
    pub(super) async fn mount_all(&self) -> CommandResult {
        let _changing = self.changing.lock().await;
        let wanted = self.wanted().await?;
        self.state().known.extend(wanted.iter().map(|wanted| wanted.object));
        let mut failures = Vec::new();
        for wanted in wanted.iter().filter(|wanted| wanted.canmount == CANMOUNT_ON) {
            let is_mounted = self.state().mounted.contains_key(&wanted.object);
            if !is_mounted && wanted.place.is_some() {
                failures.extend(self.start(wanted).await.err());
            }
        }
        first(&failures)
    }

    /// Mounts one file system.
    pub(super) async fn mount(&self, dataset: &str, options: &str) -> CommandResult {
        let _changing = self.changing.lock().await;
        let cannot = |why: &str| Exit::failed(format!("cannot mount '{dataset}': {why}"));
        let wanted = self.wanted().await?;
        let found = wanted.into_iter().find(|wanted| wanted.dataset == dataset);
        let mut wanted = found.ok_or_else(|| {
            Exit::failed(format!("cannot open '{dataset}': dataset does not exist"))
        })?;
        if self.state().mounted.contains_key(&wanted.object) {
            return Err(cannot("filesystem already mounted"));
        }
        match (wanted.mountpoint.as_str(), wanted.canmount) {
            (_, CANMOUNT_OFF) => return Err(cannot("'canmount' property is set to 'off'")),
            ("legacy", _) => {
                return Err(Exit::failed(format!(
                    "cannot mount '{dataset}': legacy mountpoint\nuse mount(8) to mount this \
                     filesystem"
                )));
            }
            ("none", _) => return Err(cannot("no mountpoint set")),
            _ => {}
        }
        let asked = MountOptions::parse(options).map_err(|error| cannot(&error.to_string()))?;
        wanted.options.is_read_only |= asked.is_read_only;
        wanted.options.nosuid |= asked.nosuid;
        wanted.options.nodev |= asked.nodev;
        wanted.options.noexec |= asked.noexec;
        self.start(&wanted).await
    }

    /// Unmounts one file system.
    pub(super) async fn unmount(&self, dataset: &str, is_forced: bool) -> CommandResult {
        let _changing = self.changing.lock().await;
        let found = {
            let state = self.state();
            let mut all = state.mounted.iter();
            all.find(|(_, mounted)| mounted.dataset == dataset).map(|(object, _)| *object)
        };
        match found {
            Some(object) => self.end(object, is_forced).await,
            None => Err(Exit::failed(format!("cannot unmount '{dataset}': not currently mounted"))),
        }
    }

    /// Unmounts everything, the deepest first.
    pub(super) async fn unmount_all(&self, is_forced: bool) -> CommandResult {
        let _changing = self.changing.lock().await;
        for object in self.deepest_first() {
            self.end(object, is_forced).await?;
        }
        Ok(())
    }

    /// Unmounts everything, whoever uses it: the process ends.
    pub(super) async fn leave(&self) {
        let _changing = self.changing.lock().await;
        for object in self.deepest_first() {
            if let Err(exit) = self.end(object, true).await {
                eprintln!("{}", exit.message());
            }
        }
    }

    /// Brings what is mounted to what the properties say now.
    pub(super) async fn follow(&self) -> CommandResult {
        let _changing = self.changing.lock().await;
        let wanted = self.wanted().await?;
        let mut failures = Vec::new();
        let mut again = BTreeSet::new();
        for object in self.deepest_first() {
            let Some(mounted) = self.state().mounted.get(&object).cloned() else { continue };
            let now = wanted.iter().find(|wanted| wanted.object == object);
            let stays = now.is_some_and(|now| {
                now.dataset == mounted.dataset
                    && now.place.as_deref() == Some(mounted.fuse.at())
                    && now.options == mounted.options
                    && now.canmount != CANMOUNT_OFF
            });
            // What was rolled back or destroyed answers nobody any more.
            let is_gone = now.is_none() || mounted.fuse.mount().head().is_gone();
            if !stays || is_gone {
                failures.extend(self.end(object, is_gone).await.err());
                again.insert(object);
            }
        }
        for wanted in &wanted {
            let is_new = self.state().known.insert(wanted.object);
            let comes = (is_new && wanted.canmount == CANMOUNT_ON)
                || (again.contains(&wanted.object) && wanted.canmount != CANMOUNT_OFF);
            if comes && wanted.place.is_some() {
                failures.extend(self.start(wanted).await.err());
            }
        }
        first(&failures)
    }

    async fn start(&self, wanted: &Wanted) -> CommandResult {
        let Some(place) = &wanted.place else { return Ok(()) };
        let dataset = &wanted.dataset;
        let cannot = |why: String| Exit::failed(format!("cannot mount '{dataset}': {why}"));
        // What a daemon that was killed left there answers nobody.
        match fuse::detach_dead(place).await {
            Err(error) if error.kind() != Kind::NotFound => return Err(cannot(error.to_string())),
            _ => {}
        }
        std::fs::create_dir_all(place).map_err(|error| {
            Exit::failed(format!(
                "cannot mount '{}': failed to create mountpoint: {}",
                place.display(),
                said(&error)
            ))
        })?;
        let opened = if wanted.options.is_read_only {
            Mount::open_read_only(&self.engine, dataset).await
        } else {
            Mount::open(&self.engine, dataset).await
        };
        let mount = opened.map_err(|error| cannot(error.to_string()))?;
        let fuse = FuseMount::start(mount, place, &wanted.options).await;
        let fuse = Arc::new(fuse.map_err(|error| cannot(error.to_string()))?);
        let (dataset, options) = (dataset.clone(), wanted.options.clone());
        let mounted = Mounted { dataset, fuse, options };
        self.state().mounted.insert(wanted.object, mounted);
        Ok(())
    }

    async fn end(&self, object: u64, is_forced: bool) -> CommandResult {
        let Some(mounted) = self.state().mounted.get(&object).cloned() else { return Ok(()) };
        let how = if is_forced { Unmount::Detach } else { Unmount::Plain };
        if let Err(error) = mounted.fuse.unmount(how).await {
            let at = mounted.fuse.at().display();
            let why = match error.kind() {
                Kind::Busy => "pool or dataset is busy".to_owned(),
                _ => error.to_string(),
            };
            return Err(Exit::failed(format!("cannot unmount '{at}': {why}")));
        }
        // What was detached ends with its last user, who may take his time.
        cenote_rt::until(PATIENCE, mounted.fuse.ended()).await;
        self.state().mounted.remove(&object);
        Ok(())
    }

    fn deepest_first(&self) -> Vec<u64> {
        let state = self.state();
        let mut objects: Vec<_> = state
            .mounted
            .iter()
            .map(|(object, mounted)| (mounted.fuse.at().to_owned(), *object))
            .collect();
        objects.sort();
        objects.into_iter().rev().map(|(_, object)| object).collect()
    }

    /// All file systems, each before those below it.
    async fn wanted(&self) -> Result<Vec<Wanted>, Exit> {
        let view = self.engine.view().await?;
        let mut wanted = Vec::new();
        let mut left = vec![view.root_dataset().await?];
        while let Some(dataset) = left.pop() {
            let mut children = dataset.children().await?;
            children.reverse();
            left.append(&mut children);
            if dataset.kind().await? == DatasetKind::Filesystem {
                wanted.push(self.wish(&dataset).await?);
            }
        }
        Ok(wanted)
    }

    async fn wish(&self, dataset: &Dataset) -> Result<Wanted, Exit> {
        let props = dataset.props().await?;
        let mut numbers = [0; 5];
        let names = ["canmount", "readonly", "setuid", "devices", "exec"];
        for (number, name) in numbers.iter_mut().zip(names) {
            if let Some(PropValue::Number(value)) = props.get(name).await?.map(|row| row.value) {
                *number = value;
            }
        }
        let [canmount, readonly, setuid, devices, exec] = numbers;
        let mountpoint = match props.get("mountpoint").await?.map(|row| row.value) {
            Some(PropValue::Text(text)) => text,
            _ => "none".to_owned(),
        };
        let place = mountpoint.strip_prefix('/').map(|below| match &self.altroot {
            Some(root) => root.join(below),
            None => Path::new("/").join(below),
        });
        let is_root = rustix::process::geteuid().is_root();
        Ok(Wanted {
            object: dataset.object(),
            dataset: dataset.name().to_owned(),
            place,
            mountpoint,
            canmount,
            options: MountOptions {
                is_read_only: readonly == 1,
                nosuid: setuid == 0 || !is_root,
                nodev: devices == 0 || !is_root,
                noexec: exec == 0,
                ..MountOptions::default()
            },
        })
    }
}

fn first(failures: &[Exit]) -> CommandResult {
    let texts: Vec<String> = failures.iter().map(Exit::message).collect();
    if texts.is_empty() { Ok(()) } else { Err(Exit::failed(texts.join("\n"))) }
}

/// The system's words without its number.
fn said(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
