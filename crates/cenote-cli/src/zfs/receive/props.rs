//! Properties of received datasets: those in the stream, and `-o` and `-x` of the command line.
//!
//! ```text
//!   in the stream            stored as the received value; earlier ones that it lacks are dropped
//!   -o name=value            local at the top; below it inherited, if it can be
//!   -x name                  the received value is stored and hidden by an explicit inheritance;
//!                            a local value stays
//! ```
//!
//! Values of a stream come from another system: those that are unknown here, or are of another
//! type, are reported and left out, as OpenZFS does.

use cenote_engine::PropertyChange;
use cenote_ondisk::nvlist::{NvList, NvValue};
use cenote_ondisk::zap::Value;
use cenote_pool::props::text::{self as setting, Moment, Setting, is_stored};
use cenote_pool::props::{Access, DATASET_PROPERTIES, PropRow, Source, property_named};

use crate::getopt::Parsed;
use crate::io::Exit;
use crate::zfs::encryption::is_of_key;

/// The pseudo-property of `-o origin=SNAPSHOT`.
const ORIGIN: &str = "origin";

/// `-o` and `-x` of the command line.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    /// Values of `-o`.
    set: Vec<(String, String)>,
    /// Names of `-x`.
    excluded: Vec<String>,
    /// The clone's origin (`-o origin=SNAPSHOT`).
    pub(super) origin: Option<String>,
}

impl Overrides {
    /// Parses the options.
    ///
    /// # Errors
    /// Wrong use, in OpenZFS's words.
    pub(super) fn parse(parsed: &Parsed) -> Result<Self, Exit> {
        let mut overrides = Self::default();
        let mut seen: Vec<String> = Vec::new();
        for (letter, text) in &parsed.options {
            let text = text.as_deref().unwrap_or_default();
            let (name, value) = match letter {
                'o' => text
                    .split_once('=')
                    .map(|(name, value)| (name, Some(value)))
                    .ok_or_else(|| Exit::usage("missing '=' for property=value argument"))?,
                'x' if text.contains('=') => {
                    return Err(Exit::usage("invalid property name '=' in property name argument"));
                }
                'x' => (text, None),
                _ => continue,
            };
            if seen.iter().any(|other| other == name) {
                return Err(Exit::usage(format!("property '{name}' specified multiple times")));
            }
            seen.push(name.to_owned());
            // Some properties have a shorter name, too.
            let name = property_named(DATASET_PROPERTIES, name).map_or(name, |found| found.name);
            match value {
                Some(value) if name == ORIGIN => overrides.origin = Some(value.to_owned()),
                Some(value) => overrides.set.push((name.to_owned(), value.to_owned())),
                None => overrides.excluded.push(name.to_owned()),
            }
        }
        Ok(overrides)
    }

    /// Whether `-x` names the property.
    pub(super) fn is_excluded(&self, name: &str) -> bool {
        self.excluded.iter().any(|other| other == name)
    }

    /// Returns the values of `-o` that say how a new dataset is encrypted.
    pub(super) fn of_key(&self) -> Result<Vec<Setting>, String> {
        let of_key = self.set.iter().filter(|(name, _)| is_of_key(name));
        of_key.map(|(name, value)| setting::parse(name, value, 'f', Moment::Creation)).collect()
    }

    /// Refuses values for what a raw stream has itself, and for what an existing dataset has.
    pub(super) fn check_encryption(&self, is_raw: bool, is_new: bool) -> Result<(), String> {
        let set = self.set.iter().map(|(name, _)| name).find(|name| is_of_key(name));
        let excluded = self.excluded.iter().find(|name| is_of_key(name));
        match (set, set.or(excluded)) {
            (_, Some(name)) if is_raw => Err(format!(
                "encryption property '{name}' cannot be set or excluded for raw streams."
            )),
            (Some(name), _) if !is_new => {
                Err(format!("encryption property '{name}' cannot be set for incremental streams."))
            }
            _ => Ok(()),
        }
    }

    /// Refuses names that no property has, and properties that cannot be changed later.
    pub(super) fn check(&self) -> Result<(), Exit> {
        let names = self.set.iter().map(|(name, _)| name).chain(&self.excluded);
        for name in names.filter(|name| !name.contains(':')) {
            let known = property_named(DATASET_PROPERTIES, name);
            let is_refused = match name.as_str() {
                // The contents have these.
                "version" | "volsize" => true,
                // Checked with the values.
                name if is_of_key(name) => false,
                _ => known.is_none_or(|property| property.access != Access::ReadWrite),
            };
            if is_refused {
                let text = format!("cannot receive: cannot receive: invalid property '{name}'");
                return Err(Exit::failed(text));
            }
        }
        Ok(())
    }
}

