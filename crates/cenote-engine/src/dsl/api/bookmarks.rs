//! Operations on bookmarks.

use cenote_rt::Result;

use crate::Engine;
use crate::dsl::operation::Request;
use crate::dsl::redaction::{BegunRedaction, RedactionPart};
use crate::dsl::{bookmark, redaction};

/// Entries of a redaction list for which a changed block of 16 KiB is charged.
const ENTRIES_OF_BLOCK: usize = 512;

/// Operations on bookmarks; made by [`Engine::bookmarks`].
#[derive(Debug, Clone, Copy)]
pub struct Bookmarks<'e> {
    pub(crate) engine: &'e Engine,
}

impl Bookmarks<'_> {
    /// Creates the bookmarks `pool/fs#name`, each of a snapshot or another bookmark, in one txg.
    pub async fn create(self, wanted: Vec<(String, String)>) -> Result<()> {
        let request = Request::normal(wanted.len() as u64).changing(&[]);
        self.engine
            .datasets()
            .operate_each(request, wanted, |tx, env, _, (name, source)| {
                bookmark::create(tx, env, name, source)
            })
            .await
    }

    /// Begins to redact the snapshot `source` with respect to `snapshots`: creates the bookmark
    /// `pool/fs#name` with an empty list, or empties an unfinished one of the same snapshots.
    ///
    /// # Errors
    /// [`crate::OpError`]: `Exists`, `OtherRedaction`, `IsRedacted`, `NotAnAncestor`, `TooLong`,
    /// and those of names; errors of the pool.
    pub async fn begin_redaction(
        self,
        name: &str,
        source: &str,
        snapshots: &[String],
    ) -> Result<BegunRedaction> {
        let request = Request::normal(4).changing(&[]);
        let (name, source, snapshots) = (name.to_owned(), source.to_owned(), snapshots.to_vec());
        let datasets = self.engine.datasets();
        datasets
            .operate(request, move |tx, env, _| {
                redaction::begin(tx, env, &name, &source, &snapshots)
            })
            .await
    }

    /// Adds entries to the list of a redaction that has begun, in one txg.
    ///
    /// # Errors
    /// [`crate::OpError`]: `NotFound` if the bookmark was destroyed or replaced, `Busy` if another
    /// command builds its list; errors of the pool.
    pub async fn extend_redaction(self, name: &str, list: u64, part: RedactionPart) -> Result<()> {
        let blocks = 2 + (part.entries.len() / ENTRIES_OF_BLOCK) as u64;
        let request = Request::normal(blocks).changing(&[]);
        let name = name.to_owned();
        let datasets = self.engine.datasets();
        datasets.operate(request, move |tx, _, _| redaction::extend(tx, &name, list, &part)).await
    }

    /// Destroys bookmarks in one txg. One that does not exist counts as destroyed.
    pub async fn destroy_all(self, wanted: Vec<String>) -> Result<()> {
        let request = Request::half(wanted.len() as u64).changing(&[]);
        self.engine
            .datasets()
            .operate_each(request, wanted, |tx, env, _, name| bookmark::destroy(tx, env, name))
            .await
    }
}
