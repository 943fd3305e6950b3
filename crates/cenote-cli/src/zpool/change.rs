//! The verbs that change a pool as a whole: `destroy`, `export`, `sync`, `set`, `reguid`,
//! `upgrade`, `labelclear`.

use std::path::Path;
use std::sync::Arc;

use cenote_engine::admin::PoolSetting;
use cenote_engine::create::new_guid;
use cenote_engine::{CheckpointError, Engine, OpError};
use cenote_ondisk::config::{PoolState, VdevConfig};
use cenote_pool::features::{self, FeatureState, compat};
use cenote_pool::import::{DeviceError, PoolDevice};
use cenote_pool::props::{POOL_PROPERTIES, pool_property, property_named};
use cenote_rt::Kind;

use super::setting::Wanted;
use super::{block_on, layout, no_such_pool, refuse, vdev_setting};
use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, cause_text, command_line};
use crate::{argument, err, out};

/// Runs one of these verbs.
pub(super) fn run(verb: &str, source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let line = command_line(Tool::Zpool, verb, args);
    match verb {
        "destroy" => destroy(source, args, &line, io),
        "export" => export(source, args, &line, io),
        "sync" => sync(source, args, io),
        "set" => set(source, args, &line, io),
        "reguid" => reguid(source, args, &line, io),
        "labelclear" => labelclear(source, args, io),
        _ => upgrade(source, args, &line, io),
    }
}

fn destroy(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "f", &[])?;
    let [name] = getopt::exactly(&parsed.operands, ["missing pool argument"])?;
    if name.contains('/') {
        err!(io, "cannot open '{name}': invalid character '/' in pool name")?;
        return Err(Exit::failed("use 'zfs destroy' to destroy a dataset"));
    }
    block_on(async {
        let writer = Writer::open(source, name).await?;
        let destroy = async |engine: &Engine| {
            if engine.is_read_only() {
                // As in OpenZFS: nothing is written, so that it can be imported again.
                engine.export().await
            } else {
                engine.destroy().await
            }
        };
        writer.close(line, parsed.has('f'), io, destroy).await
    })
}

/// Returns the names of all active pools.
pub(super) async fn active(source: &Source) -> Result<Vec<String>, Exit> {
    if !source.has_pools() {
        return Ok(Vec::new());
    }
    if let Some(session) = &source.session {
        return Ok(session.host.pools().iter().map(|engine| engine.name()).collect());
    }
    let scan = source.scan().await?;
    let active = scan.candidates.iter().filter(|found| found.facts.state == PoolState::Active);
    let mut names: Vec<_> = active.map(|found| found.name().to_owned()).collect();
    names.sort();
    Ok(names)
}

fn export(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "aFf", &[])?;
    if parsed.has('a') && !parsed.operands.is_empty() {
        return Err(Exit::usage("too many arguments"));
    }
    if parsed.operands.is_empty() && !parsed.has('a') {
        return Err(Exit::usage("missing pool argument"));
    }
    block_on(async {
        let names = if parsed.has('a') { active(source).await? } else { parsed.operands.clone() };
        let mut status = Ok(());
        for name in &names {
            let session = source.session.as_ref();
            let absent = session.and_then(|session| Some((session, session.absent_pool(name)?)));
            let outcome = match Writer::open(source, name).await {
                // As in OpenZFS, this is how a pool whose devices are lost is forgotten.
                Err(_)
                    if let Some((session, pool)) = absent
                        && source.is_trusted() =>
                {
                    session.host.forget_absent_pool(&pool).await
                }
                Ok(writer) => {
                    let is_forced = parsed.has('f');
                    let export = async |engine: &Engine| {
                        if parsed.has('F') {
                            // Undocumented in OpenZFS: the labels stay those of a pool in use.
                            engine.detach_and_keep_active().await.map(drop)
                        } else {
                            engine.export().await
                        }
                    };
                    writer.close(line, is_forced, io, export).await
                }
                Err(exit) => Err(exit),
            };
            if let Err(Exit::Failed(message)) = outcome {
                err!(io, "{message}")?;
                status = Err(Exit::Status(1));
            }
        }
        status
    })
}

fn sync(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "f", &[])?;
    block_on(async {
        let names = match &parsed.operands[..] {
            [] => active(source).await?,
            names => names.to_vec(),
        };
        for name in &names {
            let sync = async |engine: &Arc<Engine>, _: &mut Io<'_>| match engine.sync().await {
                Err(error) if error.kind() == Kind::ReadOnly => {
                    Err(Exit::cannot("sync", name, "pool is read-only"))
                }
                synced => Ok(synced.map(drop)?),
            };
            Writer::run_on_pool(source, name, None, io, sync).await?;
        }
        Ok(())
    })
}

