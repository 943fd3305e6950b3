//! NFSv4 ACLs as stored (spec 03 §12).
//!
//! ```text
//!   version 1   type u16 | flags u16 | mask u32 | [who u64] | [object GUIDs, 32 bytes]
//!   version 0   who u32 | mask u32 | flags u16 | type u16
//! ```
//!
//! Version 1 entries are packed without gaps: 8 bytes for allow and deny of owner@, group@ and
//! everyone@, 16 with an id, 48 for object types. Fields are in the buffer's byte order. POSIX ACLs
//! are ordinary xattrs ([`POSIX_ACCESS`], [`POSIX_DEFAULT`]) and stay raw.

use crate::endian::Endian;

/// Xattr of a POSIX ACL.
pub const POSIX_ACCESS: &str = "system.posix_acl_access";
/// Xattr of a directory's default POSIX ACL.
pub const POSIX_DEFAULT: &str = "system.posix_acl_default";

/// Entry type: allow.
pub const ACE_ALLOW: u16 = 0;
/// Entry type: deny.
pub const ACE_DENY: u16 = 1;
/// Flags that identify the subject of an entry.
pub const ACE_WHO_FLAGS: u16 = 0x7040;

/// Subject flags of `owner@`.
pub const ACE_OWNER: u16 = 0x1000;
/// Subject flags of `group@`.
pub const ACE_GROUP: u16 = 0x2040;
/// Subject flags of `everyone@`.
pub const ACE_EVERYONE: u16 = 0x4000;

/// The subject of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// `owner@`.
    Owner,
    /// `group@`.
    Group,
    /// `everyone@`.
    Everyone,
    /// A group by FUID.
    NamedGroup(u64),
    /// A user by FUID.
    NamedUser(u64),
}

/// One access control entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ace {
    /// 0 allow, 1 deny, 2 audit, 3 alarm, 5-8 the same for objects.
    pub kind: u16,
    /// Inheritance flags and subject.
    pub flags: u16,
    /// Permissions.
    pub mask: u32,
    /// FUID; 0 if [`Ace::who`] has no id.
    pub id: u64,
    /// GUIDs of object entries.
    pub object: Option<[u8; 32]>,
}

impl Ace {
    /// The subject of the entry.
    #[must_use]
    pub const fn who(&self) -> Who {
        match self.flags & ACE_WHO_FLAGS {
            ACE_OWNER => Who::Owner,
            ACE_GROUP => Who::Group,
            ACE_EVERYONE => Who::Everyone,
            flags if flags & 0x40 != 0 => Who::NamedGroup(self.id),
            _ => Who::NamedUser(self.id),
        }
    }

    /// Bytes of a version 1 entry of this kind.
    #[must_use]
    pub const fn size(kind: u16, flags: u16) -> usize {
        match kind {
            5..=8 => 48,
            ACE_ALLOW | ACE_DENY
                if matches!(flags & ACE_WHO_FLAGS, ACE_OWNER | ACE_GROUP | ACE_EVERYONE) =>
            {
                8
            }
            _ => 16,
        }
    }

    /// Decodes the version 1 entry at the start of `bytes`; also returns its length.
    fn decode(bytes: &[u8], order: Endian) -> Option<(Self, usize)> {
        let [k0, k1, f0, f1, m0, m1, m2, m3] = *bytes.first_chunk::<8>()?;
        let (kind, flags) = (order.u16([k0, k1]), order.u16([f0, f1]));
        let mask = order.u32([m0, m1, m2, m3]);
        let size = Self::size(kind, flags);
        let body = bytes.get(8..size)?;
        let id = body.first_chunk().map_or(0, |id| order.u64(*id));
        let object = body.get(8..).and_then(|guids| guids.first_chunk()).copied();
        Some((Self { kind, flags, mask, id, object }, size))
    }

    /// The version 1 bytes, little-endian.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(48);
        bytes.extend(self.kind.to_le_bytes());
        bytes.extend(self.flags.to_le_bytes());
        bytes.extend(self.mask.to_le_bytes());
        let size = Self::size(self.kind, self.flags);
        if size >= 16 {
            bytes.extend(self.id.to_le_bytes());
        }
        if size == 48 {
            bytes.extend(self.object.unwrap_or([0; 32]));
        }
        bytes
    }
}

/// A list of entries, and whether it is complete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acl {
    /// Entries in order.
    pub entries: Vec<Ace>,
    /// Whether the bytes ended before the last announced entry.
    pub is_truncated: bool,
}

impl Acl {
    /// Decodes `count` version 1 entries.
    #[must_use]
    pub fn decode(bytes: &[u8], count: u64, order: Endian) -> Self {
        let mut acl = Self::default();
        let mut rest = bytes;
        for _ in 0..count {
            let Some((ace, size)) = Ace::decode(rest, order) else {
                acl.is_truncated = true;
                break;
            };
            acl.entries.push(ace);
            rest = rest.get(size..).unwrap_or(&[]);
        }
        acl
    }

