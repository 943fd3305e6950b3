//! `zpool split`: one side of each mirror becomes a pool of its own.
//!
//! The new pool is exported; with `-R` it is imported afterwards. As in OpenZFS, the last side of a
//! mirror goes unless another one is named, log vdevs, spares and cache devices stay, and what the
//! engine refuses ends with status 1.

use std::cell::Cell;
use std::sync::Arc;

use cenote_engine::{Engine, SplitError, SplitPool};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_pool::AllocationClass;
use cenote_pool::dsl::check_pool_name;

use super::names::{self, Names};
use super::setting::Wanted;
use super::{block_on, import, layout};
use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, cause_or_checkpoint, command_line};

/// The options of a split.
struct Options {
    parsed: Parsed,
    wanted: Wanted,
    /// Options for mounting the file systems of the new pool.
    mount: Option<String>,
}

/// Runs `zpool split`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let options = options(args)?;
    let [name, new_name, words @ ..] = &options.parsed.operands[..] else {
        let is_first = options.parsed.operands.is_empty();
        let missing = if is_first { "Missing pool name" } else { "Missing new pool name" };
        return Err(Exit::usage(missing));
    };
    let is_dry = options.parsed.has('n');
    let line = command_line(Tool::Zpool, "split", args);
    let recorded = (!is_dry).then_some(&line[..]);
    let paths = Cell::new(Vec::new());
    let work = async |engine: &Arc<Engine>, io: &mut Io<'_>| {
        let root = engine.admin().vdev_config();
        let leaves = chosen(source, &root, (name, new_name), words)?;
        let sides = leaves.iter().flatten().filter_map(|guid| root.find(*guid));
        paths.set(sides.filter_map(path_of).collect());
        if is_dry {
            let names = Names::of(&options.parsed).within(&root);
            return preview(engine, new_name, &leaves, &names, io).await;
        }
        check_absent(source, name, new_name).await?;
        if engine.is_read_only() {
            return Err(unable(name, "pool is read-only"));
        }
        let settings = options.wanted.settings.clone();
        let new = SplitPool { name: new_name.clone(), leaves, settings };
        let split = engine.leaves().split(new).await;
        split.map(drop).map_err(|error| unable(name, cause_or_checkpoint::<SplitError>(&error)))
    };
    block_on(async {
        Writer::run_on_pool(source, name, recorded, io, work).await?;
        let Some(altroot) = options.altroot().filter(|_| !is_dry) else { return Ok(()) };
        let mut import = vec!["-R".to_owned(), altroot];
        import.extend(options.mount.iter().flat_map(|text| ["-o".to_owned(), text.clone()]));
        import.extend(options.parsed.has('l').then(|| "-l".to_owned()));
        let source = Source { paths: paths.take(), ..source.clone() };
        import::import_new(&source, new_name, &import, &line, io).await
    })
}

impl Options {
    fn altroot(&self) -> Option<String> {
        self.parsed.value('R').map(str::to_owned)
    }
}

fn options(args: &[String]) -> Result<Options, Exit> {
    let parsed = getopt::parse(args, ":gLR:lno:P", &[])?;
    let (mut wanted, mut mount) = (Wanted::default(), None);
    for text in parsed.values('o') {
        let Some((name, value)) = text.split_once('=') else {
            mount = Some(text.to_owned());
            continue;
        };
        let pool = parsed.operands.first().map_or("", String::as_str);
        // For OpenZFS a split is an import, not a creation.
        if name == "bootfs" {
            let why = "property 'bootfs' cannot be set at creation or import time";
            return Err(unable(pool, why));
        }
        if name.starts_with("feature@") && value == "disabled" {
            let why = "can only be set to 'disabled' at creation time";
            return Err(unable(pool, format!("property '{name}' {why}")));
        }
        wanted.add(name, value, true).map_err(|why| {
            if why.starts_with("invalid property") {
                return Exit::usage(format!(
                    "property '{name}' is not a valid pool or vdev property"
                ));
            }
            unable(pool, why)
        })?;
    }
    let is_imported = parsed.has('R');
    if !is_imported && mount.is_some() {
        return Err(Exit::usage("setting mntopts is only valid when importing the pool"));
    }
    if !is_imported && parsed.has('l') {
        return Err(Exit::usage("loading keys is only valid when importing the pool"));
    }
    Ok(Options { parsed, wanted, mount })
}

