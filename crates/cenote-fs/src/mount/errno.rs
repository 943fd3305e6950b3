//! Errors as Linux system call numbers.

use cenote_rt::{Error, Kind};

use crate::error::FsError;

/// Operation not permitted.
pub const EPERM: i32 = 1;
/// No such file or directory.
pub const ENOENT: i32 = 2;
/// Input/output error.
pub const EIO: i32 = 5;
/// No such device or address.
pub const ENXIO: i32 = 6;
/// Argument list too long.
pub const E2BIG: i32 = 7;
/// Permission denied.
pub const EACCES: i32 = 13;
/// Device or resource busy.
pub const EBUSY: i32 = 16;
/// File exists.
pub const EEXIST: i32 = 17;
/// Invalid cross-device link.
pub const EXDEV: i32 = 18;
/// Not a directory.
pub const ENOTDIR: i32 = 20;
/// Is a directory.
pub const EISDIR: i32 = 21;
/// Invalid argument.
pub const EINVAL: i32 = 22;
/// File too large.
pub const EFBIG: i32 = 27;
/// No space left on device.
pub const ENOSPC: i32 = 28;
/// Read-only file system.
pub const EROFS: i32 = 30;
/// Too many links.
pub const EMLINK: i32 = 31;
/// Numerical result out of range: the name of an extended attribute is too long.
pub const ERANGE: i32 = 34;
/// File name too long.
pub const ENAMETOOLONG: i32 = 36;
/// Directory not empty.
pub const ENOTEMPTY: i32 = 39;
/// Too many levels of symbolic links.
pub const ELOOP: i32 = 40;
/// No data available: the extended attribute does not exist.
pub const ENODATA: i32 = 61;
/// Invalid or incomplete multibyte or wide character.
pub const EILSEQ: i32 = 84;
/// Operation not supported.
pub const EOPNOTSUPP: i32 = 95;
/// Stale file handle.
pub const ESTALE: i32 = 116;
/// Disk quota exceeded.
pub const EDQUOT: i32 = 122;
/// Required key not available.
pub const ENOKEY: i32 = 126;
/// Checksum error; OpenZFS's number (`EBADE`).
pub const ECKSUM: i32 = 52;

/// Returns the number of an error.
#[must_use]
pub fn of(error: &Error) -> i32 {
    if let Some(number) = error.cause::<FsError>().and_then(of_cause) {
        return number;
    }
    match error.kind() {
        Kind::Checksum => ECKSUM,
        Kind::Unsupported => EOPNOTSUPP,
        Kind::NotFound => ENOENT,
        Kind::KeyUnavailable | Kind::WrongKey => ENOKEY,
        Kind::Invalid => EINVAL,
        Kind::Busy => EBUSY,
        Kind::Permission => EPERM,
        Kind::ReadOnly => EROFS,
        Kind::Limit => EFBIG,
        Kind::Exists => EEXIST,
        Kind::NoSpace => ENOSPC,
        Kind::Quota => EDQUOT,
        Kind::Overtaken => ESTALE,
        // Kind::Io, Kind::Corrupt, Kind::Invariant.
        _ => EIO,
    }
}

fn of_cause(cause: &FsError) -> Option<i32> {
    Some(match cause {
        FsError::NoEntry => ENOENT,
        FsError::NotADirectory => ENOTDIR,
        FsError::IsADirectory => EISDIR,
        FsError::WrongKind | FsError::IntoItself | FsError::BadAcl | FsError::PosixAcl(_) => EINVAL,
        FsError::NotUtf8 => EILSEQ,
        FsError::TooManyLinks => ELOOP,
        FsError::AccessDenied => EACCES,
        FsError::NotPermitted => EPERM,
        FsError::OverQuota => EDQUOT,
        FsError::Exists => EEXIST,
        FsError::NotEmpty => ENOTEMPTY,
        FsError::NameTooLong => ENAMETOOLONG,
        FsError::CrossProject | FsError::InSnapshot => EXDEV,
        FsError::XattrTooLong => E2BIG,
        FsError::NoXattr => ENODATA,
        FsError::XattrName => ERANGE,
        FsError::XattrsOff | FsError::NoProjects => EOPNOTSUPP,
        FsError::FileTooLarge => EFBIG,
        FsError::TooManyHardLinks => EMLINK,
        FsError::ReadOnly | FsError::LegacyNode | FsError::OldVersion { .. } => EROFS,
        FsError::NoSuchPlace => ENXIO,
        FsError::Stale => ESTALE,
        FsError::LayoutCount | FsError::AttributesTooLong { .. } => ENOSPC,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_go_before_kinds() {
        let of = |kind, cause: FsError| super::of(&Error::new(kind, cause));
        assert_eq!(of(Kind::Permission, FsError::AccessDenied), EACCES);
        assert_eq!(of(Kind::Permission, FsError::NotPermitted), EPERM);
        assert_eq!(of(Kind::Exists, FsError::NotEmpty), ENOTEMPTY);
        assert_eq!(super::of(&Error::new(Kind::NoSpace, "full")), ENOSPC);
        assert_eq!(super::of(&Error::new(Kind::Overtaken, "reused")), ESTALE);
    }
}
