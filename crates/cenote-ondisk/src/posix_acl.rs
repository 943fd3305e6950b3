//! POSIX ACLs: two extended attributes in the format of Linux (spec 03 §11.4).
//!
//! ```text
//!   u32 version = 2 | entries: tag u16 | rwx u16 | id u32       little-endian
//!   owner, users, group, groups, mask, others: in this order, users and groups by id
//! ```
//!
//! An access ACL equivalent to a mode is not stored. If there is a mask, the group bits of the mode
//! are the mask, not the group's permissions. A directory's default ACL is applied to new nodes in
//! it, instead of the umask.

/// Why bytes, or entries, are not a valid ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptPosixAcl {
    /// The value is not a header and whole entries.
    #[error("POSIX ACL of {len} bytes")]
    Length {
        /// Bytes found.
        len: usize,
    },
    /// The version is unknown.
    #[error("POSIX ACL of version {found}, expected 2")]
    Version {
        /// The version found.
        found: u32,
    },
    /// A tag is unknown.
    #[error("POSIX ACL has an entry with tag {tag:#x}")]
    Tag {
        /// The tag found.
        tag: u16,
    },
    /// Permissions other than read, write and execute.
    #[error("POSIX ACL has an entry with permissions {rwx:#x}")]
    Permissions {
        /// The bits found.
        rwx: u16,
    },
    /// Two entries for one subject.
    #[error("POSIX ACL has two entries for {tag:?}")]
    Twice {
        /// The subject.
        tag: Tag,
    },
    /// A mandatory entry is missing, or the mask required by entries for named users or groups.
    #[error("POSIX ACL has no entry for {tag:?}")]
    Missing {
        /// The missing entry.
        tag: Tag,
    },
}

/// The version in the header.
const VERSION: u32 = 2;
/// The id of entries without one.
const NO_ID: u32 = u32::MAX;
/// Bits of a permission.
const RWX: u16 = 7;
/// Bits of a mode.
const MODE_RWX: u64 = 0o777;

/// Subject of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The owner.
    Owner,
    /// A user.
    User(u32),
    /// The group of the node.
    Group,
    /// Another group.
    NamedGroup(u32),
    /// Maximum permissions of users, the group and groups.
    Mask,
    /// All others.
    Other,
}

impl Tag {
    const fn from_stored(tag: u16, id: u32) -> Option<Self> {
        Some(match tag {
            0x01 => Self::Owner,
            0x02 => Self::User(id),
            0x04 => Self::Group,
            0x08 => Self::NamedGroup(id),
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }

    const fn to_stored(self) -> (u16, u32) {
        match self {
            Self::Owner => (0x01, NO_ID),
            Self::User(id) => (0x02, id),
            Self::Group => (0x04, NO_ID),
            Self::NamedGroup(id) => (0x08, id),
            Self::Mask => (0x10, NO_ID),
            Self::Other => (0x20, NO_ID),
        }
    }
}

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Subject.
    pub tag: Tag,
    /// Permissions: 4 read, 2 write, 1 execute.
    pub rwx: u16,
}

/// A valid ACL: one entry each for owner, group and others, a mask if there are named entries, no
/// duplicates, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PosixAcl(Vec<Entry>);

impl PosixAcl {
    /// Decodes the value of the extended attribute. `None` if it has no entries, which removes an
    /// ACL.
    ///
    /// # Errors
    /// Why it is not a valid ACL.
    pub fn decode(value: &[u8]) -> Result<Option<Self>, CorruptPosixAcl> {
        let length = CorruptPosixAcl::Length { len: value.len() };
        let (version, entries) = value.split_first_chunk::<4>().ok_or(length)?;
        let (entries, rest) = entries.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(length);
        }
        let found = u32::from_le_bytes(*version);
        if found != VERSION {
            return Err(CorruptPosixAcl::Version { found });
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let entry = |&[t0, t1, p0, p1, i0, i1, i2, i3]: &[u8; 8]| {
            let (tag, id) = (u16::from_le_bytes([t0, t1]), u32::from_le_bytes([i0, i1, i2, i3]));
            let known = Tag::from_stored(tag, id).ok_or(CorruptPosixAcl::Tag { tag })?;
            Ok(Entry { tag: known, rwx: u16::from_le_bytes([p0, p1]) })
        };
        let entries: Result<Vec<_>, _> = entries.iter().map(entry).collect();
        Self::of(entries?).map(Some)
    }