fn set(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "", &[])?;
    let (setting, name, vdev) = match &parsed.operands[..] {
        [] => return Err(Exit::usage("missing property=value argument")),
        [_] => return Err(Exit::usage("missing pool name")),
        [setting, name] => (setting, name, None),
        [setting, name, vdev] => (setting, name, Some(vdev)),
        _ => return Err(Exit::usage("too many pool names")),
    };
    let Some((property, value)) = setting.split_once('=') else {
        return Err(Exit::usage("missing value in property=value argument"));
    };
    if let Some(vdev) = vdev {
        return vdev_setting::set(source, (property, value), (name, vdev), line, io);
    }
    let cannot = |why: &str| Exit::cannot("set property for", name, why);
    block_on(async {
        if !source.has_pools() {
            return Err(Exit::failed(no_such_pool(name)));
        }
        let pool = source.pool(name).await?;
        let mut wanted = Wanted::default();
        wanted.add(property, value, false).map_err(|why| cannot(&why))?;
        wanted.check_bootfs(pool.name()).map_err(|why| cannot(&why))?;
        // The pool must be closed before it is opened for writing.
        drop(pool);
        if wanted.altroot.is_some() {
            let why = "can only be set during pool creation or import";
            return Err(cannot(&format!("property '{property}' {why}")));
        }
        if let (Some(session), "cachefile") = (&source.session, property) {
            session.host.remember(name, wanted.cache_file(false)).await?;
        }
        let is_transient = property_named(POOL_PROPERTIES, property).is_some()
            && pool_property(property).is_some()
            && wanted.settings.is_empty();
        Writer::run_on_pool(source, name, Some(line), io, async |engine, _| {
            if is_transient {
                return Ok(());
            }
            engine.admin().set(wanted.settings).await.map_err(|error| {
                match error.cause::<OpError>() {
                    Some(OpError::NotFound) => {
                        cannot(&format!("'{value}' is not a dataset of the pool"))
                    }
                    _ => cannot(&error.to_string()),
                }
            })
        })
        .await
    })
}

fn reguid(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "g:", &[])?;
    let wanted = match parsed.value('g').map(str::parse::<u64>) {
        None => None,
        Some(Ok(guid)) if guid != 0 => Some(guid),
        Some(_) => return Err(Exit::usage("invalid GUID")),
    };
    let [name] = getopt::exactly(&parsed.operands, ["missing pool name"])?;
    block_on(Writer::run_on_pool(source, name, Some(line), io, async |engine, _| {
        let guid = match wanted {
            Some(guid) => guid,
            None => new_guid()?,
        };
        let scan = source.scan().await?;
        if scan.candidates.iter().any(|found| found.guid() == guid) {
            return Err(Exit::cannot("reguid", name, "pool guid is in use"));
        }
        let changed = engine.admin().reguid(guid).await;
        changed.map_err(|error| Exit::cannot("reguid", name, cause_text::<CheckpointError>(&error)))
    }))
}

fn labelclear(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "f", &[])?;
    let [word] = getopt::exactly(&parsed.operands, ["missing vdev name"])?;
    let path = argument::path(word);
    let path = if path.is_absolute() { path } else { Path::new("/dev").join(path) };
    if !path.exists() {
        return Err(Exit::failed(format!(
            "failed to find device {word}, try specifying absolute path instead"
        )));
    }
    block_on(async {
        let mut opened = PoolDevice::open_exclusively(&path).await;
        if matches!(opened, Err(DeviceError::InUse(_)))
            && parsed.has('f')
            && close_unused(source, &path).await
        {
            opened = PoolDevice::open_exclusively(&path).await;
        }
        let device = match opened {
            Ok(device) => device,
            Err(DeviceError::InUse(_)) => {
                return Err(Exit::failed(format!("{word} is a member (ACTIVE) of a pool in use")));
            }
            Err(error) => return Err(Exit::failed(format!("failed to open {word}: {error}"))),
        };
        let found = device.found().await;
        if found.is_none() && !has_label(&device).await {
            return Err(Exit::FailedWith(format!("failed to clear label for {word}"), 255));
        }
        if let Some(member) = found.as_ref().and_then(|found| found.config.member.as_ref()) {
            let name = &member.facts.name;
            let state = match member.facts.state {
                PoolState::Active => Some("potentially active"),
                PoolState::Exported => Some("exported"),
                _ => None,
            };
            if let Some(state) = state.filter(|_| !parsed.has('f')) {
                err!(io, "use '-f' to override the following error:")?;
                return Err(Exit::failed(format!("{word} is a member of {state} pool \"{name}\"")));
            }
        }
        Ok(device.clear_labels().await?)
    })
}

