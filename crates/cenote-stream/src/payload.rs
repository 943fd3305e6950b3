//! The payload of a substream's BEGIN: an nvlist for redacted, resumed and raw streams (spec 07
//! B2.2, B10).
//!
//! OpenZFS up to 2.3 writes the native encoding of its host, later versions XDR padded to whole
//! words, as we do. A stream that needs none of the keys has no payload.

use cenote_ondisk::dnode::{BLKPTRS_MAX, LEVELS_MAX};
use cenote_ondisk::dsl::crypto;
use cenote_ondisk::nvlist::{CorruptNvList, Encoding, NvList, NvPair, NvValue};

/// Block sizes of a meta dnode.
const BLOCK_SIZES: std::ops::RangeInclusive<u64> = 512..=128 << 10;
/// Sizes of its indirect blocks, as logarithms.
const INDIRECT_SHIFTS: std::ops::RangeInclusive<u64> = 12..=17;

/// Why a payload is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptPayload {
    /// The nvlist is invalid.
    #[error(transparent)]
    List(#[from] CorruptNvList),
    /// A value is missing, or has another type or length.
    #[error("payload of BEGIN: no valid {key}")]
    Value {
        /// Its key.
        key: &'static str,
    },
    /// The geometry of the meta dnode is not that of any object set.
    #[error("payload of BEGIN: {key} is {value}")]
    MetaDnode {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u64,
    },
}

/// The payload of a substream's BEGIN.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BeginPayload {
    /// Guids of the redaction snapshots, if the snapshot is redacted.
    pub redact_snaps: Option<Vec<u64>>,
    /// Guids of the redaction snapshots of the source, if that is redacted; may be empty.
    pub redact_from_snaps: Option<Vec<u64>>,
    /// Where the stream continues an interrupted receive.
    pub resume: Option<ResumePoint>,
    /// The wrapped key of a raw stream, and the geometry of its meta dnode.
    pub crypt_keydata: Option<CryptKeyData>,
}

/// Where a stream continues an interrupted receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResumePoint {
    /// Object number.
    pub object: u64,
    /// Offset in the object.
    pub offset: u64,
}

/// Geometry of the meta dnode of a raw stream. The receiver's must equal it, or the MACs of its
/// dnodes do not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetaDnodeGeometry {
    /// Number of the checksum property; 0 inherits.
    pub checksum: u8,
    /// Number of the compression property; 0 inherits.
    pub compression: u8,
    /// Levels.
    pub levels: u8,
    /// Bytes of a block.
    pub block_size: u32,
    /// Logarithm of an indirect block's bytes.
    pub indirect_block_shift: u8,
    /// Block pointers.
    pub blkptr_count: u8,
    /// Number of the last block.
    pub max_block: u64,
}

/// `crypt_keydata`: the wrapped master key of a raw stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CryptKeyData {
    /// Number of the cipher suite (the property `encryption`).
    pub suite: u64,
    /// Guid of the key.
    pub guid: u64,
    /// Version of the key's format: 1; 0 if the stream has none.
    pub version: u64,
    /// The wrapped master key.
    pub master_key: [u8; 32],
    /// The wrapped HMAC key.
    pub hmac_key: [u8; 64],
    /// Initialization vector of the wrapping.
    pub iv: [u8; 12],
    /// Authentication code of the wrapping.
    pub mac: [u8; 16],
    /// The object set's MAC over what every receiver has in common.
    pub portable_mac: [u8; 32],
    /// Number of the property `keyformat` of the encryption root.
    pub key_format: u64,
    /// Iterations of PBKDF2; 0 unless the key is a passphrase.
    pub pbkdf2_iterations: u64,
    /// Salt of PBKDF2; 0 unless the key is a passphrase.
    pub pbkdf2_salt: u64,
    /// The meta dnode.
    pub meta_dnode: MetaDnodeGeometry,
    /// Guid of the set of initialization vectors of the snapshot.
    pub to_ivset_guid: Option<u64>,
    /// That of the source of an increment; 0 if full.
    pub from_ivset_guid: Option<u64>,
}