    /// Builds an ACL from entries in any order.
    ///
    /// # Errors
    /// Why they are not a valid ACL.
    pub fn of(mut entries: Vec<Entry>) -> Result<Self, CorruptPosixAcl> {
        entries.sort_by_key(|entry| entry.tag);
        if let Some(entry) = entries.iter().find(|entry| entry.rwx & !RWX != 0) {
            return Err(CorruptPosixAcl::Permissions { rwx: entry.rwx });
        }
        for pair in entries.windows(2) {
            if let [a, b] = pair
                && a.tag == b.tag
            {
                return Err(CorruptPosixAcl::Twice { tag: a.tag });
            }
        }
        let is_named =
            entries.iter().any(|entry| matches!(entry.tag, Tag::User(_) | Tag::NamedGroup(_)));
        let wanted = [Tag::Owner, Tag::Group, Tag::Other];
        for tag in wanted.into_iter().chain(is_named.then_some(Tag::Mask)) {
            if entries.iter().all(|entry| entry.tag != tag) {
                return Err(CorruptPosixAcl::Missing { tag });
            }
        }
        Ok(Self(entries))
    }

    /// The ACL equivalent to a mode.
    #[must_use]
    pub fn of_mode(mode: u64) -> Self {
        let entry = |tag, shift: u32| Entry { tag, rwx: (mode >> shift) as u16 & RWX };
        Self(vec![entry(Tag::Owner, 6), entry(Tag::Group, 3), entry(Tag::Other, 0)])
    }

    /// Encodes the value of the extended attribute.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            let (tag, id) = entry.tag.to_stored();
            bytes.extend(tag.to_le_bytes());
            bytes.extend(entry.rwx.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// The entries, in order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Whether it is equivalent to a mode.
    #[must_use]
    pub fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    fn rwx(&self, tag: Tag) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.rwx)
    }

    /// The mode with its permission bits replaced by those of this ACL.
    #[must_use]
    pub fn mode(&self, mode: u64) -> u64 {
        let group = self.rwx(Tag::Mask).or(self.rwx(Tag::Group));
        let bits = [self.rwx(Tag::Owner), group, self.rwx(Tag::Other)];
        let rwx = bits.into_iter().fold(0, |mode, bits| mode << 3 | u64::from(bits.unwrap_or(0)));
        mode & !MODE_RWX | rwx
    }

    /// The ACL after a change of the mode: the group bits are the mask if there is one.
    #[must_use]
    pub fn chmod(&self, mode: u64) -> Self {
        self.limited(mode, |_, bits| bits)
    }

    /// Applies this default ACL to a new node: returns its ACL and its mode, which are the
    /// requested permissions limited to those that the default ACL allows.
    #[must_use]
    pub fn for_new(&self, mode: u64) -> (Self, u64) {
        let acl = self.limited(mode, |rwx, bits| rwx & bits);
        let mode = acl.mode(mode);
        (acl, mode)
    }

    /// Combines the entries that correspond to permission bits of a mode with those bits.
    fn limited(&self, mode: u64, combine: impl Fn(u16, u16) -> u16) -> Self {
        let group = if self.rwx(Tag::Mask).is_some() { Tag::Mask } else { Tag::Group };
        let mut acl = self.clone();
        for entry in &mut acl.0 {
            let shift = match entry.tag {
                Tag::Owner => 6,
                tag if tag == group => 3,
                Tag::Other => 0,
                _ => continue,
            };
            entry.rwx = combine(entry.rwx, (mode >> shift) as u16 & RWX);
        }
        acl
    }

    /// The permissions of a user according to the matching entry: 4 read, 2 write, 1 execute. Of
    /// the entries of groups, one that allows all of `wanted` is enough.
    #[must_use]
    pub fn permits(
        &self,
        wanted: u16,
        is_owner: bool,
        uid: u64,
        is_member: impl Fn(Option<u32>) -> bool,
    ) -> bool {
        if is_owner {
            return self.allows(Tag::Owner, wanted);
        }
        let mask = self.rwx(Tag::Mask).unwrap_or(RWX);
        let user =
            self.0.iter().find(|entry| matches!(entry.tag, Tag::User(id) if u64::from(id) == uid));
        if let Some(entry) = user {
            return entry.rwx & mask & wanted == wanted;
        }
        let mut is_meant = false;
        for entry in &self.0 {
            let group = match entry.tag {
                Tag::Group => None,
                Tag::NamedGroup(id) => Some(id),
                _ => continue,
            };
            if is_member(group) {
                is_meant = true;
                if entry.rwx & wanted == wanted {
                    return mask & wanted == wanted;
                }
            }
        }
        !is_meant && self.allows(Tag::Other, wanted)
    }

