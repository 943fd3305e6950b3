//! The vdevs of a command line: `mirror A B log C spare D …`.
//!
//! Wrong arguments are reported in OpenZFS's order: first the words themselves, then paths, then
//! devices in use, then mismatched redundancy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_engine::Engine;
use cenote_engine::create::{LeafSpec, PoolLayout, Redundancy, TopSpec, VdevClass};
use cenote_ondisk::config::PoolState;
use cenote_pool::import::{AuxDevice, DeviceError, Found, PoolDevice};
use cenote_rt::Kind;

use super::redundancy;
use crate::argument;
use crate::io::Exit;
use crate::source::Source;

/// Minimum size of a device.
const SIZE_MIN: u64 = 64 << 20;

/// A requested top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// Its redundancy.
    pub(super) redundancy: Redundancy,
    /// The word for the redundancy; none for a single device.
    pub(super) word: Option<String>,
    /// Its class.
    pub(super) class: VdevClass,
    /// Its devices.
    pub(super) paths: Vec<String>,
}

/// The parsed words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Top-level vdevs in order.
    pub(super) groups: Vec<Group>,
    /// Hot spares.
    pub(super) spares: Vec<String>,
    /// Cache devices.
    pub(super) caches: Vec<String>,
}

fn wrong(text: impl std::fmt::Display) -> Exit {
    Exit::failed(format!("invalid vdev specification: {text}"))
}

/// The part of the layout that following words belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Class(VdevClass),
    Spares,
    Caches,
}

impl Part {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "spare" => Self::Spares,
            "cache" => Self::Caches,
            "log" => Self::Class(VdevClass::Log),
            "special" => Self::Class(VdevClass::Special),
            "dedup" => Self::Class(VdevClass::Dedup),
            _ => return None,
        })
    }
}

impl Layout {
    /// Parses the words.
    pub(super) fn parse(words: &[String]) -> Result<Self, Exit> {
        let mut layout = Self::default();
        let mut part = Part::Class(VdevClass::Normal);
        let mut seen = Vec::new();
        let mut rest = words.iter().peekable();
        while let Some(word) = rest.next() {
            if let Some(next) = Part::of(word) {
                if matches!(word.as_str(), "spare" | "cache" | "log") && seen.contains(word) {
                    return Err(wrong(format!("'{word}' can be specified only once")));
                }
                seen.push(word.clone());
                part = next;
                let takes_groups = matches!(part, Part::Class(_));
                let ends = |next: &str| if takes_groups { is_part(next) } else { is_word(next) };
                let has_device = rest.peek().is_some_and(|next| !ends(next));
                if !has_device {
                    return Err(wrong(format!("{word} requires at least 1 device")));
                }
                continue;
            }
            let redundancy = Redundancy::parse(word).map_err(wrong)?;
            if redundancy.is_some() && matches!(part, Part::Spares | Part::Caches) {
                // Spares and caches end where a group begins.
                part = Part::Class(VdevClass::Normal);
            }
            let Part::Class(class) = part else {
                let list = match part {
                    Part::Spares => &mut layout.spares,
                    _ => &mut layout.caches,
                };
                list.push(word.clone());
                continue;
            };
            let Some(redundancy) = redundancy else {
                let (redundancy, paths) = (Redundancy::Single, vec![word.clone()]);
                layout.groups.push(Group { redundancy, word: None, class, paths });
                continue;
            };
            check_class(class, redundancy, word)?;
            let mut paths = Vec::new();
            while let Some(path) = rest.next_if(|next| !is_word(next)) {
                paths.push(path.clone());
            }
            check_count(redundancy, word, paths.len())?;
            layout.groups.push(Group { redundancy, word: Some(word.clone()), class, paths });
        }
        Ok(layout)
    }

    /// Returns every path of every list.
    fn paths(&self) -> impl Iterator<Item = &String> {
        let tops = self.groups.iter().flat_map(|group| &group.paths);
        tops.chain(&self.spares).chain(&self.caches)
    }

