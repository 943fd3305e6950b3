//! `zpool set PROPERTY=VALUE POOL VDEV`.
//!
//! Values are stored in the vdev's object, as OpenZFS stores them. `allocating` and the thresholds
//! of error rates take effect at once; `comment`, `failfast` and user properties are only stored
//! and shown.
//!
//! Source: the manual page vdevprops(7).

use std::path::Path;

use cenote_engine::EngineError;
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::zap::Value;
use cenote_pool::props::{quantity, text as dataset_text};
use cenote_rt::Kind;

use super::vdev_props::{ALLOCATING, PROPERTIES, RATES, SETTABLE, is_internal};
use super::{block_on, names, no_such_pool};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::writer::{Writer, cause_text};

/// Exit status of OpenZFS for a vdev that does not exist: the number of EINVAL.
const EINVAL: i32 = 22;
/// Length from which on a comment is refused.
const TEXT_MAX: usize = 8192;

/// Parses a value. `None` removes the property.
///
/// # Errors
/// The reason why it is refused.
fn parse(property: &str, text: &str) -> Result<Option<Value>, String> {
    if property.contains(':') && !is_internal(property) {
        let (_, value) = dataset_text::user(property, text)?;
        return Ok((!text.is_empty()).then_some(value));
    }
    if !PROPERTIES.contains(&property) {
        return Err(format!("invalid property '{property}'"));
    }
    if !SETTABLE.contains(&property) {
        return Err(format!("'{property}' is readonly"));
    }
    match property {
        _ if RATES.contains(&property) => match text {
            "none" => Ok(Some(Value::U64(u64::MAX))),
            _ => quantity::parse(text).map(|number| Some(Value::U64(number))),
        },
        "failfast" | ALLOCATING => match text {
            "on" => Ok(Some(Value::U64(1))),
            "off" => Ok(Some(Value::U64(0))),
            _ => Err(format!("'{property}' must be one of 'on | off'")),
        },
        "comment" if text.len() >= TEXT_MAX => Err(format!("'{property}' is too long")),
        _ => Ok((!text.is_empty()).then(|| Value::text(text))),
    }
}

/// Returns the vdev that a word denotes; `root` and `root-0` denote the root.
fn find<'a>(root: &'a VdevConfig, word: &str, source: &Source) -> Option<&'a VdevConfig> {
    if matches!(word, "root" | "root-0") {
        return Some(root);
    }
    names::find(root, word, &source.path(word)).ok()
}

/// Sets a property of a vdev.
pub(super) fn set(
    source: &Source,
    (property, value): (&str, &str),
    (pool, word): (&str, &str),
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    if !source.has_pools() {
        return Err(Exit::failed(no_such_pool(pool)));
    }
    block_on(async {
        let opened = source.pool(pool).await?;
        let found = find(&opened.config().vdev_tree, word, source);
        let is_root = found.is_some_and(|vdev| vdev.kind == VdevKind::Root);
        let name = if is_root { "root-0" } else { word };
        let cannot = |why: &str| {
            Exit::failed(format!("cannot set property {property} for {name} on {pool}: {why}"))
        };
        let Some(guid) = found.map(|vdev| vdev.guid) else {
            let status = opened.status().await?;
            let mut others = status.spares.iter().chain(&status.caches);
            let file = source.path(word);
            if others.any(|other| other.name == word || Path::new(&other.name) == file) {
                return Err(cannot("invalid argument for this pool operation"));
            }
            let text = format!("cannot find '{word}' in '{pool}': device not in pool");
            return Err(Exit::FailedWith(text, EINVAL));
        };
        // The pool must be closed before it is opened for writing.
        drop(opened);
        let value = parse(property, value).map_err(|why| cannot(&why))?;
        Writer::run_on_pool(source, pool, Some(line), io, async |engine, _| {
            if property == ALLOCATING {
                let set = engine.admin().set_allocating(guid, value == Some(Value::U64(1))).await;
                return set.map_err(|error| cannot(&cause_text::<EngineError>(&error)));
            }
            let set = engine.admin().set_vdev_property(guid, property, value).await;
            set.map_err(|error| match error.kind() {
                Kind::Unsupported => cannot("property not supported for this vdev"),
                _ => cannot(&cause_text::<EngineError>(&error)),
            })
        })
        .await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_as_openzfs_does() {
        for (property, text, want) in [
            ("checksum_n", "5", Ok(Some(Value::U64(5)))),
            ("io_t", "none", Ok(Some(Value::U64(u64::MAX)))),
            ("slow_io_n", "1K", Ok(Some(Value::U64(1024)))),
            ("failfast", "off", Ok(Some(Value::U64(0)))),
            ("comment", "shelf 3", Ok(Some(Value::text("shelf 3")))),
            ("comment", "", Ok(None)),
            ("org:x", "y", Ok(Some(Value::text("y")))),
            ("org:x", "", Ok(None)),
            ("io_n", "x", Err("bad numeric value 'x'")),
            ("failfast", "x", Err("'failfast' must be one of 'on | off'")),
            ("size", "1", Err("'size' is readonly")),
            ("nosuch", "1", Err("invalid property 'nosuch'")),
            ("allocating", "off", Ok(Some(Value::U64(0)))),
            ("allocating", "1", Err("'allocating' must be one of 'on | off'")),
            // Entries of the engine's own.
            (
                "com.delphix:vdev_initialize_state",
                "1",
                Err("invalid property 'com.delphix:vdev_initialize_state'"),
            ),
        ] {
            assert_eq!(parse(property, text), want.map_err(str::to_owned), "{property}={text}");
        }
    }
}
