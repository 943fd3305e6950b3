//! Arguments of the command line.

use std::str::FromStr;

use cenote_rt::{Error, Kind, Result};

/// The arguments after the command.
pub(crate) struct Args<'a>(&'a [String]);

impl<'a> Args<'a> {
    pub(crate) fn new(words: &'a [String]) -> Self {
        Self(words)
    }

    /// The argument with this index.
    pub(crate) fn word(&self, index: usize) -> Result<&'a str> {
        let word = self.0.get(index).map(String::as_str);
        word.ok_or_else(|| Error::new(Kind::Invalid, format!("argument {} is missing", index + 1)))
    }

    /// The argument with this index, as a number.
    pub(crate) fn number<T: FromStr>(&self, index: usize) -> Result<T> {
        let word = self.word(index)?;
        let number = word.parse();
        number.map_err(|_| Error::new(Kind::Invalid, format!("'{word}' is no number")))
    }
}
