//! Flags and projects of nodes, as `lsattr`, `chattr` and `project` programs ask for them: with the
//! ioctls that Linux has for that. Of its flags those are told that OpenZFS tells: immutable,
//! append only, no dump, and that new nodes inherit the project.
//!
//! Kernels before 5.13 let everybody ask: who may set them is decided here, and what the kernel has
//! let through in other ways counts for nothing ([`asker`]).

use cenote_fs::PFlags;
use cenote_fs::access::Credentials;
use cenote_fs::edit::SetAttributes;
use cenote_rt::{Error, Kind, Result};

use super::vfs::Vfs;

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;

/// Words of `struct fsxattr`: flags, size of an extent, number of extents, project, and room.
const XATTR_LEN: usize = 28;
const PROJECT_AT: usize = 12;

/// A flag of ours, of `FS_IOC_GETFLAGS`, and of `FS_IOC_FSGETXATTR`.
const FLAGS: [(PFlags, u32, u32); 4] = [
    (PFlags::IMMUTABLE, 0x10, 0x8),
    (PFlags::APPENDONLY, 0x20, 0x10),
    (PFlags::NODUMP, 0x40, 0x80),
    (PFlags::PROJINHERIT, 0x2000_0000, 0x200),
];

/// A number of the kernel's interface that says which flags are meant.
type Column = fn(&(PFlags, u32, u32)) -> u32;

const PLAIN: Column = |row| row.1;
const EXTENDED: Column = |row| row.2;

fn told(flags: PFlags, column: Column) -> u32 {
    let set = FLAGS.iter().filter(|row| flags.contains(row.0));
    set.fold(0, |word, row| word | column(row))
}

/// The flags that a word asks for, in place of those that it could ask for.
fn wished(before: PFlags, word: u32, column: Column) -> Result<PFlags> {
    let all = told(PFlags::all(), column);
    if word & !all != 0 {
        return Err(Error::new(Kind::Unsupported, "flags that no node has"));
    }
    let set = FLAGS.iter().filter(|row| word & column(row) != 0);
    let kept = FLAGS.iter().fold(before, |flags, row| flags - row.0);
    Ok(set.fold(kept, |flags, row| flags | row.0))
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map(u32::from_ne_bytes).ok_or_else(|| Error::new(Kind::Invalid, "too few bytes"))
}

/// Who asks: only owners and root may, though of other requests the kernel has looked at that.
pub(super) fn asker(uid: u32, gid: u32) -> Credentials {
    Credentials::user(uid, gid, Vec::new())
}

/// Answers an ioctl; none if it is not one of these.
///
/// # Errors
/// `Kind::Unsupported` for flags that there are not; those of changing attributes.
pub(super) async fn ioctl(
    vfs: &Vfs,
    cred: Credentials,
    node: u64,
    command: u32,
    data: &[u8],
) -> Result<Option<Vec<u8>>> {
    let found = vfs.attributes(node).await?;
    let wish = match command {
        GET_FLAGS => return Ok(Some(told(found.flags, PLAIN).to_ne_bytes().to_vec())),
        GET_XATTR => {
            let mut answer = vec![0; XATTR_LEN];
            let (flags, project) = (told(found.flags, EXTENDED), found.project.unwrap_or(0));
            for (at, word) in [(0, flags), (PROJECT_AT, project)] {
                if let Some(target) = answer.get_mut(at..at + 4) {
                    target.copy_from_slice(&word.to_ne_bytes());
                }
            }
            return Ok(Some(answer));
        }
        SET_FLAGS => {
            let flags = Some(wished(found.flags, word(data, 0)?, PLAIN)?);
            SetAttributes { flags, ..SetAttributes::default() }
        }
        SET_XATTR => {
            let flags = wished(found.flags, word(data, 0)?, EXTENDED)?;
            let project = word(data, PROJECT_AT)?;
            SetAttributes {
                flags: Some(flags).filter(|flags| *flags != found.flags),
                project: Some(project).filter(|project| *project != found.project.unwrap_or(0)),
                ..SetAttributes::default()
            }
        }
        _ => return Ok(None),
    };
    vfs.set_attributes(cred, node, &wish).await?;
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
        assert_eq!(told(flags, PLAIN), 0x2000_0010);
        assert_eq!(told(flags, EXTENDED), 0x208);
        let wish = wished(flags, 0x60, PLAIN).expect("known");
        assert_eq!(wish, PFlags::APPENDONLY | PFlags::NODUMP | PFlags::ARCHIVE);
        assert_eq!(wished(flags, 1, PLAIN).expect_err("unknown").kind(), Kind::Unsupported);
    }

    #[test]
    fn only_owners_set_flags() {
        let ids = Ids { uid: 1000, gid: 100 };
        let flags = PFlags::ACL_TRIVIAL;
        let node = Subject { mode: 0o100_644, ids, flags, aces: &[], posix: None };
        let may = |uid, flags| may_set_flags(&node, &asker(uid, 100), flags).is_ok();
        assert!(may(1000, PFlags::NODUMP) && may(0, PFlags::NODUMP | PFlags::IMMUTABLE));
        assert!(!may(1001, PFlags::NODUMP) && !may(1000, PFlags::IMMUTABLE));
    }
}