/// The dataset whose properties are received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receiving<'a> {
    /// Letter of its type: `f` or `v`.
    pub(super) kind: char,
    /// Whether it is the one that the command names.
    pub(super) is_top: bool,
    /// Whether other datasets come with it.
    pub(super) is_recursive: bool,
    /// Its properties before; none if it is new.
    pub(super) before: &'a [PropRow],
}

/// What a receive does to the properties of a dataset.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Changes, in order.
    pub(super) changes: Vec<(String, PropertyChange)>,
    /// Local values of `-o`.
    pub(super) local: Vec<Setting>,
    /// Messages about values that are left out.
    pub(super) notes: Vec<String>,
}

/// Plans the changes of a dataset; `name` is for messages.
pub(super) fn plan(
    name: &str,
    at: Receiving<'_>,
    overrides: &Overrides,
    stream: Option<&NvList>,
) -> Result<Plan, Exit> {
    let mut plan = Plan::default();
    let mut received: Vec<String> = Vec::new();
    for (property, value) in stream.into_iter().flat_map(NvList::iter) {
        let property = property.to_string_lossy();
        match received_value(&property, value) {
            Ok(None) => {}
            Ok(Some(value)) => {
                let is_own = property_named(DATASET_PROPERTIES, &property)
                    .is_some_and(|found| !found.is_inheritable);
                if is_own && overrides.excluded.iter().any(|name| *name == property) {
                    // It cannot be hidden by an inheritance.
                    continue;
                }
                received.push(property.to_string());
                plan.changes.push((property.to_string(), PropertyChange::Receive(value)));
            }
            Err(why) => {
                plan.notes.push(format!("cannot receive {property} property on {name}: {why}"));
            }
        }
    }
    if stream.is_some() {
        let earlier = at.before.iter().filter(|row| row.received.is_some());
        let dropped = earlier.filter(|row| !received.contains(&row.name));
        let drops = dropped.map(|row| (row.name.clone(), PropertyChange::DropReceived));
        plan.changes.splice(0..0, drops);
    }
    let is_received = |name: &str| received.iter().any(|other| other == name);
    for excluded in &overrides.excluded {
        let own = |row: &&PropRow| row.name == *excluded;
        let is_local = at.before.iter().find(own).is_some_and(|row| row.source == Source::Local);
        if is_received(excluded) && !is_local {
            plan.changes.push((excluded.clone(), PropertyChange::Inherit));
        }
    }
    for (property, text) in &overrides.set {
        let is_inheritable = property.contains(':')
            || property_named(DATASET_PROPERTIES, property)
                .is_some_and(|found| found.is_inheritable);
        if !at.is_top {
            // Below the top it is inherited from there, if it can be.
            if is_inheritable && is_received(property) {
                plan.changes.push((property.clone(), PropertyChange::Inherit));
            }
            continue;
        }
        match setting::parse(property, text, at.kind, Moment::Creation) {
            Ok(setting) if is_stored(&setting.0) => plan.local.push(setting),
            Ok(_) => {}
            // A property of file systems, for example, does not apply to a volume among them.
            Err(why) if at.is_recursive && why.contains("does not apply") => {}
            Err(why) => return Err(Exit::failed(format!("cannot receive: {why}"))),
        }
    }
    Ok(plan)
}

/// Returns a value of a stream as it is stored; `None` if the contents of the dataset have it.
fn received_value(name: &str, value: &NvValue) -> Result<Option<Value>, &'static str> {
    if !is_stored(name) {
        return Ok(None);
    }
    let value = match value {
        NvValue::Uint64(number) => Value::U64(*number),
        NvValue::String(text) => match text.to_str() {
            Some(text) => Value::text(text),
            None => return Err("its value is not text"),
        },
        _ => return Err("its value is neither a number nor text"),
    };
    if name.contains(':') {
        return match setting::user(name, value.as_str().unwrap_or_default()) {
            Ok(_) if value.as_str().is_some() => Ok(Some(value)),
            _ => Err("invalid property value"),
        };
    }
    match property_named(DATASET_PROPERTIES, name) {
        Some(property) if property.access != Access::ReadOnly => Ok(Some(value)),
        _ => Err("invalid property name"),
    }
}

/// Whether a property is set only after the contents have come, because it limits their size.
pub(super) fn is_late(name: &str) -> bool {
    name == "refquota"
}

/// Returns the changes of a snapshot's properties.
pub(super) fn of_snapshot(stream: &NvList) -> Vec<(String, PropertyChange)> {
    let received = |(name, value): (&cenote_ondisk::nvlist::NvString, &NvValue)| {
        let name = name.to_string_lossy();
        // Snapshots have only user properties.
        let value = received_value(&name, value).ok().flatten().filter(|_| name.contains(':'))?;
        Some((name.into_owned(), PropertyChange::Receive(value)))
    };
    stream.iter().filter_map(received).collect()
}