    /// Decodes `count` version 0 entries, 12 bytes each.
    #[must_use]
    pub fn decode_v0(bytes: &[u8], count: u64, order: Endian) -> Self {
        let (chunks, _partial) = bytes.as_chunks::<12>();
        let entries: Vec<Ace> = chunks
            .iter()
            .take(usize::try_from(count).unwrap_or(usize::MAX))
            .map(|&[w0, w1, w2, w3, m0, m1, m2, m3, f0, f1, k0, k1]| Ace {
                kind: order.u16([k0, k1]),
                flags: order.u16([f0, f1]),
                mask: order.u32([m0, m1, m2, m3]),
                id: order.u32([w0, w1, w2, w3]).into(),
                object: None,
            })
            .collect();
        let is_truncated = (entries.len() as u64) < count;
        Self { entries, is_truncated }
    }
}

/// The ACL inside a legacy znode, 88 bytes (spec 03 §12.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZnodeAcl {
    /// Object that holds the entries if they do not fit, else 0.
    pub external_obj: u64,
    /// Bytes of version 1 entries.
    pub size: u32,
    /// 0 or 1.
    pub version: u16,
    /// Number of entries.
    pub count: u64,
    /// Entries, if they are inline.
    pub inline: Acl,
}

/// Bytes of [`ZnodeAcl`] on disk.
pub const ZNODE_ACL_LEN: usize = 88;

impl ZnodeAcl {
    /// Decodes the 88 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8; ZNODE_ACL_LEN], order: Endian) -> Self {
        let [e @ .., s0, s1, s2, s3, v0, v1, c0, c1] =
            *bytes.first_chunk::<16>().unwrap_or(&[0; 16]);
        let external_obj = order.u64(e);
        let size = order.u32([s0, s1, s2, s3]);
        let version = order.u16([v0, v1]);
        let count = match version {
            0 => u64::from(size),
            _ => u64::from(order.u16([c0, c1])),
        };
        let aces = bytes.get(16..).unwrap_or(&[]);
        let inline = match (external_obj, version) {
            (0, 0) => Acl::decode_v0(aces, count, order),
            (0, _) => Acl::decode(aces, count, order),
            _ => Acl::default(),
        };
        Self { external_obj, size, version, count, inline }
    }

    /// Decodes the entries from the bytes of the external object.
    #[must_use]
    pub fn decode_external(&self, object: &[u8], order: Endian) -> Acl {
        match self.version {
            0 => Acl::decode_v0(object, self.count, order),
            _ => Acl::decode(object, self.count, order),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_by_type() {
        let bytes = [
            [0, 0, 0, 0x10, 0xff, 1, 0x1e, 0].as_slice(),
            &[1, 0, 0x40, 0, 1, 0, 0, 0, 0xe8, 3, 0, 0, 0, 0, 0, 0],
            &[5, 0, 0, 0x10, 0, 0, 0, 0],
            &[7; 40],
        ]
        .concat();
        let acl = Acl::decode(&bytes, 3, Endian::Little);
        assert!(!acl.is_truncated);
        let who: Vec<Who> = acl.entries.iter().map(Ace::who).collect();
        assert_eq!(who, [Who::Owner, Who::NamedGroup(1000), Who::Owner]);
        assert_eq!(acl.entries[2].object, Some([7; 32]));
        let again: Vec<u8> = acl.entries.iter().flat_map(Ace::encode).collect();
        assert_eq!(again, bytes);
        let short = Acl::decode(&bytes[..60], 3, Endian::Little);
        assert_eq!((short.entries.len(), short.is_truncated), (2, true));
    }

    #[test]
    fn version_0_counts_entries_in_the_size_field() {
        let mut bytes = [0; ZNODE_ACL_LEN];
        bytes[8] = 2;
        bytes[16..28].copy_from_slice(&[0xe8, 3, 0, 0, 1, 0, 0, 0, 0, 0x10, 1, 0]);
        let acl = ZnodeAcl::decode(&bytes, Endian::Little);
        assert_eq!((acl.count, acl.inline.entries.len()), (2, 2));
        assert_eq!((acl.inline.entries[0].id, acl.inline.entries[0].kind), (1000, 1));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>, count: u64, big: bool) {
            let order = if big { Endian::Big } else { Endian::Little };
            let acl = Acl::decode(&bytes, count, order);
            prop_assert!(acl.entries.len() <= bytes.len() / 8);
            let acl = Acl::decode_v0(&bytes, count, order);
            prop_assert!(acl.entries.len() <= bytes.len() / 12);
        }
    }
}
