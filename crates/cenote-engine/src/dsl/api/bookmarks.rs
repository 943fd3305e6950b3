//! Operations on bookmarks.

use cenote_rt::Result;

use crate::Engine;
use crate::dsl::bookmark;
use crate::dsl::operation::Request;

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

    /// Destroys bookmarks in one txg. One that does not exist counts as destroyed.
    pub async fn destroy_all(self, wanted: Vec<String>) -> Result<()> {
        let request = Request::half(wanted.len() as u64).changing(&[]);
        self.engine
            .datasets()
            .operate_each(request, wanted, |tx, env, _, name| bookmark::destroy(tx, env, name))
            .await
    }
}
