//! Encodes the bodies of records: the reverse of [`Body::decode`] (spec 07 A7).
//!
//! The output is that of a Linux kernel, byte for byte: little-endian, no id domains, the mask of
//! changed attributes in the bits of its VFS, zeros up to a multiple of eight. The header is added
//! by the code that packs records into blocks, since only that has the numbers.

use super::record::{
    Body, LoggedAcl, NewObject, OBJECT, RECORD_HEADER_LEN, RecordKind, SLOTS_MINUS_1,
};
use super::xvattr::XvAttrs;
use crate::acl::Ace;
use crate::words;

impl NewObject {
    /// Object number and slots in one word; `None` if one is out of range.
    fn packed(&self) -> Option<u64> {
        let slots = u64::from(self.slots).checked_sub(1)?;
        SLOTS_MINUS_1.with(OBJECT.with(0, self.object)?, slots)
    }

    fn rest(&self) -> [u64; 7] {
        let [seconds, nanoseconds] = self.crtime;
        [self.mode, self.uid, self.gid, self.gen_, seconds, nanoseconds, self.rdev]
    }

    fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = words::to_bytes(&[self.packed()?]);
        bytes.extend(words::to_bytes(&self.rest()));
        Some(bytes)
    }
}

impl Body<'_> {
    /// The bytes behind the header of a record of this type. `None` if the type has another body,
    /// or one that can only be read: types before version 1 ACLs, and unknown ones.
    #[must_use]
    pub fn encode(&self, kind: RecordKind) -> Option<Vec<u8>> {
        use RecordKind as K;
        let mut bytes = match (self, kind) {
            (
                Self::Create { parent, new, xvattr, name, target },
                K::Create | K::Mkdir | K::Mkxattr | K::Symlink | K::CreateAttr | K::MkdirAttr,
            ) => create(kind, *parent, new, xvattr.as_ref(), name, *target)?,
            (
                Self::CreateAcl { parent, new, xvattr, acl, name },
                K::CreateAcl | K::CreateAclAttr | K::MkdirAcl | K::MkdirAclAttr,
            ) => create_acl(kind, *parent, new, xvattr.as_ref(), acl, name)?,
            (Self::Remove { parent, name }, K::Remove | K::Rmdir) => named(&[*parent], &[name])?,
            (Self::Link { parent, object, name }, K::Link) => named(&[*parent, *object], &[name])?,
            (
                Self::Rename { source_parent, target_parent, source, target, whiteout },
                K::Rename | K::RenameExchange | K::RenameWhiteout,
            ) => {
                let mut fixed = vec![*source_parent, *target_parent];
                match (whiteout, kind) {
                    (Some(new), K::RenameWhiteout) => {
                        fixed.push(new.packed()?);
                        fixed.extend(new.rest());
                    }
                    (None, K::Rename | K::RenameExchange) => {}
                    _ => return None,
                }
                named(&fixed, &[source, target])?
            }
            (Self::SetSaXattr { object, name, value }, K::SetSaXattr) => {
                let mut bytes = named(&[*object, value.len() as u64], &[name])?;
                bytes.extend_from_slice(value);
                bytes
            }
            _ => return self.encode_of_object(kind),
        };
        pad(&mut bytes);
        Some(bytes)
    }

    fn encode_of_object(&self, kind: RecordKind) -> Option<Vec<u8>> {
        use RecordKind as K;
        let mut bytes = match (self, kind) {
            (Self::Write { object, offset, len, bp, data }, K::Write | K::Write2) => {
                // A write without data would read as an indirect write.
                let is_right = match data {
                    Some(data) => kind == K::Write && data.len() as u64 == *len && *len > 0,
                    None => true,
                };
                let mut bytes = words::to_bytes(&[*object, *offset, *len, 0]);
                bytes.extend_from_slice(&bp.to_bytes());
                bytes.extend_from_slice(data.unwrap_or(&[]));
                is_right.then_some(bytes)?
            }
            (Self::Truncate { object, offset, len }, K::Truncate) => {
                words::to_bytes(&[*object, *offset, *len])
            }
            (
                Self::Setattr { object, mask, mode, uid, gid, size, atime, mtime, xvattr },
                K::Setattr,
            ) => {
                let mut bytes = words::to_bytes(&[*object, *mask, *mode, *uid, *gid, *size]);
                bytes.extend(words::to_bytes(atime));
                bytes.extend(words::to_bytes(mtime));
                bytes.extend(xvattr.iter().flat_map(XvAttrs::encode));
                bytes
            }
            (Self::Acl { object, acl }, K::Acl) => {
                let mut bytes = words::to_bytes(&[*object]);
                let entries = put_acl_head(&mut bytes, acl)?;
                put_entries(&mut bytes, &entries, acl);
                bytes
            }
            (Self::CloneRange { object, offset, len, block_size, bps }, K::CloneRange) => {
                let count = bps.len() as u64;
                let mut bytes = words::to_bytes(&[*object, *offset, *len, *block_size, count]);
                bytes.extend(bps.iter().flat_map(crate::blkptr::BlockPtr::to_bytes));
                bytes
            }
            _ => return None,
        };
        pad(&mut bytes);
        Some(bytes)
    }
}

