//! The two MACs of an object set (spec 08 §11).
//!
//!       0x000 metadnode   0x2c0 type, flags   0x2d0 portable   0x2f0 local
//!       0x400 user accounting   0x600 group accounting   0x800 project accounting
//!
//! The portable MAC covers the data of a raw send, the local one the data that each machine
//! computes itself: the accounting objects. The local MAC is zero while the accounting is
//! incomplete, and an outdated one is then tolerated, because a raw receive cannot compute a valid
//! one.
//!
//! The object set's type is hashed in big-endian: an inverted condition in the first release became
//! the format.

use hmac::{Hmac, Mac};
use sha2::Sha512;
use subtle::ConstantTimeEq;

use super::dnodes::{self, SLOT_BYTES};
use super::pointer::truncated;
use super::{ByteOrder, CryptError, OBJSET_MAC_BYTES};

const METADNODE: usize = 0;
const TYPE: usize = 0x2c0;
const FLAGS: usize = 0x2c8;
const PORTABLE_MAC: usize = 0x2d0;
const LOCAL_MAC: usize = 0x2f0;
const USER_USED: usize = 0x400;
const GROUP_USED: usize = 0x600;
const PROJECT_USED: usize = 0x800;

/// Bytes of the first version, without accounting.
const V1_BYTES: usize = 1024;
/// Bytes of the third version, with project accounting.
const V3_BYTES: usize = 4096;

/// User accounting is complete.
const FLAG_ACCOUNTING_COMPLETE: u64 = 1;
/// Flags included in a raw send: none.
const PORTABLE_FLAGS: u64 = 0;

type ObjsetMac = [u8; OBJSET_MAC_BYTES];

/// An object set, with the HMAC that authenticates it.
pub(super) struct Objset<'a> {
    pub(super) hmac: &'a Hmac<Sha512>,
    pub(super) version: u64,
    pub(super) order: ByteOrder,
    pub(super) data: &'a [u8],
}

impl Objset<'_> {
    pub(super) fn verify(&self) -> Result<(), CryptError> {
        if self.data.len() < V1_BYTES {
            return Err(CryptError::ObjsetLength { len: self.data.len() });
        }
        let portable = self.portable_mac()?;
        let local = self.local_mac()?;
        if !bool::from(portable.ct_eq(&self.chunk::<OBJSET_MAC_BYTES>(PORTABLE_MAC)?)) {
            return Err(CryptError::PortableMac);
        }
        let is_absent = local == [0; OBJSET_MAC_BYTES];
        if !is_absent && !bool::from(local.ct_eq(&self.chunk::<OBJSET_MAC_BYTES>(LOCAL_MAC)?)) {
            return Err(CryptError::LocalMac);
        }
        Ok(())
    }

    pub(super) fn portable_mac(&self) -> Result<ObjsetMac, CryptError> {
        let mut hmac = self.hmac.clone();
        hmac.update(&self.word(TYPE)?.to_be_bytes());
        hmac.update(&(self.word(FLAGS)? & PORTABLE_FLAGS).to_le_bytes());
        self.add_dnode(&mut hmac, METADNODE)?;
        Ok(truncated(&hmac.finalize().into_bytes()))
    }

    /// All zero if there is nothing to protect.
    pub(super) fn local_mac(&self) -> Result<ObjsetMac, CryptError> {
        let flags = self.word(FLAGS)?;
        if flags & FLAG_ACCOUNTING_COMPLETE == 0 || self.data.len() <= V1_BYTES {
            return Ok([0; OBJSET_MAC_BYTES]);
        }
        let has_user = dnodes::is_allocated(&self.chunk(USER_USED)?);
        let has_group = dnodes::is_allocated(&self.chunk(GROUP_USED)?);
        if !has_user && !has_group {
            return Ok([0; OBJSET_MAC_BYTES]);
        }
        let mut hmac = self.hmac.clone();
        hmac.update(&flags.to_le_bytes());
        for (offset, version_bytes) in
            [(USER_USED, V1_BYTES), (GROUP_USED, V1_BYTES), (PROJECT_USED, V3_BYTES)]
        {
            if self.data.len() >= version_bytes && dnodes::is_allocated(&self.chunk(offset)?) {
                self.add_dnode(&mut hmac, offset)?;
            }
        }
        Ok(truncated(&hmac.finalize().into_bytes()))
    }

    fn add_dnode(&self, hmac: &mut Hmac<Sha512>, offset: usize) -> Result<(), CryptError> {
        let slot: [u8; SLOT_BYTES] = self.chunk(offset)?;
        let add = |bytes: &[u8]| hmac.update(bytes);
        dnodes::portable_part(self.version, self.order, &slot, offset, add)
    }

    fn word(&self, offset: usize) -> Result<u64, CryptError> {
        Ok(self.order.word(self.chunk(offset)?))
    }

    fn chunk<const N: usize>(&self, offset: usize) -> Result<[u8; N], CryptError> {
        let chunk = self.data.get(offset..).and_then(|tail| tail.first_chunk());
        chunk.copied().ok_or(CryptError::ObjsetLength { len: self.data.len() })
    }
}
