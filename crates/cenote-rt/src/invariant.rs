//! Checks of invariants, which release builds keep.
//!
//! An invariant is a sentence about our own state, with an id, in the essay of a module
//! (`docs/design/invariants.md`). A broken one is an error of [`Kind::Invariant`]: in a sync it
//! stops the pool before anything depends on the wrong state. Bytes from outside are never checked
//! like this: they have typed errors of their own.

use std::fmt;

use crate::error::{Error, Kind};

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The id in the essay of the module.
    pub id: &'static str,
    /// The state that contradicts it.
    pub found: String,
}

impl Broken {
    /// Returns the broken invariant `id`, with the state found. Only [`ensure!`](crate::ensure)
    /// calls this.
    #[cold]
    #[must_use]
    pub fn new(id: &'static str, found: fmt::Arguments<'_>) -> Self {
        Self { id, found: found.to_string() }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.id, self.found)
    }
}

impl std::error::Error for Broken {}

impl From<Broken> for Error {
    fn from(broken: Broken) -> Self {
        Self::new(Kind::Invariant, broken)
    }
}

/// Returns an error from the calling function unless a condition holds.
///
/// The arguments are the id of the invariant, the condition, and the state found, as in
/// [`format!`]. The error is a [`Broken`], converted to the function's type of errors.
#[macro_export]
macro_rules! ensure {
    ($id:literal, $condition:expr, $($found:tt)+) => {{
        let holds: bool = $condition;
        if !holds {
            return Err($crate::invariant::Broken::new($id, format_args!($($found)+)).into());
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(number: u64) -> crate::Result<u64> {
        ensure!("N1", number.is_multiple_of(2), "{number} is odd");
        Ok(number / 2)
    }

    #[test]
    fn a_broken_invariant_names_its_id_and_the_state() {
        assert_eq!(half(4).unwrap(), 2);
        let error = half(3).unwrap_err();
        assert_eq!(error.kind(), Kind::Invariant);
        assert_eq!(error.to_string(), "invariant N1: 3 is odd");
    }
}
