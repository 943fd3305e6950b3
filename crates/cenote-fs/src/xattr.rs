//! Extended attributes: the list inside the node, and the directory beside it (spec 03 §11).
//!
//!     list       ZPL_DXATTR, a packed nvlist of byte arrays
//!     directory  ZPL_XATTR, a hidden directory with one regular file per attribute
//!
//! A node may have both; for a name in both the list wins. Names are returned as Linux shows them,
//! with their namespace; attributes that FreeBSD and illumos store without one get `user.`.
//! FreeBSD's own (`freebsd:`) are hidden.

use cenote_ondisk::acl::{POSIX_ACCESS, POSIX_DEFAULT};
use cenote_ondisk::nvlist::{Encoding, NvList, NvPair, NvString, NvValue, UNIQUE_NAME};
use cenote_rt::{Buf, Error, Kind, Result};

use crate::error::FsError;
use crate::node::Node;

/// Longest value that is read. Linux allows 64 KiB; the directory form has no limit of its own.
pub(crate) const VALUE_LEN_MAX: u64 = 16 << 20;
/// The namespace of names without one.
pub(crate) const USER: &[u8] = b"user.";
/// Prefix of FreeBSD's own namespaces.
const FREEBSD: &[u8] = b"freebsd:";

/// Stored names with their values.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The place where an extended attribute is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrPlace {
    /// In the node's list.
    List,
    /// In a file of the node's hidden directory.
    Directory,
}

/// An extended attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XattrName {
    /// Its name with its namespace.
    pub name: Vec<u8>,
    /// Where it is kept.
    pub place: XattrPlace,
}

impl Node {
    /// Whether the node may have extended attributes.
    pub fn has_xattrs(&self) -> bool {
        self.attributes().dxattr.is_some() || self.attributes().xattr_obj != 0
    }

    /// Returns the names of all extended attributes: first those of the list in its order, then
    /// those of the directory in ZAP order.
    pub async fn xattr_names(&self) -> Result<Vec<XattrName>> {
        let mut names: Vec<XattrName> = Vec::new();
        for (name, _) in self.xattr_list()? {
            names.extend(visible(&name, XattrPlace::List));
        }
        if let Some(directory) = self.xattr_directory().await? {
            let mut entries = directory.entries().await?;
            while let Some(entry) = entries.next().await? {
                let found = visible(&entry.name, XattrPlace::Directory);
                names.extend(found.filter(|new| names.iter().all(|old| old.name != new.name)));
            }
        }
        Ok(names)
    }

    /// Returns the value of an extended attribute.
    pub async fn xattr(&self, name: &[u8]) -> Result<Option<Buf>> {
        let bare = name.strip_prefix(USER);
        for stored in std::iter::once(name).chain(bare) {
            if let Some((_, value)) = self.xattr_list()?.into_iter().find(|(n, _)| n == stored) {
                return Ok(Some(Buf::from(value)));
            }
        }
        let Some(directory) = self.xattr_directory().await? else { return Ok(None) };
        for stored in std::iter::once(name).chain(bare) {
            match directory.lookup(stored).await {
                Ok(file) if file.size() > VALUE_LEN_MAX => {
                    let (len, max) = (file.size(), VALUE_LEN_MAX);
                    let cause = FsError::XattrLength { len, max };
                    return Err(self.dnode.locate(Error::new(Kind::Limit, cause)));
                }
                Ok(file) => return file.read_at(0, file.size() as usize).await.map(Some),
                Err(error) if error.cause() == Some(&FsError::NoEntry) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Returns the list in the node, with stored names.
    fn xattr_list(&self) -> Result<Pairs> {
        let packed = self.attributes().dxattr.as_deref().unwrap_or(&[]);
        unpack(packed).map_err(|cause| self.corrupt(cause))
    }

    async fn xattr_directory(&self) -> Result<Option<Self>> {
        match self.attributes().xattr_obj {
            0 => Ok(None),
            object => self.fs.node(object).await.map(Some),
        }
    }
}

/// Returns names and values of a packed list.
pub(crate) fn unpack(packed: &[u8]) -> std::result::Result<Pairs, FsError> {
    if packed.is_empty() {
        return Ok(Vec::new());
    }
    let pairs = NvList::decode(packed)?.pairs.into_iter().map(|pair| match pair.value {
        NvValue::ByteArray(value) | NvValue::Uint8Array(value) => {
            Ok((pair.name.as_bytes().to_vec(), value))
        }
        other => {
            let (name, type_code) = (pair.name.to_string(), other.type_code());
            Err(FsError::XattrType { name, type_code })
        }
    });
    pairs.collect()
}

/// Packs a list of names and values.
pub(crate) fn pack(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    // Names with a NUL were refused earlier.
    let pairs = pairs.iter().filter_map(|(name, value)| {
        let name = NvString::from_bytes(name)?;
        Some(NvPair { name, value: NvValue::ByteArray(value.clone()) })
    });
    NvList { flags: UNIQUE_NAME, pairs: pairs.collect() }.encode(Encoding::Xdr)
}

/// Returns a stored name as Linux shows it, or `None` if it is hidden.
pub(crate) fn visible(stored: &[u8], place: XattrPlace) -> Option<XattrName> {
    let is_named = [USER, b"trusted.", b"security."].iter().any(|space| stored.starts_with(space))
        || stored == POSIX_ACCESS.as_bytes()
        || stored == POSIX_DEFAULT.as_bytes();
    let name = match is_named {
        true => stored.to_vec(),
        false if stored.starts_with(FREEBSD) => return None,
        false => [USER, stored].concat(),
    };
    Some(XattrName { name, place })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_linux_shows_them() {
        for (stored, want) in [
            (&b"user.a"[..], Some(&b"user.a"[..])),
            (b"security.selinux", Some(b"security.selinux")),
            (b"system.posix_acl_access", Some(b"system.posix_acl_access")),
            (b"plain", Some(b"user.plain")),
            (b"freebsd:system:x", None),
        ] {
            let name = visible(stored, XattrPlace::List).map(|found| found.name);
            assert_eq!(name.as_deref(), want, "{stored:?}");
        }
    }
}
