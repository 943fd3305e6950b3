//! `load-key`, `unload-key`: keys of encrypted datasets, kept while the pool is open.
//!
//! A key comes from the place that the property `keylocation` names: a file, or the caller, who is
//! prompted at a terminal; otherwise standard input is read.

use std::sync::Arc;

use cenote_codec::crypto;
use cenote_pool::props::PropValue;
use cenote_pool::{Dataset, KeyError, Pool};
use cenote_rt::{Error, Kind};

use super::change::below;
use super::permits;
use super::refuse::existing;
use crate::getopt;
use crate::io::{CommandResult, Exit, Io};
use crate::key_place::KeyPlace;
use crate::source::{Source, key_failure};
use crate::zpool::block_on;
use crate::{err, out};

/// Status when a key was not loaded or unloaded.
const STATUS: i32 = 255;
/// Number of attempts at a terminal.
const TRIES: usize = 3;

/// Runs `load-key` or `unload-key`.
pub(super) fn run(verb: &str, source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let is_load = verb == "load-key";
    let parsed = getopt::parse(args, if is_load { "anrL:" } else { "ar" }, &[])?;
    let is_recursive = parsed.has('r') || parsed.has('a');
    let location = parsed.value('L');
    match (parsed.operands.len(), parsed.has('a')) {
        (0, true) | (1, false) => {}
        (0, false) => return Err(Exit::usage("Missing dataset argument or -a option")),
        (_, true) => return Err(Exit::usage("Cannot specify dataset with -a option")),
        (_, false) => return Err(Exit::usage("Too many arguments")),
    }
    if is_recursive && location.is_some_and(|location| location != "prompt") {
        let text = "alternate keylocation may only be 'prompt' with -r or -a";
        return Err(Exit::usage(text));
    }
    block_on(async {
        let mut wanted = Vec::new();
        let mut pools = Vec::new();
        match (parsed.operands.first(), &source.session) {
            (Some(name), _) => wanted.push(existing(source, name).await?),
            (None, Some(session)) => {
                for engine in session.host.pools() {
                    pools.push(engine.view().await?);
                }
            }
            (None, None) => {}
        }
        for pool in pools {
            wanted.push(pool.root_dataset().await?);
        }
        if is_recursive {
            for root in wanted.clone() {
                below(&root, &mut wanted).await?;
            }
        }
        let mut counts = Counts::default();
        for dataset in wanted {
            if is_recursive && !needs_change(&dataset, is_load).await? {
                continue;
            }
            counts.tried += 1;
            let done = if is_load {
                load(source, &dataset, location, parsed.has('n'), io).await
            } else {
                unload(source, &dataset).await
            };
            match done {
                Ok(()) => counts.done += 1,
                Err(Exit::Overtaken) => return Err(Exit::Overtaken),
                Err(exit) => err!(io, "{}", exit.message())?,
            }
        }
        counts.tell(is_load, is_recursive, parsed.has('n'), io)
    })
}

#[derive(Default)]
struct Counts {
    done: usize,
    tried: usize,
}

impl Counts {
    fn tell(
        &self,
        is_load: bool,
        is_recursive: bool,
        is_trial: bool,
        io: &mut Io<'_>,
    ) -> CommandResult {
        let action = match (is_load, is_trial) {
            (true, true) => "verified",
            (true, false) => "loaded",
            (false, _) => "unloaded",
        };
        if is_trial || is_recursive && self.tried > 0 {
            out!(io, "{} / {} key(s) successfully {action}", self.done, self.tried)?;
        }
        if self.done == self.tried { Ok(()) } else { Err(Exit::Status(STATUS)) }
    }
}

/// Whether a dataset is an encryption root whose key is not yet in the requested state.
async fn needs_change(dataset: &Dataset, is_load: bool) -> Result<bool, Exit> {
    let Some(key) = dataset.key_info().await? else { return Ok(false) };
    let keys = dataset.pool().keys();
    let is_loaded = if is_load { keys.is_root_loaded(&key) } else { keys.is_loaded(&key) };
    Ok(key.root_dir == dataset.dir().object && is_loaded != is_load)
}

/// Loads the keys of all encryption roots of a pool (`zpool import -l`). Prints why a key is not
/// loaded, and returns whether all of them are.
///
/// # Errors
/// Errors of the pool.
pub(crate) async fn load_all(
    source: &Source,
    pool: &Arc<Pool>,
    io: &mut Io<'_>,
) -> Result<bool, Exit> {
    let root = pool.root_dataset().await?;
    let mut datasets = vec![root.clone()];
    below(&root, &mut datasets).await?;
    let mut are_loaded = true;
    for dataset in datasets {
        if !needs_change(&dataset, true).await? {
            continue;
        }
        match load(source, &dataset, None, false, io).await {
            Ok(()) => {}
            Err(Exit::Overtaken) => return Err(Exit::Overtaken),
            Err(exit) => {
                err!(io, "{}", exit.message())?;
                are_loaded = false;
            }
        }
    }
    Ok(are_loaded)
}

