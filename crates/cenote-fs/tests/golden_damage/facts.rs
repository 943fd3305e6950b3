//! Observations of a pool, in a form that two readings can be compared by.
//!
//! A fact is a name and a digest. The facts of the undamaged pool are the reference: every fact of
//! the damaged pool must be among them, and every missing fact must have an error that says where.
//! There are three kinds: named facts, data blocks of objects by offset, and entries of ZAPs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use cenote_rt::{Error, Kind, Result};

/// Object set and object.
pub(crate) type Place = (u64, u64);

/// Observations of a pool.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    named: BTreeMap<String, u64>,
    blocks: BTreeMap<(Place, u64), u64>,
    entries: BTreeSet<(Place, u64)>,
    holes: Vec<(Place, u64, u64)>,
    errors: Vec<(String, Error)>,
}

impl Facts {
    /// Records a fact, or the error in its place.
    pub(crate) fn see<T: Debug>(
        &mut self,
        name: impl Into<String>,
        result: Result<T>,
    ) -> Option<T> {
        let name = name.into();
        match result {
            Ok(value) => {
                self.named.insert(name, digest(format!("{value:?}").as_bytes()));
                Some(value)
            }
            Err(error) => {
                self.fail(name, error);
                None
            }
        }
    }

    /// Returns a value that is not a fact itself, or records the error.
    pub(crate) fn take<T>(&mut self, name: impl Into<String>, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.fail(name, error)).ok()
    }

    pub(crate) fn fail(&mut self, name: impl Into<String>, error: Error) {
        self.errors.push((name.into(), error));
    }

    /// Records bytes of an object.
    pub(crate) fn block(&mut self, place: Place, offset: u64, bytes: &[u8]) {
        self.blocks.insert((place, offset), digest(bytes));
    }

    /// Records a hole in an object.
    pub(crate) fn hole(&mut self, place: Place, offset: u64, len: u64) {
        self.holes.push((place, offset, len));
    }

    /// Records an entry of a ZAP.
    pub(crate) fn entry(&mut self, place: Place, entry: &impl Debug) {
        self.entries.insert((place, digest(format!("{entry:?}").as_bytes())));
    }

    pub(crate) fn errors(&self) -> &[(String, Error)] {
        &self.errors
    }

    /// Returns everything in `self` that differs from the undamaged pool.
    pub(crate) fn wrong(&self, reference: &Self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, found) in &self.named {
            if reference.named.get(name) != Some(found) {
                wrong.push(format!("wrong: {name}"));
            }
        }
        for ((place, offset), found) in &self.blocks {
            if reference.blocks.get(&(*place, *offset)) != Some(found) {
                wrong.push(format!("wrong bytes: {place:?} at {offset:#x}"));
            }
        }
        for entry in self.entries.difference(&reference.entries) {
            wrong.push(format!("wrong entry: {:?}", entry.0));
        }
        for (place, offset, len) in &self.holes {
            let range = (*place, *offset)..(*place, offset.saturating_add(*len));
            if reference.blocks.range(range).next().is_some() {
                wrong.push(format!("wrong hole: {place:?} at {offset:#x}"));
            }
        }
        wrong
    }

    /// Returns every error that does not say what and where. If keys could not be read, data that
    /// needs them is `locked`.
    pub(crate) fn vague(&self, is_locked: bool) -> Vec<String> {
        let vague = |(name, error): &(String, Error)| {
            if is_locked && error.kind() == Kind::KeyUnavailable {
                return None;
            }
            vagueness(error).map(|lack| format!("{lack}: {name}: {error:?}"))
        };
        self.errors.iter().filter_map(vague).collect()
    }

    pub(crate) fn block_count(&self) -> usize {
        self.blocks.len()
    }
}

/// Returns what an error about damage fails to name.
pub(crate) fn vagueness(error: &Error) -> Option<&'static str> {
    let at = error.at();
    let is_of_damage = matches!(error.kind(), Kind::Io | Kind::Checksum | Kind::Corrupt);
    let is_of_device = matches!(error.kind(), Kind::Io | Kind::Checksum);
    if !is_of_damage {
        Some("no error for damage")
    } else if error.to_string().is_empty() {
        Some("error without text")
    } else if at.object.is_none() || at.objset.is_none() {
        Some("error without object")
    } else if error.kind() == Kind::Io && at.device.is_none() && at.vdev.is_some() {
        // No device answered: only the vdev can be named.
        at.offset.is_none().then_some("error without offset")
    } else if is_of_device && at.device.is_none() {
        Some("error without device")
    } else if is_of_device && at.offset.is_none() {
        Some("error without offset")
    } else {
        None
    }
}

/// Returns a digest for which collisions are improbable.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut sum = bytes.len() as u64 ^ ODD;
    for word in words {
        sum = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(ODD).rotate_left(29);
    }
    for byte in rest {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(ODD).rotate_left(29);
    }
    sum ^ (sum >> 32)
}