    /// Formats the layout as a tree below the pool's name, each section after its existing vdevs.
    pub(super) fn preview(&self, name: &str, there: &BTreeMap<&str, Vec<String>>) -> String {
        let mut lines = vec![name.to_owned()];
        let there = |title| there.get(title).cloned().unwrap_or_default();
        let classes = [
            (VdevClass::Normal, ""),
            (VdevClass::Dedup, "dedup"),
            (VdevClass::Special, "special"),
            (VdevClass::Log, "logs"),
        ];
        for (class, title) in classes {
            let groups = self.groups.iter().filter(|group| group.class == class);
            let before = there(title);
            if !title.is_empty() && (groups.clone().next().is_some() || !before.is_empty()) {
                lines.push(title.to_owned());
            }
            lines.extend(before);
            for group in groups {
                let mut indent = "  ";
                if let Some(word) = &group.word {
                    lines.push(format!("  {}", if word == "raidz" { "raidz1" } else { word }));
                    indent = "    ";
                }
                lines.extend(group.paths.iter().map(|path| format!("{indent}{path}")));
            }
        }
        for (title, paths) in [("cache", &self.caches), ("spares", &self.spares)] {
            let before = there(title);
            if !paths.is_empty() || !before.is_empty() {
                lines.push(title.to_owned());
                lines.extend(before);
                lines.extend(paths.iter().map(|path| format!("  {path}")));
            }
        }
        lines.iter().map(|line| format!("\t{line}\n")).collect::<Vec<_>>().concat()
    }
}

fn is_part(text: &str) -> bool {
    Part::of(text).is_some()
}

/// Whether a word is no device, but begins a group or a list of devices.
pub(super) fn is_word(text: &str) -> bool {
    is_part(text) || !matches!(Redundancy::parse(text), Ok(None))
}

fn check_class(class: VdevClass, redundancy: Redundancy, word: &str) -> Result<(), Exit> {
    let is_draid = matches!(redundancy, Redundancy::Draid { .. });
    match class {
        VdevClass::Log if redundancy != Redundancy::Mirror => {
            Err(wrong(format!("unsupported 'log' device: {word}")))
        }
        VdevClass::Special | VdevClass::Dedup if is_draid => {
            let class = class.bias().unwrap_or_default();
            Err(wrong(format!("unsupported '{class}' device: {word}")))
        }
        _ => Ok(()),
    }
}

fn check_count(redundancy: Redundancy, word: &str, count: usize) -> Result<(), Exit> {
    let least = match redundancy {
        Redundancy::Single => 1,
        Redundancy::Mirror => 2,
        Redundancy::Raidz(nparity) => nparity as usize + 1,
        Redundancy::Draid { nparity, ndata, nspares, .. } => {
            (nparity + ndata.unwrap_or(1) + nspares) as usize
        }
    };
    let most = if redundancy == Redundancy::Mirror { usize::MAX } else { 255 };
    if count < least {
        return Err(wrong(format!("{word} requires at least {least} devices")));
    }
    if count > most {
        return Err(wrong(format!("{word} supports no more than {most} devices")));
    }
    Ok(())
}

/// An opened device.
#[derive(Clone)]
pub(super) struct Opened {
    /// The word that named it.
    word: String,
    /// The specification of its leaf.
    spec: LeafSpec,
    /// The device, locked.
    device: PoolDevice,
}

/// The devices of a layout, locked.
pub(super) struct Devices {
    /// In the order of [`Layout::paths`].
    all: Vec<Opened>,
    /// Whether a device was named twice.
    has_twins: bool,
}

