//! Flags and projects of nodes, for `lsattr`, `chattr` and `project` programs: Linux's ioctls for
//! them. Of Linux's flags those are supported that OpenZFS supports: immutable, append only, no
//! dump, and that new nodes inherit the project. OpenZFS's own ioctls read and set the flags that
//! file servers show to Windows.
//!
//! Kernels before 5.13 pass the ioctl on for every user: permission to set the flags is checked
//! here, and the kernel's own permission checks do not count ([`credentials`]).

use cenote_fs::PFlags;
use cenote_fs::access::Credentials;
use cenote_fs::edit::SetAttributes;
use cenote_rt::{Error, Kind, Result};

use super::FuseError;
use super::vfs::Vfs;

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;

/// OpenZFS's ioctls for the flags of Windows: the words of the file system.
const GET_DOS_FLAGS: u32 = 0x8008_8301;
const SET_DOS_FLAGS: u32 = 0x4008_8302;
const DOS_FLAGS: PFlags = PFlags::IMMUTABLE
    .union(PFlags::APPENDONLY)
    .union(PFlags::NOUNLINK)
    .union(PFlags::ARCHIVE)
    .union(PFlags::NODUMP)
    .union(PFlags::SYSTEM)
    .union(PFlags::HIDDEN)
    .union(PFlags::READONLY)
    .union(PFlags::REPARSE)
    .union(PFlags::OFFLINE)
    .union(PFlags::SPARSE);

/// Words of `struct fsxattr`: flags, extent size, number of extents, project, and padding.
const XATTR_LEN: usize = 28;
const PROJECT_AT: usize = 12;

/// A flag of cenote, of `FS_IOC_GETFLAGS`, and of `FS_IOC_FSGETXATTR`.
const FLAGS: [(PFlags, u32, u32); 4] = [
    (PFlags::IMMUTABLE, 0x10, 0x8),
    (PFlags::APPENDONLY, 0x20, 0x10),
    (PFlags::NODUMP, 0x40, 0x80),
    (PFlags::PROJINHERIT, 0x2000_0000, 0x200),
];

/// Selects the column of the kernel interface whose flags are meant.
type Column = fn(&(PFlags, u32, u32)) -> u32;

const PLAIN: Column = |row| row.1;
const EXTENDED: Column = |row| row.2;

fn to_word(flags: PFlags, column: Column) -> u32 {
    let set = FLAGS.iter().filter(|row| flags.contains(row.0));
    set.fold(0, |word, row| word | column(row))
}

/// Returns the flags after a request: those that the word can express are replaced.
fn from_word(before: PFlags, word: u32, column: Column) -> Result<PFlags> {
    let all = to_word(PFlags::all(), column);
    if word & !all != 0 {
        return Err(Error::new(Kind::Unsupported, FuseError::Flags(word & !all)));
    }
    let set = FLAGS.iter().filter(|row| word & column(row) != 0);
    let kept = FLAGS.iter().fold(before, |flags, row| flags - row.0);
    Ok(set.fold(kept, |flags, row| flags | row.0))
}

/// Returns the flags after a request to set those of Windows.
fn from_dos(before: PFlags, data: &[u8]) -> Result<PFlags> {
    let word = data.first_chunk().map(|word| u64::from_ne_bytes(*word));
    let word = word.ok_or_else(|| Error::new(Kind::Invalid, FuseError::Short))?;
    let unknown = word & !DOS_FLAGS.bits();
    if unknown != 0 {
        return Err(Error::new(Kind::Unsupported, FuseError::DosFlags(unknown)));
    }
    Ok((before - DOS_FLAGS) | PFlags::from_bits_retain(word))
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map(u32::from_ne_bytes).ok_or_else(|| Error::new(Kind::Invalid, FuseError::Short))
}

/// Returns the credentials of the user: only owners and root may set flags, although the kernel has
/// checked permissions of other requests.
pub(super) fn credentials(uid: u32, gid: u32) -> Credentials {
    Credentials::user(uid, gid, Vec::new())
}

