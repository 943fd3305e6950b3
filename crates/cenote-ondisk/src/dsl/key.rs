//! Names of the keys in zapified dirs and datasets, and in the dataset-layer part of the pool
//! directory (spec 04 §1, §4.1, §4.2). Per-dataset feature keys are the features' guids.

/// Dir: descendants, only while limits are active.
pub const FILESYSTEM_COUNT: &str = "com.joyent:filesystem_count";
/// Dir: snapshots of the subtree, only while limits are active.
pub const SNAPSHOT_COUNT: &str = "com.joyent:snapshot_count";
/// Dir: DSL crypto key ZAP; presence = the dir is encrypted.
pub const CRYPTO_KEY_OBJ: &str = "com.datto:crypto_key_obj";
/// Dir: livelist of a clone.
pub const LIVELIST: &str = "com.delphix:livelist";
/// Dir: seconds and nanoseconds of the last change among its snapshots.
pub const SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";

/// Dataset: ZAP of bookmarks.
pub const BOOKMARKS: &str = "com.delphix:bookmarks";
/// Dataset: second deadlist, of remapped blocks.
pub const REMAP_DEADLIST: &str = "com.delphix:remap_deadlist";
/// Snapshot: id of its set of IVs.
pub const IVSET_GUID: &str = "com.datto:ivset_guid";
/// Snapshot: it was received raw.
pub const RAW_RECEIVED: &str = "org.openzfs:raw_received";
/// Dataset: guids of the redaction snapshots (a feature key with a value).
pub const REDACTED_DATASETS: &str = "com.delphix:redacted_datasets";
/// Dataset: encryption feature key.
pub const ENCRYPTION_FEATURE: &str = "com.datto:encryption";

/// Resumable receive: source snapshot.
pub const RESUME_FROMGUID: &str = "com.delphix:resume_fromguid";
/// Resumable receive: target snapshot; presence = resumable.
pub const RESUME_TOGUID: &str = "com.delphix:resume_toguid";
/// Resumable receive: target name.
pub const RESUME_TONAME: &str = "com.delphix:resume_toname";
/// Resumable receive: next object.
pub const RESUME_OBJECT: &str = "com.delphix:resume_object";
/// Resumable receive: next offset.
pub const RESUME_OFFSET: &str = "com.delphix:resume_offset";
/// Resumable receive: bytes received.
pub const RESUME_BYTES: &str = "com.delphix:resume_bytes";
/// Resumable receive: stream has large blocks.
pub const RESUME_LARGEBLOCKOK: &str = "com.delphix:resume_largeblockok";
/// Resumable receive: stream has embedded blocks.
pub const RESUME_EMBEDOK: &str = "com.delphix:resume_embedok";
/// Resumable receive: stream has compressed blocks.
pub const RESUME_COMPRESSOK: &str = "com.delphix:resume_compressok";
/// Resumable receive: raw stream.
pub const RESUME_RAWOK: &str = "com.datto:resume_rawok";
/// Resumable receive: guids of the redaction snapshots.
pub const RESUME_REDACT_SNAPS: &str = "com.delphix:resume_redact_book_snaps";

/// Pool directory: root DSL dir.
pub const ROOT_DATASET: &str = "root_dataset";
/// Properties of the pool.
pub const POOL_PROPS: &str = "pool_props";
/// Pool directory: blocks to be freed in the background.
pub const FREE_BPOBJ: &str = "free_bpobj";
/// Pool directory: roots of destroyed object sets.
pub const BPTREE_OBJ: &str = "bptree_obj";
/// Pool directory: the shared empty bpobj.
pub const EMPTY_BPOBJ: &str = "empty_bpobj";
/// Pool directory: deferred frees.
pub const SYNC_BPOBJ: &str = "sync_bplist";
/// Pool directory: temporary holds.
pub const TMP_USERREFS: &str = "tmp_userrefs";
/// Pool directory: livelists being destroyed.
pub const DELETED_CLONES: &str = "com.delphix:deleted_clones";
/// Pool directory: remapped segments that became free.
pub const OBSOLETE_BPOBJ: &str = "com.delphix:obsolete_bpobj";
/// Pool directory: u64 1 if space is deflated.
pub const DEFLATE: &str = "deflate";

/// Names of the special dirs below the root.
pub const MOS_DIR: &str = "$MOS";
/// Holds the space of queued frees.
pub const FREE_DIR: &str = "$FREE";
/// Holds the space of leaked blocks.
pub const LEAK_DIR: &str = "$LEAK";
/// Its snapshot of the same name is the origin of ordinary file systems.
pub const ORIGIN_DIR: &str = "$ORIGIN";

/// The key for a number in a ZAP: lower-case hexadecimal, no prefix, no padding (spec 03 §6.3).
#[must_use]
pub fn of_number(number: u64) -> String {
    format!("{number:x}")
}

/// The number of a hexadecimal key, in the spelling that [`of_number`] writes; `None` otherwise.
#[must_use]
pub fn to_number(key: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(key).ok()?;
    let number = u64::from_str_radix(text, 16).ok()?;
    (of_number(number) == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_keys_have_one_spelling() {
        for (key, want) in [
            ("22", Some(34)),
            ("0", Some(0)),
            ("ffffffffffffffff", Some(u64::MAX)),
            ("022", None),
            ("+22", None),
            ("FF", None),
            ("", None),
            ("10000000000000000", None),
        ] {
            assert_eq!(to_number(key.as_bytes()), want, "{key}");
        }
    }
}
