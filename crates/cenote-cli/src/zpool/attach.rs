//! `zpool attach`, `zpool replace` and `zpool detach`.
//!
//! In a session the resilver of a new device goes on in the background, and `-w` waits for it. With
//! `--embedded` no process keeps the pool between two commands: without `-w` the device only
//! becomes a part of the pool, and the next import by a daemon, `zpool resilver` or `zpool wait`
//! writes to it what it lacks. The expansion of a RAID-Z vdev goes on likewise.
//!
//! As in OpenZFS, the new device is examined before the old one is looked for, and what the engine
//! refuses ends with status 255.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cenote_engine::create::{CreateError, plan_distributed_spare, plan_leaf};
use cenote_engine::{Attach, Engine, NewLeaf, ShapeError};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::scan::ScanFunc;
use cenote_pool::import::AuxDevice;
use cenote_rt::Error;

use super::layout::{self, Devices, Layout};
use super::setting::Wanted;
use super::{block_on, names, wait};
use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, cause_or_checkpoint, command_line};

/// Interval at which the end of an expansion is looked for.
const STEP: Duration = Duration::from_millis(20);
/// Why something that is no device of its own is refused.
const SINGLE_DISK: &str = "new device must be a single disk";
/// Status of a command that the engine refused.
const STATUS: i32 = 255;

/// Runs `zpool attach` or `zpool replace`.
pub(super) fn run(verb: &str, source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let how = if verb == "replace" { Attach::Replace } else { Attach::Mirror };
    let parsed = getopt::parse(args, "fo:sw", &[])?;
    check_properties(&parsed)?;
    let (pool, old, new) = match &parsed.operands[..] {
        [] => return Err(Exit::usage("missing pool name argument")),
        [_] => return Err(Exit::usage("missing <device> specification")),
        [pool, old] if how == Attach::Replace => (pool, old, old),
        [_, _] => return Err(Exit::usage("missing <new_device> specification")),
        [pool, old, new] => (pool, old, new),
        _ => return Err(Exit::usage("too many arguments")),
    };
    let join = if how == Attach::Replace { "with" } else { "to" };
    let (first, second) = if how == Attach::Replace { (old, new) } else { (new, old) };
    let cannot = format!("cannot {verb} {first} {join} {second}");
    let line = command_line(Tool::Zpool, verb, args);
    let is_in_session = source.session.is_some();
    block_on(Writer::run_on_pool(source, pool, Some(&line), io, async |engine, _| {
        let spare = distributed_spare(engine, new, how, &cannot).await?;
        let device = match spare {
            Some(_) => None,
            None => Some(device_in_place(source, engine, (old, new), parsed.has('f'), how).await?),
        };
        let beside = device_of(source, engine, old, &cannot).await?;
        let mut leaf = match (spare, &device) {
            (Some(leaf), _) => leaf,
            (None, Some(device)) => {
                device.leaf().map_err(|error| refusal(&cannot, words(&error)))?
            }
            (None, None) => return Err(refusal(&cannot, SINGLE_DISK)),
        };
        leaf.is_sequential = parsed.has('s');
        let root = engine.admin().vdev_config();
        let is_raidz = |top: &&VdevConfig| matches!(top.kind, VdevKind::RaidZ(_));
        let raidz = root.children.iter().find(|top| top.guid == beside).filter(is_raidz);
        if raidz.is_some() && how == Attach::Mirror {
            let expanded = engine.leaves().expand_raidz(beside, leaf).await;
            expanded.map_err(|error| refusal(&cannot, words(&error)))?;
            return expand(source, engine, parsed.has('w')).await;
        }
        let attached = engine.leaves().attach(beside, leaf, how).await;
        attached.map_err(|error| refusal(&cannot, words(&error)))?;
        // Without a daemon nobody would carry the resilver out: the command ends.
        if !is_in_session && !parsed.has('w') {
            return Ok(());
        }
        engine.scans().resume().await?;
        if parsed.has('w') && !is_in_session {
            let ended = engine.scans().wait(ScanFunc::Resilver);
            source.while_waited_for(ended).await.transpose()?;
        }
        Ok(())
    }))?;
    // After the command is in the history, which takes a transaction group: the wait ends with the
    // resilver.
    let is_awaited = parsed.has('w') && is_in_session;
    if is_awaited { wait::for_activity(source, pool, "resilver", io) } else { Ok(()) }
}

