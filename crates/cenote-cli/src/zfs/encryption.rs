//! Encryption of new datasets, and `zfs change-key` (spec 08 §14, §15).
//!
//! Properties `encryption`, `keyformat`, `keylocation` and `pbkdf2iters` are not stored like
//! others: they say with which key a new dataset is encrypted. The key comes from a file or from
//! the caller, who types it twice at a terminal.

use cenote_codec::crypto::{self, KeyFormat, Pbkdf2, Purpose, Suite, WrappingKey};
use cenote_engine::{KeyChange, NewEncryption, OpError, UserKey};
use cenote_pool::features::FeatureState;
use cenote_pool::keys::KeyInfo;
use cenote_pool::props::PropValue;
use cenote_pool::props::text::{self as setting, Moment, Setting};
use cenote_pool::{Dataset, KeyError, Pool};
use cenote_rt::secret_bytes;

use super::refuse::existing;
use super::{keys, permits};
use crate::getopt;
use crate::io::{CommandResult, Exit, Io};
use crate::key_place::KeyPlace;
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, command_line};
use crate::zpool::block_on;

/// Iterations of PBKDF2 for a new passphrase.
const ITERATIONS: u64 = 350_000;
/// Approximate cost of one.
const ITERATION_NS: u64 = 1000;
/// Values of the property `encryption` that name no suite.
const ON: u64 = 1;
const OFF: u64 = 2;
/// Features of a pool with encrypted datasets.
pub(crate) const FEATURES: [&str; 2] = ["encryption", "bookmark_v2"];
/// Limits of a passphrase.
const PASSPHRASE: std::ops::RangeInclusive<usize> = 8..=512;

/// The wanted properties of a key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    encryption: Option<u64>,
    format: Option<u64>,
    location: Option<String>,
    iterations: Option<u64>,
}

/// Where a key may be read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyInput {
    /// Standard input is free.
    Free,
    /// A stream comes from standard input.
    InUse,
}

impl Wanted {
    /// Takes the properties out of settings.
    pub(crate) fn of(settings: &[Setting]) -> Self {
        let find = |name: &str| settings.iter().find(|(there, _)| there == name);
        let number = |name: &str| find(name).and_then(|(_, value)| value.single());
        let location = find("keylocation").and_then(|(_, value)| value.as_str());
        Self {
            encryption: number("encryption"),
            format: number("keyformat").filter(|format| *format != 0),
            location: location.map(str::to_owned),
            iterations: number("pbkdf2iters").filter(|count| *count != 0),
        }
    }

    /// Whether any of them asks for encryption.
    fn has_any(&self) -> bool {
        self.encryption.is_some_and(|value| value != OFF)
            || self.location.as_ref().is_some_and(|location| location != "none")
            || self.format.is_some()
            || self.iterations.is_some()
    }

    /// How a new dataset below `parent` is encrypted; without one, it is the root file system of a
    /// new pool.
    ///
    /// # Errors
    /// OpenZFS's reasons, for a message that says what cannot be created.
    pub(crate) async fn for_new(
        &self,
        source: &Source,
        parent: Option<&Dataset>,
        has_feature: bool,
        input: KeyInput,
        io: &mut Io<'_>,
    ) -> Result<NewEncryption, String> {
        if !has_feature {
            let text = "Encryption feature not enabled.".to_owned();
            return if self.has_any() { Err(text) } else { Ok(NewEncryption::Off) };
        }
        let is_below_encrypted = match parent {
            Some(parent) => parent.is_encrypted().await.map_err(|error| error.to_string())?,
            None => false,
        };
        let is_off = self.encryption.map_or(!is_below_encrypted, |value| value == OFF);
        if is_off {
            let text = "Encryption must be turned on to set encryption properties.".to_owned();
            return if self.has_any() { Err(text) } else { Ok(NewEncryption::Off) };
        }
        let suite = match self.encryption {
            Some(ON) => Some(Suite::Aes256Gcm),
            Some(value) => Suite::from_value(value),
            None => None,
        };
        let Some(format) = self.format else {
            if self.location.is_some() || !is_below_encrypted {
                return Err("Keyformat required for new encryption root.".to_owned());
            }
            return Ok(suite.map_or(NewEncryption::Inherited, NewEncryption::Suite));
        };
        let location = self.location.as_deref().unwrap_or("prompt");
        if input == KeyInput::InUse && location == "prompt" {
            return Err("Cannot use 'prompt' keylocation because stdin is in use.".to_owned());
        }
        let key = self.user_key(source, format, location, None, io).await?;
        Ok(NewEncryption::Root(suite, key))
    }

