//! Structures that are arrays of u64: the form of most numbers in the MOS.
//!
//! A bonus buffer, a ZAP value or an object's data is often just u64 words. They arrive here in
//! little-endian (a foreign block was swapped by its type when it was read), so only the meaning of
//! a short buffer must be decided. Old software wrote shorter forms of several structures (bpobj,
//! space map, indirect mapping, scan), and a missing tail always means zero: [`padded`] is for
//! those, [`exact`] for structures that never had another length.

/// The first `N` words, or `None` if there are fewer.
#[must_use]
pub fn exact<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    (bytes.len() / 8 >= N).then(|| padded(bytes))
}

/// The first `N` words; missing words read as zero, and so does a last, partial word.
#[must_use]
pub fn padded<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (slot, word) in words.iter_mut().zip(iter(bytes)) {
        *slot = word;
    }
    words
}

/// All whole words of `bytes`.
pub fn iter(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> + Clone + '_ {
    let (words, _partial) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

/// The bytes of `words`.
#[must_use]
pub fn to_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// `N` bytes at `offset`.
#[must_use]
pub fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk::<N>().copied()
}

/// The u16 at byte `offset`.
#[must_use]
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_le_bytes)
}

/// The u32 at byte `offset`.
#[must_use]
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_le_bytes)
}

/// The u64 at byte `offset`.
#[must_use]
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array_at(bytes, offset).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_buffers_are_refused_or_zero_extended() {
        let bytes = to_bytes(&[1, 2]);
        assert_eq!(exact::<2>(&bytes), Some([1, 2]));
        assert_eq!(exact::<3>(&bytes), None);
        assert_eq!(padded::<3>(&bytes), [1, 2, 0]);
        assert_eq!(padded::<2>(&bytes[..9]), [1, 0]);
        assert_eq!(u16_at(&bytes, 8), Some(2));
        assert_eq!(u64_at(&bytes, 9), None);
        assert_eq!(u64_at(&bytes, usize::MAX), None);
    }
}
