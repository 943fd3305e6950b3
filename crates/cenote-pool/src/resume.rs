//! The resume token of an interrupted receive (spec 07 B8).
//!
//!     1-<checksum>-<length>-<zlib of a packed list, in hex>

use std::fmt::Write;

use cenote_codec::compress::{Compression, ZstdLevel, compress};
use cenote_ondisk::dsl::key;
use cenote_ondisk::nvlist::{Encoding, NvList, NvValue};
use cenote_rt::Result;

use crate::dsl::{Dataset, Dir};
use crate::mos;

/// Child of an existing dataset into which a receive writes.
const RECEIVE_CHILD: &str = "%recv";

/// Returns the token of a dataset with an interrupted resumable receive.
pub(crate) async fn token(dataset: &Dataset) -> Result<Option<String>> {
    Ok(saved(dataset).await?.and_then(|(_, list)| pack(&list)))
}

impl Dataset {
    /// Returns the dataset with what an interrupted resumable receive into this one has received:
    /// itself, or a hidden child.
    pub async fn saved_receive(&self) -> Result<Option<Self>> {
        match saved(self).await? {
            None => Ok(None),
            Some((object, _)) => self.pool().dataset_by_object(object).await.map(Some),
        }
    }
}

/// Returns the object of an interrupted receive into a dataset, and its state.
async fn saved(dataset: &Dataset) -> Result<Option<(u64, NvList)>> {
    if dataset.is_snapshot() {
        return Ok(None);
    }
    if let Some(list) = state(dataset, dataset.object()).await? {
        return Ok(Some((dataset.object(), list)));
    }
    let child: Option<Dir> = dataset.dir().child(dataset.mos(), RECEIVE_CHILD).await?;
    match child.map(|dir| dir.phys.head_dataset_obj) {
        None | Some(0) => Ok(None),
        Some(object) => Ok(state(dataset, object).await?.map(|list| (object, list))),
    }
}

/// Returns the state of the receive into the dataset in `object`.
async fn state(dataset: &Dataset, object: u64) -> Result<Option<NvList>> {
    let mos = dataset.mos();
    let value = |key| mos::extra(mos, object, key);
    let Some(to_guid) = value(key::RESUME_TOGUID).await? else { return Ok(None) };
    let mut list = NvList::new();
    let numbers = [
        ("fromguid", key::RESUME_FROMGUID),
        ("object", key::RESUME_OBJECT),
        ("offset", key::RESUME_OFFSET),
        ("bytes", key::RESUME_BYTES),
    ];
    for (name, key) in numbers {
        if let Some(number) = value(key).await?.and_then(|value| value.first()) {
            list.insert(name, NvValue::Uint64(number));
        }
    }
    list.insert("toguid", NvValue::Uint64(to_guid.first().unwrap_or(0)));
    if let Some(name) = value(key::RESUME_TONAME).await? {
        list.insert("toname", NvValue::String(name.as_str().unwrap_or_default().into()));
    }
    let flags = [
        ("largeblockok", key::RESUME_LARGEBLOCKOK),
        ("embedok", key::RESUME_EMBEDOK),
        ("compressok", key::RESUME_COMPRESSOK),
        ("rawok", key::RESUME_RAWOK),
    ];
    for (name, key) in flags {
        if value(key).await?.is_some() {
            list.insert(name, NvValue::Boolean);
        }
    }
    let arrays =
        [("redact_snaps", key::REDACTED_DATASETS), ("book_redact_snaps", key::RESUME_REDACT_SNAPS)];
    for (name, key) in arrays {
        if let Some(words) = value(key).await? {
            list.insert(name, NvValue::Uint64Array(words.words()));
        }
    }
    Ok(Some(list))
}

/// Packs a list into a token.
fn pack(list: &NvList) -> Option<String> {
    let packed = list.encode(Encoding::Xdr);
    let mut zlib = vec![0; packed.len() + 1024];
    let level = ZstdLevel::default();
    let len = compress(Compression::Gzip(6), level, &packed, &mut zlib)?;
    zlib.truncate(len);
    let checksum = fletcher4_first(&zlib);
    let mut token = format!("1-{checksum:x}-{:x}-", packed.len());
    for byte in zlib {
        let _ = write!(token, "{byte:02x}");
    }
    Some(token)
}

/// Returns the first word of Fletcher-4 over the whole 32-bit words of `bytes`.
fn fletcher4_first(bytes: &[u8]) -> u64 {
    let (words, _rest) = bytes.as_chunks::<4>();
    words.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from(u32::from_le_bytes(*word))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receive_resume_token_checksum_omits_trailing_bytes() {
        assert_eq!(fletcher4_first(&[1, 0, 0, 0, 2, 0, 0, 0, 9, 9]), 3);
    }
}
