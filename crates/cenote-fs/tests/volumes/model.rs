//! A volume, a model of its bytes, and random requests.

use std::sync::Arc;

use cenote_fs::WritableVolume;
use cenote_rt::{Buf, Result, Rng};

/// One request.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Write { offset: u64, bytes: Vec<u8>, is_fua: bool },
    Zero { offset: u64, len: u64, no_hole: bool, is_fua: bool },
    Discard { offset: u64, len: u64 },
    Flush,
    Sync,
}

/// Draws a request on a volume of that size: at any alignment, more often at that of sectors, and
/// some across many blocks.
pub(crate) fn draw(rng: &mut Rng, size: u64) -> Op {
    let unit = [1, 512, 4096, 16 << 10][rng.below(4) as usize];
    let most = [1, 4, 40][rng.below(3) as usize];
    let len = (unit * (1 + rng.below(most)) - if unit > 512 { 0 } else { rng.below(unit) }).max(1);
    let len = len.min(size);
    let offset = rng.below(size - len + 1) / unit * unit;
    let is_fua = rng.below(4) == 0;
    match rng.below(20) {
        0..11 => {
            let mut bytes = vec![0; len as usize];
            // Some of it is zeros, some compressible.
            match rng.below(4) {
                0 => {}
                1 => bytes.fill(rng.below(256) as u8),
                _ => rng.fill(&mut bytes),
            }
            Op::Write { offset, bytes, is_fua }
        }
        11..14 => Op::Discard { offset, len },
        14..16 => Op::Zero { offset, len, no_hole: rng.below(2) == 0, is_fua },
        16..18 => Op::Flush,
        _ => Op::Sync,
    }
}

impl Op {
    /// Returns the bytes that it changes, and their new contents.
    pub(crate) fn effect(&self, block_size: u64) -> Option<(u64, Vec<u8>)> {
        match self {
            Self::Write { offset, bytes, .. } => Some((*offset, bytes.clone())),
            Self::Zero { offset, len, .. } => Some((*offset, vec![0; *len as usize])),
            Self::Discard { offset, len } => {
                let start = offset.next_multiple_of(block_size);
                let end = (offset + len) / block_size * block_size;
                (start < end).then(|| (start, vec![0; (end - start) as usize]))
            }
            Self::Flush | Self::Sync => None,
        }
    }

    pub(crate) fn is_durable(&self) -> bool {
        match self {
            Self::Write { is_fua, .. } | Self::Zero { is_fua, .. } => *is_fua,
            _ => false,
        }
    }

    pub(crate) async fn perform(&self, volume: &WritableVolume, rng: &mut Rng) -> Result<()> {
        match self {
            Self::Write { offset, bytes, is_fua } => {
                // As a list of buffers with arbitrary boundaries.
                let cut = rng.below(bytes.len() as u64 + 1) as usize;
                let bufs = [&bytes[..cut], &bytes[cut..]].map(|part| Buf::from(part.to_vec()));
                volume.write(*offset, bufs.into(), *is_fua).await
            }
            Self::Zero { offset, len, no_hole, is_fua } => {
                volume.write_zeroes(*offset, *len, *no_hole, *is_fua).await
            }
            Self::Discard { offset, len } => volume.discard(*offset, *len).await,
            Self::Flush => volume.flush().await,
            Self::Sync => volume.engine().sync().await.map(drop),
        }
    }
}

/// Reads all bytes of a volume, in parts of random sizes.
pub(crate) async fn read_all(volume: &WritableVolume, rng: &mut Rng) -> Result<Vec<u8>> {
    let (size, mut bytes) = (volume.size(), Vec::new());
    while (bytes.len() as u64) < size {
        let rest = size - bytes.len() as u64;
        let len = (1 + rng.below(300_000)).min(rest);
        bytes.extend_from_slice(&volume.read(bytes.len() as u64, len as usize).await?);
    }
    Ok(bytes)
}

/// Checks that the reported holes agree with the contents, and cover all of the range.
pub(crate) async fn check_status(volume: &Arc<WritableVolume>, model: &[u8]) {
    let size = volume.size();
    let extents = volume.block_status(0, size).await.unwrap();
    let mut at = 0;
    let mut last = None;
    for extent in extents {
        assert_eq!(extent.offset, at);
        assert_ne!(last, Some(extent.is_hole), "neighbours differ");
        let range = at as usize..(at + extent.len) as usize;
        assert!(!extent.is_hole || model[range].iter().all(|byte| *byte == 0), "{extent:?}");
        last = Some(extent.is_hole);
        at += extent.len;
    }
    assert_eq!(at, size);
}
