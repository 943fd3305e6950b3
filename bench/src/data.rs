//! Input of the codecs: the same bytes on every machine.

/// Random bytes.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    std::iter::repeat_with(|| next(&mut state)).take(len).collect()
}

/// Lines of a log: words of a small vocabulary, numbers, now and then a run of zeros; like text,
/// they compress to somewhat less than half.
pub(crate) fn text(len: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "read", "write", "vdev", "block", "pointer", "checksum", "at", "offset", "of", "the",
        "dataset", "snapshot", "object", "level", "and", "txg",
    ];
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut text = Vec::with_capacity(len + 64);
    while text.len() < len {
        match next(&mut state) {
            0..=1 => text.resize(text.len() + 100, 0),
            2..=80 => {
                let number = u32::from(next(&mut state)) * u32::from(next(&mut state));
                text.extend(format!("{number} ").bytes());
            }
            81..=95 => text.push(b'\n'),
            byte => {
                text.extend(WORDS[usize::from(byte % 16)].bytes());
                text.push(b' ');
            }
        }
    }
    text.truncate(len);
    text
}

/// 64-byte words, half of each random, like the data of the engine's benchmark.
pub(crate) fn half_noise(len: usize) -> Vec<u8> {
    let mut words = noise(len);
    for word in words.chunks_exact_mut(64) {
        word[32..].copy_from_slice(b"cenote cenote cenote cenote ####");
    }
    words
}

/// An indirect block of a file with one block in nine: a pointer, then holes with a birth.
pub(crate) fn hole_pointers(len: usize) -> Vec<u8> {
    let mut pointers = noise(len);
    for (i, pointer) in pointers.chunks_exact_mut(128).enumerate() {
        if i % 9 != 0 {
            pointer.fill(0);
            pointer[54..56].copy_from_slice(&[19, 128]);
            pointer[80] = 7;
        }
    }
    pointers
}

/// A repeated eight-byte word, as in a table of one value.
pub(crate) fn words(len: usize) -> Vec<u8> {
    b"\x10\0\0\0\0\0\0\x80".iter().copied().cycle().take(len).collect()
}

fn next(state: &mut u64) -> u8 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 56) as u8
}