impl Devices {
    /// Opens and checks every device. With `force`, devices of pools that no process has open are
    /// accepted.
    pub(super) async fn open(source: &Source, layout: &Layout, force: bool) -> Result<Self, Exit> {
        let mut paths = Vec::new();
        for word in layout.paths() {
            paths.push((word, resolve(source, word)?));
        }
        let mut all: Vec<Opened> = Vec::new();
        let mut somebodys = Vec::new();
        let mut has_twins = false;
        for (word, path) in paths {
            let twin = all.iter().find(|other| is_same(other.device.path(), &path));
            if let Some(twin) = twin.cloned() {
                has_twins = true;
                all.push(twin);
                continue;
            }
            match open(word, &path).await? {
                Ok(opened) => {
                    let of = in_use(source, &opened, layout.spares.contains(word)).await?;
                    somebodys.extend(of.filter(|_| !force));
                    all.push(opened);
                }
                Err(pool) => somebodys.push(format!("{word} is part of active pool '{pool}'")),
            }
        }
        match &somebodys.join("\n")[..] {
            "" => {}
            text if force => return Err(manual(text)),
            text => return Err(overridable(text)),
        }
        Ok(Self { all, has_twins })
    }

    /// Refuses vdevs with less redundancy than others.
    pub(super) fn check_redundancy(&self, layout: &Layout) -> Result<(), Exit> {
        let mut sizes = self.all.iter().map(|opened| &opened.spec);
        let mut groups = Vec::new();
        for group in &layout.groups {
            let leaves: Vec<_> = sizes.by_ref().take(group.paths.len()).collect();
            groups.push((group, leaves));
        }
        match redundancy::mismatch(&groups) {
            Some(text) => Err(overridable(&text)),
            None => Ok(()),
        }
    }

    /// Refuses devices that are too small for a pool, or named twice.
    pub(super) fn check_each(&self, cannot: &str) -> Result<(), Exit> {
        if self.has_twins {
            return Err(same_device(cannot));
        }
        if self.all.iter().any(|opened| opened.spec.size < SIZE_MIN) {
            let text = "one or more devices is less than the minimum size (64M)";
            return Err(Exit::failed(format!("{cannot}: {text}")));
        }
        Ok(())
    }