/// Loads the key of a dataset, from `keylocation` if no place is given.
///
/// # Errors
/// OpenZFS's message about why it is not loaded.
pub(super) async fn load(
    source: &Source,
    dataset: &Dataset,
    location: Option<&str>,
    is_trial: bool,
    io: &mut Io<'_>,
) -> CommandResult {
    permits::need(source, dataset, &["load-key"], "load key for").await?;
    let name = dataset.name();
    let pool: &Arc<Pool> = dataset.pool();
    let failed = |text: String| Exit::failed(format!("Key load error: {text}"));
    let Some(key) = dataset.key_info().await? else {
        return Err(key_failure(dataset, &KeyError::NotEncrypted.into()).await);
    };
    if key.root_dir != dataset.dir().object {
        return Err(key_failure(dataset, &KeyError::NotRoot.into()).await);
    }
    if !is_trial && pool.keys().is_root_loaded(&key) {
        return Err(key_failure(dataset, &KeyError::AlreadyLoaded.into()).await);
    }
    let stored = match dataset.props().await?.get("keylocation").await?.map(|row| row.value) {
        Some(PropValue::Text(text)) => text,
        _ => "prompt".to_owned(),
    };
    let location = location.unwrap_or(&stored);
    let format = key.format().map_err(|error| failed(error.to_string()))?;
    let place = KeyPlace::of(location).ok_or_else(|| failed("Invalid keylocation.".to_owned()))?;
    let mut left = TRIES;
    loop {
        left -= 1;
        let (material, is_typed) = if place == KeyPlace::Prompt {
            let is_raw = format == crypto::KeyFormat::Raw;
            let prompt = format!("Enter {} for '{name}':", asked(format));
            source.ask_key(&prompt, is_raw, io).map_err(|error| failed(error.to_string()))?
        } else {
            (source.key_at(location).map_err(failed)?, false)
        };
        let done = if is_trial {
            try_key(&key, &material).await
        } else {
            pool.load_key(dataset, &material).await.map(drop)
        };
        match done {
            Ok(()) => return Ok(()),
            Err(error) => {
                let exit = key_failure(dataset, &error).await;
                if left == 0 || !is_typed {
                    return Err(exit);
                }
                err!(io, "{}", exit.message())?;
            }
        }
    }
}

async fn try_key(key: &cenote_pool::keys::KeyInfo, material: &[u8]) -> Result<(), Error> {
    let wrapping = key.wrapping_key(material).await?;
    crypto::BlockKeys::unwrap(&wrapping, &key.wrapped).map(drop).map_err(KeyError::from)?;
    Ok(())
}

pub(super) fn asked(format: crypto::KeyFormat) -> &'static str {
    match format {
        crypto::KeyFormat::Raw => "raw key",
        crypto::KeyFormat::Hex => "hex key",
        crypto::KeyFormat::Passphrase => "passphrase",
    }
}

/// Unloads the key of a dataset, which must not be mounted.
///
/// # Errors
/// OpenZFS's message about why it is not unloaded.
pub(super) async fn unload(source: &Source, dataset: &Dataset) -> CommandResult {
    permits::need(source, dataset, &["load-key"], "unload key for").await?;
    let name = dataset.name();
    let failed = |text: String| Exit::failed(format!("Key unload error: {text}"));
    let mut users = vec![dataset.clone()];
    below(dataset, &mut users).await?;
    let root = dataset.dir().object;
    for user in users {
        let key = user.key_info().await?;
        let is_mounted = user.pool().presence().is_mounted(user.object());
        if is_mounted && key.is_some_and(|key| key.root_dir == root) {
            return Err(failed(format!("'{name}' is busy.")));
        }
    }
    let pool = dataset.pool().name();
    let engine = source.session.as_ref().map(|session| session.pool(pool)).transpose()?;
    let unloaded = async {
        match engine.filter(|engine| !engine.is_read_only()) {
            Some(engine) => {
                dataset.loaded_root().await?;
                engine.datasets().unload_key(root).await
            }
            None => dataset.pool().unload_key(dataset).await,
        }
    };
    let Err(error) = unloaded.await else { return Ok(()) };
    Err(failed(match error.cause::<KeyError>() {
        Some(KeyError::NotEncrypted) => format!("'{name}' is not encrypted."),
        Some(KeyError::NotRoot) => {
            let root = dataset.encryption_root().await?.unwrap_or_default();
            format!("Keys must be unloaded for encryption root of '{name}' ({root}).")
        }
        Some(KeyError::NotLoaded) => format!("Key already unloaded for '{name}'."),
        _ if error.kind() == Kind::Busy => format!("'{name}' is busy."),
        _ => error.to_string(),
    }))
}