    fn allows(&self, tag: Tag, wanted: u16) -> bool {
        self.rwx(tag).is_some_and(|rwx| rwx & wanted == wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn posix(entries: &[(Tag, u16)]) -> Result<PosixAcl, CorruptPosixAcl> {
        PosixAcl::of(entries.iter().map(|(tag, rwx)| Entry { tag: *tag, rwx: *rwx }).collect())
    }

    #[test]
    fn posix_acls_on_disk() {
        let rows: &[(&[(Tag, u16)], bool)] = &[
            (&[(Tag::Other, 4), (Tag::Owner, 6), (Tag::Group, 4)], true),
            (&[(Tag::Owner, 6), (Tag::Group, 4)], false),
            (&[(Tag::Owner, 6), (Tag::Group, 4), (Tag::Other, 4), (Tag::User(5), 7)], false),
            (&[(Tag::Owner, 8), (Tag::Group, 4), (Tag::Other, 4)], false),
            (&[(Tag::Owner, 6), (Tag::Owner, 6), (Tag::Group, 4), (Tag::Other, 4)], false),
        ];
        for (entries, is_valid) in rows {
            assert_eq!(posix(entries).is_ok(), *is_valid, "{entries:?}");
        }
        let acl = posix(&[
            (Tag::Owner, 6),
            (Tag::User(5), 7),
            (Tag::Group, 4),
            (Tag::NamedGroup(9), 2),
            (Tag::Mask, 6),
            (Tag::Other, 0),
        ])
        .unwrap();
        let bytes = acl.encode();
        assert_eq!(bytes.len(), 4 + 6 * 8);
        assert_eq!(bytes[4..20], [1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 7, 0, 5, 0, 0, 0]);
        assert_eq!(PosixAcl::decode(&bytes), Ok(Some(acl.clone())));
        assert_eq!(PosixAcl::decode(&bytes[..4]), Ok(None));
        assert_eq!(PosixAcl::decode(&bytes[..9]), Err(CorruptPosixAcl::Length { len: 9 }));
        assert_eq!(acl.mode(0o100_777), 0o100_660);
        assert_eq!(acl.chmod(0o640).mode(0), 0o640);
        assert!(!acl.is_mode() && PosixAcl::of_mode(0o751).is_mode());
        assert_eq!(PosixAcl::of_mode(0o751).mode(0o100_000), 0o100_751);
        let (new, mode) = acl.for_new(0o100_755);
        assert_eq!((mode, new.mode(0)), (0o100_640, 0o640));
    }

    #[test]
    fn posix_acls_decide() {
        let acl = posix(&[
            (Tag::Owner, 6),
            (Tag::User(5), 7),
            (Tag::Group, 1),
            (Tag::NamedGroup(9), 2),
            (Tag::Mask, 6),
            (Tag::Other, 4),
        ])
        .unwrap();
        let permits = |wanted, is_owner, uid, groups: &[Option<u32>]| {
            acl.permits(wanted, is_owner, uid, |group| groups.contains(&group))
        };
        assert!(permits(6, true, 1000, &[]) && !permits(1, true, 1000, &[]));
        // A user entry is limited by the mask, and group entries are not consulted.
        assert!(permits(6, false, 5, &[Some(9)]) && !permits(1, false, 5, &[Some(9)]));
        // Any group entry is enough, but a single one has to allow everything.
        assert!(permits(2, false, 6, &[None, Some(9)]) && !permits(3, false, 6, &[None, Some(9)]));
        assert!(!permits(4, false, 6, &[None]) && permits(4, false, 6, &[]));
    }

    #[test]
    fn causes_of_refusal() {
        let full = [(Tag::Owner, 6), (Tag::Group, 4), (Tag::Other, 4)];
        let with = |tag, rwx| {
            let mut entries = full.to_vec();
            entries.push((tag, rwx));
            posix(&entries).unwrap_err()
        };
        assert_eq!(with(Tag::User(5), 7), CorruptPosixAcl::Missing { tag: Tag::Mask });
        assert_eq!(with(Tag::Mask, 8), CorruptPosixAcl::Permissions { rwx: 8 });
        assert_eq!(with(Tag::Group, 4), CorruptPosixAcl::Twice { tag: Tag::Group });
        assert_eq!(posix(&full[1..]), Err(CorruptPosixAcl::Missing { tag: Tag::Owner }));
        let mut bytes = posix(&full).unwrap().encode();
        bytes[4] = 3;
        assert_eq!(PosixAcl::decode(&bytes), Err(CorruptPosixAcl::Tag { tag: 3 }));
        bytes[0] = 1;
        assert_eq!(PosixAcl::decode(&bytes), Err(CorruptPosixAcl::Version { found: 1 }));
    }

    proptest! {
        #[test]
        fn posix_acls_round_trip(bytes: Vec<u8>, mode: u64) {
            let mut value = VERSION.to_le_bytes().to_vec();
            value.extend(&bytes);
            for value in [&value, &bytes] {
                if let Ok(Some(acl)) = PosixAcl::decode(value) {
                    let again = PosixAcl::decode(&acl.encode());
                    prop_assert_eq!(again, Ok(Some(acl)));
                }
            }
            let acl = PosixAcl::of_mode(mode);
            prop_assert_eq!(acl.mode(mode), mode);
            prop_assert_eq!(acl.chmod(mode), acl);
        }
    }
}