/// Closes the device of a leaf that is offline or faulted in a pool of the daemon. Returns whether
/// there is such a leaf.
async fn close_unused(source: &Source, path: &Path) -> bool {
    let Some(session) = &source.session else { return false };
    for engine in session.host.pools() {
        let root = engine.admin().vdev_config();
        let is_at = |leaf: &&VdevConfig| {
            let known = leaf.leaf.path.as_ref().map(|path| path.to_string_lossy());
            known.is_some_and(|known| layout::is_same(Path::new(&*known), path))
        };
        let leaf = root.leaves().find(is_at).map(|leaf| leaf.guid);
        if let Some(guid) = leaf
            && engine.leaves().close_device(guid).await
        {
            return true;
        }
    }
    false
}

/// Whether a device has a label, also one that names no pool, as devices have that left theirs.
async fn has_label(device: &PoolDevice) -> bool {
    let labels = device.labels().await.labels;
    labels.iter().any(|label| label.list().is_some_and(|list| list.contains("version")))
}

/// Returns the features that the pool could enable and has not.
fn missing(pool: &cenote_pool::Pool) -> Vec<&'static features::Feature> {
    let allowed = compat::allowed(pool.config().facts.compatibility.as_deref()).unwrap_or_default();
    let is_missing = |feature: &&features::Feature| {
        allowed.contains(feature.name)
            && pool.features().state(feature.name) == FeatureState::Disabled
    };
    features::identity().filter(is_missing).collect()
}

fn upgrade(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, ":avV:", &[Long::flag("version", 'v')])?;
    if parsed.operands.is_empty() && !parsed.has('a') || parsed.has('v') {
        return list_upgrades(source, args, &parsed, io);
    }
    if parsed.value('V').is_some_and(|version| version != "5000") {
        return Err(Exit::usage("invalid version"));
    }
    out!(io, "This system supports ZFS pool feature flags.\n")?;
    block_on(async {
        let names = if parsed.has('a') { active(source).await? } else { parsed.operands.clone() };
        let mut count = 0;
        for name in &names {
            if !source.has_pools() {
                return Err(Exit::failed(no_such_pool(name)));
            }
            let pool = source.pool(name).await?;
            let wanted = missing(&pool);
            drop(pool);
            if wanted.is_empty() {
                if !parsed.has('a') {
                    out!(
                        io,
                        "Pool '{name}' already has all supported and requested features enabled."
                    )?;
                }
                continue;
            }
            count += 1;
            Writer::run_on_pool(source, name, Some(line), io, async |engine, io| {
                let settings = wanted.iter().copied().map(PoolSetting::Feature).collect();
                engine.admin().set(settings).await?;
                out!(io, "Enabled the following features on '{name}':")?;
                for feature in &wanted {
                    out!(io, "  {}", feature.name)?;
                }
                Ok(())
            })
            .await?;
        }
        if parsed.has('a') && count == 0 {
            out!(io, "All pools are already formatted using feature flags.\n")?;
            out!(
                io,
                "Every feature flags pool already has all supported and requested features enabled."
            )?;
        }
        Ok(())
    })
}

/// `upgrade` without a pool: lists pools with features that could be enabled.
fn list_upgrades(
    source: &Source,
    args: &[String],
    parsed: &Parsed,
    io: &mut Io<'_>,
) -> CommandResult {
    let pools = if source.has_pools() && !parsed.has('v') {
        block_on(async {
            let mut pools = Vec::new();
            for name in active(source).await? {
                let pool = source.pool(&name).await?;
                let wanted = missing(&pool);
                if !wanted.is_empty() {
                    pools.push((name, wanted));
                }
            }
            Ok(pools)
        })?
    } else {
        Vec::new()
    };
    if pools.is_empty() {
        return refuse::run("upgrade", source, args, io);
    }
    out!(io, "This system supports ZFS pool feature flags.\n")?;
    out!(io, "All pools are formatted using feature flags.\n")?;
    out!(
        io,
        "\nSome supported features are not enabled on the following pools. Once a\n\
         feature is enabled the pool may become incompatible with software\n\
         that does not support the feature. See zpool-features(7) for details.\n\n\
         Note that the pool 'compatibility' feature can be used to inhibit\n\
         feature upgrades.\n"
    )?;
    out!(io, "POOL  FEATURE\n---------------")?;
    for (name, wanted) in pools {
        out!(io, "{name}")?;
        for feature in wanted {
            out!(io, "      {}", feature.name)?;
        }
    }
    out!(io, "\n")
}