    /// Refuses hot spares and cache devices of pools that are in use: of `own`, to which the
    /// devices are added, and of the daemon's pools. Their labels name no pool, and no process
    /// holds them locked. Only a hot spare may be a hot spare of another pool as well.
    ///
    /// # Errors
    /// OpenZFS's message, from its tool or its kernel module; `cannot` begins the latter.
    pub(super) async fn check_reserved(
        &self,
        source: &Source,
        (layout, own): (&Layout, Option<&Arc<Engine>>),
        cannot: &str,
        force: bool,
    ) -> Result<(), Exit> {
        let mut pools: Vec<_> = own.cloned().into_iter().collect();
        let others = source.session.iter().flat_map(|session| session.host.pools());
        pools.extend(others.filter(|other| own.is_none_or(|own| own.guid() != other.guid())));
        for pool in pools {
            let is_own = own.is_some_and(|own| own.guid() == pool.guid());
            let (view, name) = (pool.view().await?, pool.name());
            for Opened { word, device, .. } in &self.all {
                let path = device.path();
                let has = |devices: &[AuxDevice]| devices.iter().any(|aux| is_at(aux, path));
                let (is_spare, is_cache) = (has(view.spares()), has(view.caches()));
                match layout.spares.contains(word) {
                    true if is_spare && !is_own => {}
                    false if is_spare => {
                        let text = format!("{word} is reserved as a hot spare for pool {name}");
                        return Err(if force { manual(&text) } else { overridable(&text) });
                    }
                    _ if is_cache && !force => {
                        let text = format!("{word} is part of unknown pool '{name}'");
                        return Err(overridable(&text));
                    }
                    _ if is_spare || is_cache => return Err(same_device(cannot)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Returns the vdevs: top-level ones, hot spares, cache devices.
    pub(super) fn specs(&self, layout: &Layout) -> PoolLayout {
        let mut rest = self.all.iter().map(|opened| opened.spec.clone());
        let tops = layout.groups.iter().map(|group| TopSpec {
            redundancy: group.redundancy,
            class: group.class,
            leaves: rest.by_ref().take(group.paths.len()).collect(),
        });
        let tops = tops.collect();
        let spares = rest.by_ref().take(layout.spares.len()).collect();
        PoolLayout { tops, spares, caches: rest.collect(), ashift: None }
    }

    /// Whether the device at `path` is in the layout.
    pub(super) fn has(&self, path: &str) -> bool {
        self.all.iter().any(|opened| is_same(opened.device.path(), Path::new(path)))
    }

    /// Returns the first device, and the specification of its leaf.
    pub(super) fn first(&self) -> Option<(&LeafSpec, &PoolDevice)> {
        self.all.first().map(|first| (&first.spec, &first.device))
    }

    /// Returns the open devices.
    pub(super) fn opened(&self) -> Vec<PoolDevice> {
        self.all.iter().map(|opened| opened.device.clone()).collect()
    }
}

/// Returns the path of a device: given as a path, or as a short name in a folder of the source or
/// in `/dev`.
pub(super) fn resolve(source: &Source, word: &str) -> Result<PathBuf, Exit> {
    let path = argument::path(word);
    if path.is_absolute() {
        if path.exists() {
            return Ok(path);
        }
        return Err(Exit::failed(format!("cannot resolve path '{word}'")));
    }
    let folders = source.paths.iter().map(|folder| argument::path(folder));
    let mut found = folders.chain([PathBuf::from("/dev")]).map(|folder| folder.join(&path));
    match found.find(|path| path.exists()).and_then(|path| std::path::absolute(path).ok()) {
        Some(path) => Ok(path),
        None => Err(Exit::failed(format!(
            "cannot open '{word}': no such device in /dev\n\
             must be a full path or shorthand device name"
        ))),
    }
}

/// Whether two paths lead to the same file or block device.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    // A block device may have several nodes.
    let identity = |path: &Path| {
        let meta = std::fs::metadata(path).ok()?;
        let is_block_device = meta.file_type().is_block_device();
        Some(if is_block_device { (None, meta.rdev()) } else { (Some(meta.dev()), meta.ino()) })
    };
    identity(one).is_some_and(|id| identity(other) == Some(id))
}

/// Whether a spare or cache device is at this path.
pub(super) fn is_at(aux: &AuxDevice, path: &Path) -> bool {
    let recorded = aux.config.leaf.path.as_ref().and_then(|recorded| recorded.to_str());
    recorded.is_some_and(|recorded| is_same(Path::new(recorded), path))
}

/// Opens a device for writing; the inner error names the pool that uses it.
async fn open(word: &str, path: &Path) -> Result<Result<Opened, String>, Exit> {
    let device = match PoolDevice::open_exclusively(path).await {
        Ok(device) => device,
        Err(DeviceError::InUse(_)) => {
            return Ok(Err(owner(path).await.unwrap_or_else(|| "unknown".to_owned())));
        }
        Err(DeviceError::Failed(error)) if error.kind() == Kind::Permission => {
            return Err(Exit::failed(format!("cannot open '{word}': permission denied")));
        }
        Err(error) => return Err(Exit::failed(format!("cannot open '{word}': {error}"))),
    };
    let spec =
        device.leaf_spec().ok_or_else(|| Exit::failed(format!("cannot resolve path '{word}'")))?;
    Ok(Ok(Opened { word: word.to_owned(), spec, device }))
}

/// Returns the pool that the labels of a device name.
pub(super) async fn owner(path: &Path) -> Option<String> {
    let device = PoolDevice::open_for_reading(path).await.ok()?;
    Some(pool_of(&device.found().await?)?.0)
}

/// Returns name and state of the pool that a device belongs to.
fn pool_of(found: &Found) -> Option<(String, PoolState)> {
    let facts = &found.config.member.as_ref()?.facts;
    Some((facts.name.clone(), facts.state))
}

/// Whether a device with the label of a spare or cache device belongs to none of the daemon's
/// pools: then its pool no longer exists.
async fn is_left(source: &Source, path: &Path) -> Result<bool, Exit> {
    let Some(session) = &source.session else { return Ok(false) };
    for engine in session.host.pools() {
        let view = engine.view().await?;
        let mut leaves = view.spares().iter().chain(view.caches());
        if leaves.any(|leaf| is_at(leaf, path)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the message about a device that may be in use.
async fn in_use(source: &Source, opened: &Opened, is_spare: bool) -> Result<Option<String>, Exit> {
    let Some(found) = opened.device.found().await else { return Ok(None) };
    let word = &opened.word;
    let Some((pool, state)) = pool_of(&found) else {
        // Pools can share hot spares.
        let is_taken = !is_spare && !is_left(source, opened.device.path()).await?;
        return Ok(is_taken.then(|| format!("{word} is reserved as a hot spare or cache device")));
    };
    let state = match state {
        PoolState::Active => "potentially active",
        PoolState::Exported => "exported",
        _ => return Ok(None),
    };
    Ok(Some(format!("{word} is part of {state} pool '{pool}'")))
}

fn same_device(cannot: &str) -> Exit {
    Exit::failed(format!(
        "{cannot}: one or more vdevs refer to the same device, or one of\n\
         the devices is part of an active md or lvm device"
    ))
}

fn overridable(text: &str) -> Exit {
    let how = "use '-f' to override the following errors:";
    Exit::failed(format!("invalid vdev specification\n{how}\n{text}"))
}

fn manual(text: &str) -> Exit {
    let how = "the following errors must be manually repaired:";
    Exit::failed(format!("invalid vdev specification\n{how}\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Layout, Exit> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        Layout::parse(&words)
    }

    #[test]
    fn vdev_words_make_a_tree() {
        let layout =
            parse("mirror /a /b raidz2 /c /d /e log mirror /f /g special /h cache /i spare /j");
        let text = "\tt\n\t  mirror\n\t    /a\n\t    /b\n\t  raidz2\n\t    /c\n\t    /d\n\t    /e\n\
                    \tspecial\n\t  /h\n\tlogs\n\t  mirror\n\t    /f\n\t    /g\n\
                    \tcache\n\t  /i\n\tspares\n\t  /j\n";
        assert_eq!(layout.map(|layout| layout.preview("t", &BTreeMap::new())), Ok(text.to_owned()));
    }

    #[test]
    fn spares_may_stand_between_groups() {
        let tree = |line| parse(line).map(|layout| layout.preview("t", &BTreeMap::new()));
        let last = tree("mirror /a /b raidz /c /d cache /e spare /f /g");
        assert!(last.is_ok());
        for line in [
            "mirror /a /b spare /f /g raidz /c /d cache /e",
            "cache /e mirror /a /b spare /f /g raidz /c /d",
            "spare /f /g mirror /a /b cache /e raidz /c /d",
        ] {
            assert_eq!(tree(line), last, "{line}");
        }
    }

    #[test]
    fn wrong_vdev_words_are_reported() {
        for (line, want) in [
            ("mirror /a", "mirror requires at least 2 devices"),
            ("raidz2 /a /b", "raidz2 requires at least 3 devices"),
            ("/a log raidz /b /c", "unsupported 'log' device: raidz"),
            ("/a spare", "spare requires at least 1 device"),
            ("/a spare mirror /b /c", "spare requires at least 1 device"),
            ("/a special spare /b", "special requires at least 1 device"),
            ("/a spare /b mirror /c /d spare /e", "'spare' can be specified only once"),
            ("/a log /b log /c", "'log' can be specified only once"),
        ] {
            assert_eq!(parse(line), Err(wrong(want)), "{line}");
        }
    }
}