fn create(
    kind: RecordKind,
    parent: u64,
    new: &NewObject,
    xvattr: Option<&XvAttrs>,
    name: &[u8],
    target: Option<&[u8]>,
) -> Option<Vec<u8>> {
    let mut new = *new;
    match (kind, target) {
        // These records have neither slots nor a device number.
        (RecordKind::Symlink, Some(_)) => (new.slots, new.rdev) = (1, 0),
        (RecordKind::Symlink, None) | (_, Some(_)) => return None,
        _ => {}
    }
    let has_attrs = matches!(kind, RecordKind::CreateAttr | RecordKind::MkdirAttr);
    if xvattr.is_some() != has_attrs {
        return None;
    }
    let mut bytes = words::to_bytes(&[parent]);
    bytes.extend(new.encode()?);
    bytes.extend(xvattr.iter().flat_map(|attrs| attrs.encode()));
    put_text(&mut bytes, name)?;
    if let Some(target) = target {
        put_text(&mut bytes, target)?;
    }
    Some(bytes)
}

fn create_acl(
    kind: RecordKind,
    parent: u64,
    new: &NewObject,
    xvattr: Option<&XvAttrs>,
    acl: &LoggedAcl,
    name: &[u8],
) -> Option<Vec<u8>> {
    let has_attrs = matches!(kind, RecordKind::CreateAclAttr | RecordKind::MkdirAclAttr);
    if xvattr.is_some() != has_attrs {
        return None;
    }
    let mut bytes = words::to_bytes(&[parent]);
    bytes.extend(new.encode()?);
    let entries = put_acl_head(&mut bytes, acl)?;
    bytes.extend(xvattr.iter().flat_map(|attrs| attrs.encode()));
    put_entries(&mut bytes, &entries, acl);
    put_text(&mut bytes, name)?;
    Some(bytes)
}

/// Encodes count of entries, domains and ids, length of the entries, flags. Returns the encoded
/// entries.
fn put_acl_head(bytes: &mut Vec<u8>, acl: &LoggedAcl) -> Option<Vec<u8>> {
    if acl.domain_count != 0 || acl.acl.is_truncated {
        return None;
    }
    let entries: Vec<u8> = acl.acl.entries.iter().flat_map(Ace::encode).collect();
    let (count, ids) = (acl.acl.entries.len() as u64, acl.fuids.len() as u64);
    bytes.extend(words::to_bytes(&[count, 0, ids, entries.len() as u64, acl.flags]));
    Some(entries)
}

fn put_entries(bytes: &mut Vec<u8>, entries: &[u8], acl: &LoggedAcl) {
    bytes.extend_from_slice(entries);
    pad(bytes);
    bytes.extend(words::to_bytes(&acl.fuids));
}

/// Encodes words, then texts with their NUL.
fn named(fixed: &[u64], texts: &[&[u8]]) -> Option<Vec<u8>> {
    let mut bytes = words::to_bytes(fixed);
    for text in texts {
        put_text(&mut bytes, text)?;
    }
    Some(bytes)
}

/// `None` if the text contains a NUL.
fn put_text(bytes: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    if text.contains(&0) {
        return None;
    }
    bytes.extend_from_slice(text);
    bytes.push(0);
    Some(())
}

/// Pads with zeros to a multiple of eight; the header's length is one, so this is also the record's
/// end.
fn pad(bytes: &mut Vec<u8>) {
    const _: () = assert!(RECORD_HEADER_LEN.is_multiple_of(8));
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
