//! Bookmarks: the creation txg and guid of a snapshot, kept after its destruction as a source of
//! incremental sends (spec 04 §15).

use cenote_dmu::{ReadObjects, TxResult};
use cenote_ondisk::dsl::{BookmarkPhys, DatasetFlags, key};
use cenote_ondisk::zap::Value;

use super::dataset::get_dataset;
use crate::mos;

/// A bookmark of a file system or volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bookmark {
    /// Full name, `pool/fs#name`.
    pub name: String,
    /// The stored bookmark.
    pub phys: BookmarkPhys,
}

impl Bookmark {
    /// Returns the part after the `#`.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.name.rsplit_once('#').map_or(&self.name, |(_, short)| short)
    }
}

/// Returns the bookmark ZAP of a head, if it has any.
///
/// # Errors
/// `Kind::Corrupt` if the head's extra keys are damaged.
pub fn bookmark_table(objects: &mut dyn ReadObjects, head: u64) -> TxResult<Option<u64>> {
    Ok(mos::extra_value(objects, head, key::BOOKMARKS)?.and_then(|value| value.first()))
}

/// Returns all bookmarks of a head, by creation txg and then name.
///
/// # Errors
/// `Kind::Corrupt` if a bookmark is damaged.
pub fn bookmarks_of(
    objects: &mut dyn ReadObjects,
    head: u64,
) -> TxResult<Vec<(String, BookmarkPhys)>> {
    let Some(table) = bookmark_table(objects, head)? else { return Ok(Vec::new()) };
    let decode = |(name, value): (_, Value)| Ok((name, decode(table, &value)?));
    let named = mos::named(objects, table)?.into_iter();
    let mut found = named.map(decode).collect::<TxResult<Vec<(String, BookmarkPhys)>>>()?;
    found.sort_by(|(a, left), (b, right)| (left.creation_txg, a).cmp(&(right.creation_txg, b)));
    Ok(found)
}

/// Returns the bookmark of a head that is called `short`, with its name as stored. The file system
/// decides whether case matters.
///
/// # Errors
/// `Kind::Corrupt` if the bookmark is damaged.
pub fn find_bookmark(
    objects: &mut dyn ReadObjects,
    head: u64,
    short: &str,
) -> TxResult<Option<(String, BookmarkPhys)>> {
    let Some(table) = bookmark_table(objects, head)? else { return Ok(None) };
    let is_folded = get_dataset(objects, head)?.flags.contains(DatasetFlags::CI_DATASET);
    let found = mos::find(objects, table, short, is_folded)?;
    found.map(|(name, value)| Ok((name, decode(table, &value)?))).transpose()
}

fn decode(table: u64, value: &Value) -> TxResult<BookmarkPhys> {
    let phys = BookmarkPhys::decode(&value.words());
    phys.map_err(|error| mos::corrupt(table)(error).into())
}
