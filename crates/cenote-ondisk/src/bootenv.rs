//! The boot environment block of a label: a few words exchanged between boot loader and
//! administrator (spec 01 §8).
//!
//! ```text
//!   0  version, u64 big-endian: 0 = text, 1 = nvlist      8  content up to the trailer
//! ```

use crate::label::TRAILER_LEN;
use crate::nvlist::{CorruptNvList, NvList};

/// Why a boot environment is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptBootEnv {
    /// The block is too small.
    #[error("boot environment: block of {len} bytes, expected 8192")]
    Length {
        /// Bytes found.
        len: usize,
    },
    /// The version is unknown.
    #[error("boot environment: version {version} is unknown")]
    Version {
        /// The number found.
        version: u64,
    },
    /// The nvlist is invalid.
    #[error("boot environment: {0}")]
    List(#[from] CorruptNvList),
}

/// A boot environment.
#[derive(Debug, Clone, PartialEq)]
pub enum BootEnv {
    /// The text of GRUB's environment up to its first NUL; empty on a fresh label.
    Raw(Vec<u8>),
    /// Keys and values.
    List(NvList),
}

impl BootEnv {
    /// Decodes the block, trailer included; the caller has verified its checksum.
    pub fn decode(block: &[u8]) -> Result<Self, CorruptBootEnv> {
        let short = CorruptBootEnv::Length { len: block.len() };
        let content_len = block.len().checked_sub(TRAILER_LEN).ok_or(short)?;
        let content = block.get(..content_len).ok_or(short)?;
        let (version, body) = content.split_first_chunk::<8>().ok_or(short)?;
        match u64::from_be_bytes(*version) {
            0 => Ok(Self::Raw(body.iter().copied().take_while(|byte| *byte != 0).collect())),
            1 => Ok(Self::List(NvList::decode(body)?)),
            version => Err(CorruptBootEnv::Version { version }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvlist::Encoding;

    #[test]
    fn both_versions() {
        let mut block = vec![0; 8192];
        assert_eq!(BootEnv::decode(&block), Ok(BootEnv::Raw(Vec::new())));
        block[8..12].copy_from_slice(b"a=1\n");
        assert_eq!(BootEnv::decode(&block), Ok(BootEnv::Raw(b"a=1\n".to_vec())));
        let list = NvList::from_iter([("freebsd:bootonce", "zfs:tank/be")]);
        let bytes = list.encode(Encoding::Xdr);
        block[7] = 1;
        block[8..8 + bytes.len()].copy_from_slice(&bytes);
        assert_eq!(BootEnv::decode(&block), Ok(BootEnv::List(list)));
        block[7] = 2;
        assert_eq!(BootEnv::decode(&block), Err(CorruptBootEnv::Version { version: 2 }));
        assert_eq!(BootEnv::decode(&block[..47]), Err(CorruptBootEnv::Length { len: 47 }));
    }
}
