//! POSIX ACLs: two extended attributes in the form that Linux gives them (spec 03 §11.4).
//!
//! ```text
//!   u32 version = 2 | entries: tag u16 | rwx u16 | id u32       little-endian
//!   owner, users, group, groups, mask, others: in this order, users and groups by id
//! ```
//!
//! An access ACL that says no more than a mode is not kept. If there is a mask, the group bits of
//! the mode are the mask, not what the group may. A directory's default ACL is what new nodes in it
//! get, in place of the umask.

use crate::error::FsError;

/// The version in front.
const VERSION: u32 = 2;
/// What ids are where there is none.
const NO_ID: u32 = u32::MAX;
/// Bits of a permission.
const RWX: u16 = 7;
/// Bits of a mode.
const MODE_RWX: u64 = 0o777;

/// Whom an entry is about.
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
    /// Most that users, the group and groups get.
    Mask,
    /// Everybody else.
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
    /// Whom it is about.
    pub tag: Tag,
    /// What they may: 4 read, 2 write, 1 execute.
    pub rwx: u16,
}

/// A valid ACL: one entry each for owner, group and others, a mask if anybody is named, nobody
/// twice, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PosixAcl(Vec<Entry>);

impl PosixAcl {
    /// From the value of the extended attribute. None if it has no entries, which takes an ACL
    /// away.
    ///
    /// # Errors
    /// [`FsError::BadAcl`] if it is no such value, or no valid ACL.
    pub fn decode(value: &[u8]) -> Result<Option<Self>, FsError> {
        let (version, entries) = value.split_first_chunk::<4>().ok_or(FsError::BadAcl)?;
        let (entries, rest) = entries.as_chunks::<8>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return Err(FsError::BadAcl);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let entry = |&[t0, t1, p0, p1, i0, i1, i2, i3]: &[u8; 8]| {
            let id = u32::from_le_bytes([i0, i1, i2, i3]);
            let tag = Tag::from_stored(u16::from_le_bytes([t0, t1]), id)?;
            Some(Entry { tag, rwx: u16::from_le_bytes([p0, p1]) })
        };
        let entries: Option<Vec<_>> = entries.iter().map(entry).collect();
        Self::of(entries.ok_or(FsError::BadAcl)?).map(Some)
    }

    /// Of entries in any order.
    ///
    /// # Errors
    /// [`FsError::BadAcl`] if they make no valid ACL.
    pub fn of(mut entries: Vec<Entry>) -> Result<Self, FsError> {
        entries.sort_by_key(|entry| entry.tag);
        let is_twice = entries.windows(2).any(|pair| matches!(pair, [a, b] if a.tag == b.tag));
        let is_wide = entries.iter().any(|entry| entry.rwx & !RWX != 0);
        let has = |tag| entries.iter().any(|entry| entry.tag == tag);
        let is_named =
            entries.iter().any(|entry| matches!(entry.tag, Tag::User(_) | Tag::NamedGroup(_)));
        let is_complete = has(Tag::Owner) && has(Tag::Group) && has(Tag::Other);
        if is_twice || is_wide || !is_complete || (is_named && !has(Tag::Mask)) {
            return Err(FsError::BadAcl);
        }
        Ok(Self(entries))
    }

    /// What a mode says.
    #[must_use]
    pub fn of_mode(mode: u64) -> Self {
        let entry = |tag, shift: u32| Entry { tag, rwx: (mode >> shift) as u16 & RWX };
        Self(vec![entry(Tag::Owner, 6), entry(Tag::Group, 3), entry(Tag::Other, 0)])
    }

    /// The value of the extended attribute.
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

    /// Whether it says no more than a mode.
    #[must_use]
    pub fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    fn rwx(&self, tag: Tag) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.rwx)
    }

    /// The mode with the permissions that go with this ACL.
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

    /// What a new node gets of the default ACL that this is, and the mode that it has then: of what
    /// was asked for, what the ACL allows.
    #[must_use]
    pub fn for_new(&self, mode: u64) -> (Self, u64) {
        let acl = self.limited(mode, |rwx, bits| rwx & bits);
        let mode = acl.mode(mode);
        (acl, mode)
    }

    /// Puts together the entries that the bits of a mode belong to, and those bits.
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

    /// What somebody may, by the entry that is about them: 4 read, 2 write, 1 execute. Of the
    /// entries of groups one that allows all of `wanted` is enough.
    pub(crate) fn permits(
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