/// Opens the new device; also an empty one in the place of the old one, if that is out of service
/// or with `force`.
async fn device_in_place(
    source: &Source,
    engine: &Arc<Engine>,
    (old, new): (&str, &str),
    force: bool,
    how: Attach,
) -> Result<NewDevice, Exit> {
    let released = match how {
        Attach::Replace => release_blank(source, engine, (old, new), force).await?,
        Attach::Mirror => None,
    };
    let device = new_device(source, engine, new, force, how).await;
    if let (Err(_), Some(guid)) = (&device, released) {
        engine.leaves().online(guid, None).await?;
    }
    device
}

/// Releases the device of `old` if it is the new one, too, and has lost its labels: an empty disk
/// in the same place replaces what was there. Takes a leaf out of service for that only with
/// `force`, and returns its guid then.
async fn release_blank(
    source: &Source,
    engine: &Arc<Engine>,
    (old, new): (&str, &str),
    force: bool,
) -> Result<Option<u64>, Exit> {
    let root = engine.admin().vdev_config();
    let Ok(vdev) = names::find(&root, old, &source.path(old)) else { return Ok(None) };
    let Some(known) = vdev.leaf.path.as_ref().map(|path| path.to_string_lossy()) else {
        return Ok(None);
    };
    let path = layout::resolve(source, new)?;
    let is_blank = layout::is_same(Path::new(&*known), &path)
        && !engine.is_read_only()
        && layout::owner(&path).await.is_none();
    if !is_blank || engine.leaves().close_device(vdev.guid).await || !force {
        return Ok(None);
    }
    Ok(engine.leaves().release_device(vdev.guid).await.is_ok().then_some(vdev.guid))
}

/// Lets the expansion of a RAID-Z vdev go on, and waits for its end if that is wanted.
async fn expand(source: &Source, engine: &Arc<Engine>, is_awaited: bool) -> CommandResult {
    if source.session.is_none() && !is_awaited {
        return Ok(());
    }
    engine.leaves().resume_reflow();
    // Until the vdev is larger, and the scrub has begun.
    while is_awaited && engine.leaves().is_reflow_running() {
        if !source.sleep(STEP).await {
            break;
        }
    }
    Ok(())
}

/// Runs `zpool detach`.
pub(super) fn detach(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "", &[])?;
    let missing = ["missing pool name argument", "missing <device> specification"];
    let [pool, word] = getopt::exactly(&parsed.operands, missing)?;
    let line = command_line(Tool::Zpool, "detach", args);
    let cannot = format!("cannot detach {word}");
    block_on(Writer::run_on_pool(source, pool, Some(&line), io, async |engine, _| {
        let guid = device_of(source, engine, word, &cannot).await?;
        let detached = engine.leaves().detach(guid, None).await;
        detached.map_err(|error| refusal(&cannot, words(&error)))
    }))
}

/// Returns the guid of a device of the pool, which must be open for writing.
async fn device_of(
    source: &Source,
    engine: &Arc<Engine>,
    word: &str,
    cannot: &str,
) -> Result<u64, Exit> {
    let root = engine.admin().vdev_config();
    let guid = match names::find(&root, word, &source.path(word)) {
        Ok(vdev) => vdev.guid,
        Err(why) => {
            let reserved = reserved(engine, word).await?;
            return Err(refusal(cannot, reserved.map_or(why.to_string(), str::to_owned)));
        }
    };
    if engine.is_read_only() {
        return Err(refusal(cannot, "pool is read-only"));
    }
    Ok(guid)
}

/// Checks `-o`: the only property is `ashift`. Like OpenZFS's, the vdev keeps the one that it has.
fn check_properties(parsed: &Parsed) -> CommandResult {
    let mut wanted = Wanted::default();
    for text in parsed.values('o') {
        match text.split_once('=') {
            Some(("ashift", value)) => {
                wanted.add("ashift", value, true).map_err(Exit::failed)?;
            }
            // OpenZFS says no more here.
            Some(_) => return Err(Exit::usage("")),
            None => return Err(Exit::usage("missing '=' for -o option")),
        }
    }
    Ok(())
}