impl BeginPayload {
    /// Decodes a payload; bytes behind the nvlist are padding. Without bytes it has no keys.
    ///
    /// # Errors
    /// All of [`CorruptPayload`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CorruptPayload> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let list = NvList::decode(bytes)?;
        let array = |key| list.u64_array(key).map(<[u64]>::to_vec);
        let resume = match (list.u64("resume_object"), list.u64("resume_offset")) {
            (None, None) => None,
            (Some(object), Some(offset)) => Some(ResumePoint { object, offset }),
            (None, _) => return Err(CorruptPayload::Value { key: "resume_object" }),
            (_, None) => return Err(CorruptPayload::Value { key: "resume_offset" }),
        };
        Ok(Self {
            redact_snaps: array("redact_snaps"),
            redact_from_snaps: array("redact_from_snaps"),
            resume,
            crypt_keydata: list.list("crypt_keydata").map(CryptKeyData::decode).transpose()?,
        })
    }

    /// Encodes the payload: nothing if no key is set, else a whole number of words.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let list = self.to_list();
        if list.is_empty() {
            return Vec::new();
        }
        let mut bytes = list.encode(Encoding::Xdr);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    /// The nvlist.
    #[must_use]
    pub fn to_list(&self) -> NvList {
        let mut list = NvList::new();
        if let Some(guids) = &self.redact_snaps {
            list.insert("redact_snaps", guids.clone());
        }
        if let Some(guids) = &self.redact_from_snaps {
            list.insert("redact_from_snaps", guids.clone());
        }
        if let Some(ResumePoint { object, offset }) = self.resume {
            list.insert("resume_object", object);
            list.insert("resume_offset", offset);
        }
        if let Some(keydata) = &self.crypt_keydata {
            list.insert("crypt_keydata", keydata.to_list());
        }
        list
    }
}

impl CryptKeyData {
    /// Decodes the nvlist.
    ///
    /// # Errors
    /// [`CorruptPayload::Value`], [`CorruptPayload::MetaDnode`].
    pub fn decode(list: &NvList) -> Result<Self, CorruptPayload> {
        let number = |key| list.u64(key).ok_or(CorruptPayload::Value { key });
        Ok(Self {
            suite: number(crypto::SUITE)?,
            guid: number(crypto::GUID)?,
            version: list.u64(crypto::VERSION).unwrap_or(0),
            master_key: bytes(list, crypto::MASTER_KEY)?,
            hmac_key: bytes(list, crypto::HMAC_KEY)?,
            iv: bytes(list, crypto::IV)?,
            mac: bytes(list, crypto::MAC)?,
            portable_mac: bytes(list, "portable_mac")?,
            key_format: number(crypto::KEYFORMAT)?,
            pbkdf2_iterations: number(crypto::PBKDF2_ITERS)?,
            pbkdf2_salt: number(crypto::PBKDF2_SALT)?,
            meta_dnode: MetaDnodeGeometry::decode(list)?,
            to_ivset_guid: list.u64("to_ivset_guid"),
            from_ivset_guid: list.u64("from_ivset_guid"),
        })
    }

    /// The nvlist.
    #[must_use]
    pub fn to_list(&self) -> NvList {
        let array = |bytes: &[u8]| NvValue::Uint8Array(bytes.to_vec());
        let mut pairs: Vec<(&str, NvValue)> = vec![
            (crypto::SUITE, self.suite.into()),
            (crypto::GUID, self.guid.into()),
            (crypto::VERSION, self.version.into()),
            (crypto::MASTER_KEY, array(&self.master_key)),
            (crypto::HMAC_KEY, array(&self.hmac_key)),
            (crypto::IV, array(&self.iv)),
            (crypto::MAC, array(&self.mac)),
            ("portable_mac", array(&self.portable_mac)),
            (crypto::KEYFORMAT, self.key_format.into()),
            (crypto::PBKDF2_ITERS, self.pbkdf2_iterations.into()),
            (crypto::PBKDF2_SALT, self.pbkdf2_salt.into()),
        ];
        let geometry = &self.meta_dnode;
        for (name, value) in [
            ("mdn_checksum", geometry.checksum.into()),
            ("mdn_compress", geometry.compression.into()),
            ("mdn_nlevels", geometry.levels.into()),
            ("mdn_blksz", u64::from(geometry.block_size)),
            ("mdn_indblkshift", geometry.indirect_block_shift.into()),
            ("mdn_nblkptr", geometry.blkptr_count.into()),
            ("mdn_maxblkid", geometry.max_block),
        ] {
            pairs.push((name, value.into()));
        }
        let guids =
            [("to_ivset_guid", self.to_ivset_guid), ("from_ivset_guid", self.from_ivset_guid)];
        for (name, guid) in guids {
            if let Some(guid) = guid {
                pairs.push((name, guid.into()));
            }
        }
        let pairs = pairs.into_iter().map(|(name, value)| NvPair { name: name.into(), value });
        NvList { pairs: pairs.collect(), ..NvList::new() }
    }
}