fn unable(pool: &str, why: impl std::fmt::Display) -> Exit {
    Exit::failed(format!("Unable to split {pool}: {why}"))
}

/// Returns the leaf of each top-level vdev that goes.
fn chosen(
    source: &Source,
    root: &VdevConfig,
    (pool, new_name): (&str, &str),
    words: &[String],
) -> Result<Vec<Option<u64>>, Exit> {
    let named = named(source, root, words)?;
    check_pool_name(new_name).map_err(|why| unable(pool, why))?;
    let is_empty = |top: &VdevConfig| top.top.is_log || top.kind == VdevKind::Hole;
    let last = root.children.iter().rposition(|top| !is_empty(top));
    let (mut leaves, mut found) = (Vec::new(), 0);
    for top in root.children.iter().take(last.map_or(0, |last| last + 1)) {
        if is_empty(top) || top.kind == VdevKind::Indirect {
            leaves.push(None);
            continue;
        }
        if top.kind != VdevKind::Mirror {
            return Err(unable(pool, "Source pool must be composed only of mirrors\n"));
        }
        let side = top.children.iter().find(|child| named.contains(&Some(child.guid)));
        found += usize::from(side.is_some());
        leaves.push(side.or(top.children.last()).map(|side| side.guid));
    }
    if found != words.len() {
        let why = "Device list must include at most one disk from each mirror";
        return Err(unable(pool, why));
    }
    Ok(leaves)
}

/// Returns the vdevs that are named; `None` for one that is not the pool's.
fn named(source: &Source, root: &VdevConfig, words: &[String]) -> Result<Vec<Option<u64>>, Exit> {
    let mut named = Vec::new();
    for word in words {
        if layout::is_word(word) {
            return Err(Exit::failed(format!("Cannot use type '{word}' for splitting")));
        }
        let vdev = names::find(root, word, &source.path(word));
        if vdev.is_err()
            && let Err(Exit::Failed(why)) = layout::resolve(source, word)
        {
            let text = "Unable to build a pool from the specified devices";
            return Err(Exit::failed(format!("{why}\n{text}")));
        }
        named.push(vdev.ok().map(|vdev| vdev.guid));
    }
    Ok(named)
}

/// Refuses the name of an existing pool.
async fn check_absent(source: &Source, pool: &str, new_name: &str) -> CommandResult {
    let is_there = if let Some(session) = &source.session {
        session.has_pool(new_name)
    } else {
        let scan = source.scan().await?;
        let mut named = scan.candidates.iter().filter(|found| found.name() == new_name);
        named.any(|found| !found.is_destroyed())
    };
    if is_there { Err(unable(pool, "pool already exists")) } else { Ok(()) }
}

/// Prints the vdevs of the new pool.
async fn preview(
    engine: &Engine,
    new_name: &str,
    leaves: &[Option<u64>],
    names: &Names,
    io: &mut Io<'_>,
) -> CommandResult {
    let root = engine.admin().vdev_config();
    out!(io, "would create '{new_name}' with the following layout:\n")?;
    let view = engine.view().await?;
    let space = view.space().await?;
    for (class, title) in [
        (AllocationClass::Normal, new_name),
        (AllocationClass::Dedup, "dedup"),
        (AllocationClass::Special, "special"),
    ] {
        let of_class = (0..).zip(leaves).filter(|(id, _)| {
            space.vdev(*id).map_or(AllocationClass::Normal, |figures| figures.class) == class
        });
        let mut lines = of_class
            .filter_map(|(_, leaf)| root.find((*leaf)?))
            .map(|leaf| names.config(leaf))
            .peekable();
        if lines.peek().is_some() || class == AllocationClass::Normal {
            out!(io, "\t{title}")?;
        }
        for line in lines {
            out!(io, "\t  {line}")?;
        }
    }
    Ok(())
}

fn path_of(leaf: &VdevConfig) -> Option<String> {
    leaf.leaf.path.as_ref().map(|path| path.to_string_lossy().into_owned())
}
