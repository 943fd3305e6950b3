//! Contents of objects: attributes of files, access lists, datasets, history, scans, error logs.

use std::hint::black_box;

use cenote_ondisk::acl::{Acl, ZNODE_ACL_LEN, ZnodeAcl};
use cenote_ondisk::dsl::{BookmarkPhys, DatasetPhys, DirPhys};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::errlog::{self, HeadEntry};
use cenote_ondisk::history::{self, HistoryPhys};
use cenote_ondisk::nvlist::NvList;
use cenote_ondisk::posix_acl::PosixAcl;
use cenote_ondisk::rebuild::RebuildPhys;
use cenote_ondisk::sa::{Registry, SaBuffer, SaHeader};
use cenote_ondisk::scan::{ErrorScrubPhys, ScanPhys};
use cenote_ondisk::znode::FileAttributes;

use crate::words;

/// Access lists of either version, in a znode or outside.
pub fn acl(bytes: &[u8]) {
    for order in [Endian::Little, Endian::Big] {
        for count in [0, 1, 6, u64::MAX] {
            for acl in [Acl::decode(bytes, count, order), Acl::decode_v0(bytes, count, order)] {
                assert!(acl.entries.len() <= bytes.len(), "{} entries", acl.entries.len());
                for ace in &acl.entries {
                    black_box((ace.who(), ace.encode()));
                }
            }
        }
        if let Some((znode, rest)) = bytes.split_first_chunk::<ZNODE_ACL_LEN>() {
            black_box(ZnodeAcl::decode(znode, order).decode_external(rest, order));
        }
    }
    if let Ok(Some(acl)) = PosixAcl::decode(bytes) {
        let (of_new, mode) = acl.for_new(0o100_666);
        assert_eq!(of_new.mode(0o100_000), mode);
        black_box((acl.is_mode(), acl.permits(5, false, 7, |_| true)));
        assert_eq!(PosixAcl::decode(&acl.encode()), Ok(Some(acl)));
    }
}

/// System attributes: a buffer with the layouts that OpenZFS makes, as bonus and as spill.
pub fn sa(bytes: &[u8]) {
    let registry = registry();
    black_box(SaHeader::decode(bytes).is_ok());
    if let Ok(buffer) = SaBuffer::decode(bytes, &registry) {
        for number in 0..32 {
            black_box(buffer.get(number).and_then(|attr| attr.word(0)));
        }
    }
    black_box(FileAttributes::from_sa(bytes, None, &registry).is_ok());
    let (bonus, spill) = bytes.split_at(bytes.len() / 2);
    black_box(FileAttributes::from_sa(bonus, Some(spill), &registry).is_ok());
}

/// Attribute numbers as OpenZFS gives them, and layouts of all kinds for them.
fn registry() -> Registry {
    let mut registry = Registry::new();
    let common: Vec<u64> = vec![5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19];
    let mut with_link = common.clone();
    with_link.push(17);
    let mut with_xattr = common.clone();
    with_xattr.push(18);
    registry.add_layout(b"2", &common);
    registry.add_layout(b"3", &with_link);
    registry.add_layout(b"4", &with_xattr);
    registry.add_layout(b"5", &[19, 18, 17, 19]);
    registry
}

/// The fixed form of file attributes, before there were system attributes.
pub fn znode(bytes: &[u8]) {
    if let Ok(attributes) = FileAttributes::from_znode(bytes) {
        black_box((attributes.pflags(), attributes.file_type()));
    }
}

/// Bonus buffers of the DSL: dirs, datasets, bookmarks.
pub fn dsl(bytes: &[u8]) {
    black_box(DirPhys::decode(bytes).is_ok());
    black_box(DatasetPhys::decode(bytes).is_ok());
    black_box(BookmarkPhys::decode(&words(bytes)).is_ok());
}

/// The pool's history: header, and records of packed lists.
pub fn history(bytes: &[u8]) {
    if let Ok(phys) = HistoryPhys::decode(bytes) {
        black_box((phys.live(), phys.physical(u64::MAX)));
        assert_eq!(HistoryPhys::decode(&phys.encode()).as_ref(), Ok(&phys));
    }
    let records = history::records(bytes);
    let mut count = 0;
    for record in records {
        count += 1;
        black_box(record.is_ok_and(|record| NvList::decode(record).is_ok()));
    }
    assert!(count <= bytes.len() / 8 + 1, "{count} records");
}

/// Keys of the error log.
pub fn errlog(bytes: &[u8]) {
    if let Some(place) = errlog::parse_plain(bytes) {
        assert_eq!(errlog::parse_plain(errlog::format_plain(&place).as_bytes()), Some(place));
    }
    if let Some(entry) = HeadEntry::parse(bytes) {
        assert_eq!(HeadEntry::parse(entry.format().as_bytes()), Some(entry));
    }
}

/// State of scrub, resilver and rebuild, and of the error scrub.
pub fn scan(bytes: &[u8]) {
    let words = words(bytes);
    let rebuild = RebuildPhys::decode(&words);
    assert_eq!(RebuildPhys::decode(&rebuild.encode()), rebuild);
    if let Ok(scan) = ScanPhys::decode(&words) {
        assert_eq!(ScanPhys::decode(&scan.encode()).as_ref(), Ok(&scan));
    }
    if let Ok(scrub) = ErrorScrubPhys::decode(&words) {
        assert_eq!(ErrorScrubPhys::decode(&scrub.encode()).as_ref(), Ok(&scrub));
    }
}