/// A device that is to come to a vdev.
struct NewDevice {
    devices: Devices,
    /// Its config, if it is a hot spare of the pool.
    spare: Option<VdevConfig>,
}

impl NewDevice {
    fn leaf(&self) -> Result<NewLeaf, Error> {
        let first = self.devices.first();
        let (spec, device) = first.ok_or_else(|| Error::not_found(ShapeError::NoSuchLeaf))?;
        let mut leaf = plan_leaf(spec, Arc::clone(device.device()))?;
        if let Some(spare) = &self.spare {
            leaf.config = spare.clone();
            leaf.config.leaf.is_spare = true;
        }
        Ok(leaf)
    }
}

/// Returns the distributed spare that a word names, if it can be nothing else; one that the pool
/// does not have, or that is in use, is refused.
async fn distributed_spare(
    engine: &Arc<Engine>,
    word: &str,
    how: Attach,
    cannot: &str,
) -> Result<Option<NewLeaf>, Exit> {
    if !is_distributed_spare(word) {
        return Ok(None);
    }
    let view = engine.view().await?;
    let is_it = |spare: &&AuxDevice| {
        let path = spare.config.leaf.path.as_ref().and_then(|path| path.to_str());
        !spare.config.kind.is_real_leaf() && path == Some(word)
    };
    let spare = view.spares().iter().find(is_it).filter(|_| how == Attach::Replace);
    let spare = spare.ok_or_else(|| refusal(cannot, SINGLE_DISK))?;
    if engine.admin().vdev_config().find(spare.config.guid).is_some() {
        return Err(refusal(cannot, format!("{word} is busy")));
    }
    Ok(Some(plan_distributed_spare(&spare.config)))
}

/// Whether a word has the form of the names of distributed spares: `draid1-0-0`.
fn is_distributed_spare(word: &str) -> bool {
    let numbers = word.strip_prefix("draid").map(|rest| rest.split('-'));
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    numbers.is_some_and(|mut all| all.clone().count() == 3 && all.all(is_number))
}

/// Opens the new device. A hot spare of the pool itself may replace a device.
async fn new_device(
    source: &Source,
    engine: &Arc<Engine>,
    word: &str,
    force: bool,
    how: Attach,
) -> Result<NewDevice, Exit> {
    let view = engine.view().await?;
    let path = layout::resolve(source, word)?;
    let spare = view.spares().iter().find(|spare| layout::is_at(spare, &path));
    let spare = spare.filter(|_| how == Attach::Replace).map(|spare| spare.config.clone());
    let mut layout = Layout::parse(&[word.to_owned()])?;
    if spare.is_some() {
        layout = Layout { spares: vec![word.to_owned()], ..Layout::default() };
    }
    let devices = Devices::open(source, &layout, force).await?;
    if spare.is_none() {
        let cannot = "invalid vdev specification";
        devices.check_reserved(source, (&layout, Some(engine)), cannot, force).await?;
    }
    Ok(NewDevice { devices, spare })
}

/// Returns why a spare or cache device of the pool cannot be the old device.
async fn reserved(engine: &Arc<Engine>, word: &str) -> Result<Option<&'static str>, Exit> {
    let view = engine.view().await?;
    let has = |devices: &[AuxDevice]| {
        devices.iter().any(|aux| {
            let path = aux.config.leaf.path.as_ref().and_then(|path| path.to_str());
            path == Some(word) || aux.config.guid.to_string() == word
        })
    };
    Ok(match (has(view.spares()), has(view.caches())) {
        (true, _) => Some("device is reserved as a hot spare"),
        (_, true) => Some("device is in use as a cache"),
        _ => None,
    })
}

/// Returns why a request failed, in OpenZFS's words.
fn words(error: &Error) -> String {
    match error.cause::<CreateError>() {
        Some(CreateError::TooSmall { .. }) => "device is too small".to_owned(),
        _ => cause_or_checkpoint::<ShapeError>(error),
    }
}

/// Returns the failure of what the engine refused.
fn refusal(cannot: &str, why: impl std::fmt::Display) -> Exit {
    Exit::FailedWith(format!("{cannot}: {why}"), STATUS)
}