    /// Reads a new key; `name` is that of an existing dataset.
    async fn user_key(
        &self,
        source: &Source,
        format: u64,
        location: &str,
        name: Option<&str>,
        io: &mut Io<'_>,
    ) -> Result<UserKey, String> {
        let format = KeyFormat::from_value(format).map_err(|error| error.to_string())?;
        let is_passphrase = format == KeyFormat::Passphrase;
        if self.iterations.is_some() && !is_passphrase {
            return Err("Cannot specify pbkdf2iters with a non-passphrase keyformat.".to_owned());
        }
        let place = KeyPlace::of(location).ok_or("Invalid keylocation.")?;
        let material = match place {
            KeyPlace::Prompt => typed(source, format, name, io)?,
            KeyPlace::File(_) | KeyPlace::Url(_) => source.key_at(location)?,
        };
        let mut pbkdf2 = Pbkdf2::default();
        if is_passphrase {
            let mut salt = [0; 8];
            secret_bytes(&mut salt).map_err(|_| "Failed to generate salt.".to_owned())?;
            pbkdf2.salt = u64::from_le_bytes(salt).max(1);
            pbkdf2.iterations = self.iterations.unwrap_or(ITERATIONS);
        }
        let derived = cenote_rt::cpu(pbkdf2.iterations.saturating_mul(ITERATION_NS), move || {
            WrappingKey::from_material(format, &material, pbkdf2, Purpose::Set)
        });
        let key = derived.await.map_err(|error| error.to_string())?;
        let key = key.map_err(|error| key_words(&error))?;
        Ok(UserKey { key: key.into(), format, pbkdf2, location: location.to_owned() })
    }
}

/// Asks for a new key, twice if it is typed at a terminal.
fn typed(
    source: &Source,
    format: KeyFormat,
    name: Option<&str>,
    io: &mut Io<'_>,
) -> Result<Vec<u8>, String> {
    let is_raw = format == KeyFormat::Raw;
    let of = name.map_or_else(String::new, |name| format!(" for '{name}'"));
    let mut ask = |how: &str| {
        let prompt = format!("{how} new {}{of}:", keys::asked(format));
        source.ask_key(&prompt, is_raw, io).map_err(|error| error.to_string())
    };
    let (first, is_typed) = ask("Enter")?;
    if !is_typed {
        return Ok(first);
    }
    check_length(format, &first)?;
    let (second, _) = ask("Re-enter")?;
    if first == second { Ok(first) } else { Err("Provided keys do not match.".to_owned()) }
}

/// Refuses a typed key before it is typed again.
fn check_length(format: KeyFormat, key: &[u8]) -> Result<(), String> {
    match format {
        KeyFormat::Passphrase if !PASSPHRASE.contains(&key.len()) => {
            Err(key_words(&crypto::KeyError::PassphraseLength { len: key.len() }))
        }
        KeyFormat::Hex if key.len() != 64 => {
            Err(key_words(&crypto::KeyError::HexLength { len: key.len() }))
        }
        _ => Ok(()),
    }
}