impl MetaDnodeGeometry {
    fn decode(list: &NvList) -> Result<Self, CorruptPayload> {
        let number = |key, is_valid: &dyn Fn(u64) -> bool| {
            let value = list.u64(key).ok_or(CorruptPayload::Value { key })?;
            if is_valid(value) { Ok(value) } else { Err(CorruptPayload::MetaDnode { key, value }) }
        };
        let levels_max = u64::from(LEVELS_MAX);
        Ok(Self {
            checksum: number("mdn_checksum", &|value| value < 256)? as u8,
            compression: number("mdn_compress", &|value| value < 256)? as u8,
            levels: number("mdn_nlevels", &|value| (1..=levels_max).contains(&value))? as u8,
            block_size: number("mdn_blksz", &|value| {
                BLOCK_SIZES.contains(&value) && value.is_multiple_of(512)
            })? as u32,
            indirect_block_shift: number("mdn_indblkshift", &|value| {
                INDIRECT_SHIFTS.contains(&value)
            })? as u8,
            blkptr_count: number("mdn_nblkptr", &|value| value == BLKPTRS_MAX as u64)? as u8,
            max_block: number("mdn_maxblkid", &|_| true)?,
        })
    }
}

fn bytes<const N: usize>(list: &NvList, key: &'static str) -> Result<[u8; N], CorruptPayload> {
    let invalid = CorruptPayload::Value { key };
    match list.get(key) {
        Some(NvValue::Uint8Array(bytes)) => bytes.as_slice().try_into().map_err(|_| invalid),
        _ => Err(invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_ondisk::endian::Endian;
    use proptest::prelude::*;

    fn keydata() -> CryptKeyData {
        CryptKeyData {
            suite: 8,
            guid: 0x41140b153368f162,
            version: 1,
            master_key: [1; 32],
            hmac_key: [2; 64],
            iv: [3; 12],
            mac: [4; 16],
            portable_mac: [5; 32],
            key_format: 3,
            pbkdf2_iterations: 350000,
            pbkdf2_salt: 7,
            meta_dnode: MetaDnodeGeometry {
                levels: 6,
                block_size: 16384,
                indirect_block_shift: 17,
                blkptr_count: 3,
                max_block: 1,
                ..MetaDnodeGeometry::default()
            },
            to_ivset_guid: Some(9),
            from_ivset_guid: None,
        }
    }

    #[test]
    fn a_payload_is_whole_words_or_nothing() {
        assert_eq!(BeginPayload::default().encode(), []);
        assert_eq!(BeginPayload::decode(&[]), Ok(BeginPayload::default()));
        let payload = BeginPayload { crypt_keydata: Some(keydata()), ..BeginPayload::default() };
        let encoded = payload.encode();
        assert_eq!(encoded.len() % 8, 0);
        assert_eq!(BeginPayload::decode(&encoded).as_ref(), Ok(&payload));
        for endian in [Endian::Little, Endian::Big] {
            let native = payload.to_list().encode(Encoding::Native(endian));
            assert_eq!(BeginPayload::decode(&native).as_ref(), Ok(&payload));
        }
    }

    #[test]
    fn causes_are_named() {
        let list = keydata().to_list();
        for key in ["DSL_CRYPTO_SUITE", "DSL_CRYPTO_IV", "portable_mac", "mdn_nlevels"] {
            let mut list = list.clone();
            list.remove(key);
            assert_eq!(CryptKeyData::decode(&list), Err(CorruptPayload::Value { key }));
            list.insert(key, NvValue::Uint8Array(vec![0; 11]));
            assert_eq!(CryptKeyData::decode(&list), Err(CorruptPayload::Value { key }));
        }
        for (key, value) in [
            ("mdn_nlevels", 0_u64),
            ("mdn_nlevels", 13),
            ("mdn_blksz", 513),
            ("mdn_blksz", 1 << 18),
            ("mdn_indblkshift", 18),
            ("mdn_nblkptr", 2),
            ("mdn_checksum", 256),
        ] {
            let mut list = list.clone();
            list.insert(key, value);
            assert_eq!(CryptKeyData::decode(&list), Err(CorruptPayload::MetaDnode { key, value }));
        }
        let half = NvList::from_iter([("resume_object", 1_u64)]).encode(Encoding::Xdr);
        let missing = CorruptPayload::Value { key: "resume_offset" };
        assert_eq!(BeginPayload::decode(&half), Err(missing));
    }

    proptest! {
        #[test]
        fn payloads_round_trip(snaps: Option<Vec<u64>>, from: Option<Vec<u64>>, at: Option<(u64, u64)>) {
            let resume = at.map(|(object, offset)| ResumePoint { object, offset });
            let payload = BeginPayload {
                redact_snaps: snaps,
                redact_from_snaps: from,
                resume,
                crypt_keydata: None,
            };
            prop_assert_eq!(BeginPayload::decode(&payload.encode()), Ok(payload));
        }
    }
}