/// Answers an ioctl; `None` if it is not one of these.
///
/// # Errors
/// `Kind::Unsupported` for unknown flags; errors of changing attributes.
pub(super) async fn ioctl(
    vfs: &Vfs,
    cred: Credentials,
    node: u64,
    command: u32,
    data: &[u8],
) -> Result<Option<Vec<u8>>> {
    let found = vfs.attributes(node).await?;
    let wanted = match command {
        GET_FLAGS => return Ok(Some(to_word(found.flags, PLAIN).to_ne_bytes().to_vec())),
        GET_DOS_FLAGS => {
            let shown = found.flags & DOS_FLAGS;
            return Ok(Some(shown.bits().to_ne_bytes().to_vec()));
        }
        SET_DOS_FLAGS => {
            let flags = Some(from_dos(found.flags, data)?);
            SetAttributes { flags, ..SetAttributes::default() }
        }
        GET_XATTR => {
            let mut answer = vec![0; XATTR_LEN];
            let (flags, project) = (to_word(found.flags, EXTENDED), found.project.unwrap_or(0));
            for (at, word) in [(0, flags), (PROJECT_AT, project)] {
                if let Some(target) = answer.get_mut(at..at + 4) {
                    target.copy_from_slice(&word.to_ne_bytes());
                }
            }
            return Ok(Some(answer));
        }
        SET_FLAGS => {
            let flags = Some(from_word(found.flags, word(data, 0)?, PLAIN)?);
            SetAttributes { flags, ..SetAttributes::default() }
        }
        SET_XATTR => {
            let flags = from_word(found.flags, word(data, 0)?, EXTENDED)?;
            let project = word(data, PROJECT_AT)?;
            SetAttributes {
                flags: Some(flags).filter(|flags| *flags != found.flags),
                project: Some(project).filter(|project| *project != found.project.unwrap_or(0)),
                ..SetAttributes::default()
            }
        }
        _ => return Ok(None),
    };
    vfs.set_attributes(cred, node, &wanted).await?;
    vfs.has_changed(node);
    Ok(Some(Vec::new()))
}

#[cfg(test)]
mod tests {
    use cenote_fs::access::rules::{Subject, may_set_flags};
    use cenote_fs::acl::Ids;

    use super::*;

    #[test]
    fn flags_go_to_words_and_back() {
        let flags = PFlags::IMMUTABLE | PFlags::PROJINHERIT | PFlags::ARCHIVE;
        assert_eq!(to_word(flags, PLAIN), 0x2000_0010);
        assert_eq!(to_word(flags, EXTENDED), 0x208);
        let wanted = from_word(flags, 0x60, PLAIN).expect("known");
        assert_eq!(wanted, PFlags::APPENDONLY | PFlags::NODUMP | PFlags::ARCHIVE);
        assert_eq!(from_word(flags, 1, PLAIN).expect_err("unknown").kind(), Kind::Unsupported);
    }

    #[test]
    fn dos_flags_replace_each_other() {
        let before = PFlags::ARCHIVE | PFlags::PROJINHERIT;
        let wanted = PFlags::HIDDEN | PFlags::READONLY;
        let found = from_dos(before, &wanted.bits().to_ne_bytes()).expect("known");
        assert_eq!(found, wanted | PFlags::PROJINHERIT);
        for unknown in [PFlags::PROJINHERIT.bits(), 1] {
            let refused = from_dos(before, &unknown.to_ne_bytes()).expect_err("unknown");
            assert_eq!(refused.kind(), Kind::Unsupported);
        }
        assert_eq!(from_dos(before, &[0; 7]).expect_err("short").kind(), Kind::Invalid);
    }

    #[test]
    fn only_owners_set_flags() {
        let ids = Ids { uid: 1000, gid: 100 };
        let flags = PFlags::ACL_TRIVIAL;
        let node = Subject { mode: 0o100_644, ids, flags, aces: &[], posix: None };
        let may = |uid, flags| may_set_flags(&node, &credentials(uid, 100), flags).is_ok();
        assert!(may(1000, PFlags::NODUMP) && may(0, PFlags::NODUMP | PFlags::IMMUTABLE));
        assert!(!may(1001, PFlags::NODUMP) && !may(1000, PFlags::IMMUTABLE));
    }
}