/// Returns OpenZFS's words for a key that cannot be one.
fn key_words(error: &crypto::KeyError) -> String {
    use crypto::KeyError as K;
    match *error {
        K::PassphraseLength { len } if len < *PASSPHRASE.start() => {
            format!("Passphrase too short (min {}).", PASSPHRASE.start())
        }
        K::PassphraseLength { .. } => format!("Passphrase too long (max {}).", PASSPHRASE.end()),
        K::HexLength { len } if len < 64 => "Hex key too short (expected 64).".to_owned(),
        K::HexLength { .. } => "Hex key too long (expected 64).".to_owned(),
        K::HexDigit { .. } => "Invalid hex character detected.".to_owned(),
        K::RawLength { len } if len < 32 => "Raw key too short (expected 32).".to_owned(),
        K::RawLength { .. } => "Raw key too long (expected 32).".to_owned(),
        K::Iterations { .. } => "minimum pbkdf2 iterations is 100000".to_owned(),
        ref other => other.to_string(),
    }
}

/// Whether a property says how a dataset is encrypted.
pub(super) fn is_of_key(property: &str) -> bool {
    matches!(property, "encryption" | "keyformat" | "keylocation" | "pbkdf2iters")
}

/// Whether new datasets of the pool can be encrypted.
pub(super) fn has_feature(pool: &Pool) -> bool {
    FEATURES.iter().all(|name| pool.features().state(name) != FeatureState::Disabled)
}

/// Runs `zfs change-key`.
pub(super) fn change_key(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "lio:", &[])?;
    let [name] = getopt::exactly(&parsed.operands, ["Missing dataset argument"])?;
    let line = command_line(Tool::Zfs, "change-key", args);
    let is_inheriting = parsed.has('i');
    block_on(async {
        let dataset = existing(source, name).await?;
        permits::need(source, &dataset, &["change-key"], "change key for").await?;
        let Some(key) = dataset.key_info().await? else {
            return Err(failed("Dataset not encrypted."));
        };
        if dataset.is_snapshot() {
            return Err(failed("Invalid properties for key change."));
        }
        if dataset.origin().await?.is_some() {
            return Err(failed("Keys cannot be changed on clones."));
        }
        let (wanted, others) = properties(&parsed, &dataset, is_inheriting).await?;
        for (name, _) in &others {
            let right = permits::of_property(name);
            permits::need(source, &dataset, &[&right], "change key for").await?;
        }
        let is_root = key.root_dir == dataset.dir().object;
        let is_loaded = has_key(source, &dataset, &key, parsed.has('l'), io).await?;
        if is_inheriting {
            check_inheritance(source, &dataset, is_root, parsed.has('l'), io).await?;
        }
        if !is_loaded {
            return Err(failed("Key must be loaded."));
        }
        let change = if is_inheriting {
            KeyChange::Inherit
        } else {
            let format = match (wanted.format, is_root) {
                (Some(format), _) => format,
                (None, true) => key.format_value,
                (None, false) => return Err(failed("Keyformat required for new encryption root.")),
            };
            let location = match (&wanted.location, is_root) {
                (Some(location), _) => location.clone(),
                (None, true) => location_of(&dataset).await?,
                (None, false) => "prompt".to_owned(),
            };
            let key = wanted.user_key(source, format, &location, Some(name), io).await;
            KeyChange::Root(key.map_err(|why| failed(&why))?)
        };
        drop(dataset);
        Writer::run(source, name, Some(&line), io, async |engine, _| {
            let changed = engine.datasets().change_key(name, change).await;
            changed.map_err(|error| {
                failed(match error.cause::<KeyError>() {
                    Some(KeyError::NotLoaded) => "Key is not currently loaded.",
                    _ => "Invalid properties for key change.",
                })
            })?;
            if others.is_empty() {
                return Ok(());
            }
            let changed = engine.properties().change(name, others).await;
            changed.map_err(|error| failed(&error.to_string()))
        })
        .await
    })
}

type Changes = Vec<(String, cenote_engine::PropertyChange)>;

/// Returns the properties given with `-o`: those of the key, and user properties.
async fn properties(
    parsed: &getopt::Parsed,
    dataset: &Dataset,
    is_inheriting: bool,
) -> Result<(Wanted, Changes), Exit> {
    let kind = match dataset.kind().await? {
        cenote_pool::DatasetKind::Volume => 'v',
        _ => 'f',
    };
    let (mut settings, mut others): (Vec<Setting>, Changes) = (Vec::new(), Vec::new());
    for text in parsed.values('o') {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| Exit::usage("missing '=' for property=value argument"))?;
        let is_of_key = matches!(name, "keyformat" | "keylocation" | "pbkdf2iters");
        if is_inheriting && !name.contains(':') {
            return Err(failed("Only user properties may be set with 'zfs change-key -i'"));
        }
        if !is_of_key && !name.contains(':') {
            let text = "Only keyformat, keylocation, pbkdf2iters, and user properties may be set \
                        with this command.";
            return Err(failed(text));
        }
        let setting = setting::parse(name, value, kind, Moment::Creation);
        let setting = setting.map_err(|why| failed(&why))?;
        if is_of_key {
            settings.push(setting);
        } else {
            others.push((setting.0, cenote_engine::PropertyChange::Set(setting.1)));
        }
    }
    Ok((Wanted::of(&settings), others))
}

/// Refuses a dataset that cannot use its parent's key.
async fn check_inheritance(
    source: &Source,
    dataset: &Dataset,
    is_root: bool,
    loads: bool,
    io: &mut Io<'_>,
) -> CommandResult {
    if !is_root {
        return Err(failed("Key inheritting can only be performed on encryption roots."));
    }
    let Some((parent, _)) = dataset.name().rsplit_once('/') else {
        return Err(failed("Root dataset cannot inherit key."));
    };
    let parent = existing(source, parent).await?;
    if !parent.is_encrypted().await? {
        return Err(failed("Parent must be encrypted."));
    }
    if !has_root_key(source, &parent, loads, io).await? {
        return Err(failed("Parent key must be loaded."));
    }
    Ok(())
}

/// Whether the keys of a dataset are loaded; with `loads` they are, unless that fails.
async fn has_key(
    source: &Source,
    dataset: &Dataset,
    key: &KeyInfo,
    loads: bool,
    io: &mut Io<'_>,
) -> Result<bool, Exit> {
    if loads {
        has_root_key(source, dataset, true, io).await?;
    }
    Ok(dataset.pool().keys().is_loaded(key))
}

/// Whether the key of a dataset's encryption root is loaded; with `loads` it is, unless that fails.
async fn has_root_key(
    source: &Source,
    dataset: &Dataset,
    loads: bool,
    io: &mut Io<'_>,
) -> Result<bool, Exit> {
    let name = dataset.encryption_root().await?.unwrap_or_default();
    let root = existing(source, &name).await?;
    let Some(key) = root.key_info().await? else { return Ok(false) };
    let is_loaded = || dataset.pool().keys().is_root_loaded(&key);
    if loads && !is_loaded() {
        keys::load(source, &root, None, false, io).await?;
    }
    Ok(is_loaded())
}

fn failed(why: &str) -> Exit {
    Exit::failed(format!("Key change error: {why}"))
}

async fn location_of(dataset: &Dataset) -> Result<String, Exit> {
    Ok(match dataset.props().await?.get("keylocation").await?.map(|row| row.value) {
        Some(PropValue::Text(text)) => text,
        _ => "prompt".to_owned(),
    })
}

/// Returns OpenZFS's words for an operation that the key of a dataset prevents.
pub(super) fn refusal(error: &cenote_rt::Error) -> Option<&'static str> {
    match (error.cause::<KeyError>(), error.cause::<OpError>()) {
        (Some(KeyError::NotLoaded), _) => Some("encryption root's key is not loaded or provided"),
        (_, Some(OpError::NoKey)) => Some("Keyformat required for new encryption root."),
        _ => None,
    }
}
