//! Edon-R-512 and the keyed `edonr` checksum made of it (spec 02 §3.2).
//!
//!     salt --H--> h --H--> hh        K = h || hh: exactly one 128-byte block
//!     checksum = H(K || data)[0..32)
//!
//! Edon-R mixes vectors of eight words with one operation, the quasigroup product `Q`, eight times
//! per 128-byte block. There is no maintained Rust crate of it, and no other program stores data
//! with it, so it is implemented here in the table form of the specification.
//!
//! The key block is the same for every block of a pool; [`Keyed`] keeps the state after it.
//!
//! Sources: spec 02 §3.2 (table form) and §3.3 (vectors).

/// Bytes of one block of the hash.
const BLOCK_BYTES: usize = 128;

/// Added to the first row of the left operand of `Q`; its complement to that of the right.
const ROW_CONSTANT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

type Vector = [u64; 8];

/// The chaining state: two vectors, the second of which is the digest.
#[derive(Clone)]
struct State {
    left: Vector,
    right: Vector,
}

/// Edon-R with the pool's salt already absorbed.
#[derive(Clone)]
pub struct Keyed {
    state: State,
}

impl Keyed {
    /// Absorbs the key block of `salt`.
    pub fn new(salt: &[u8; 32]) -> Keyed {
        let once = edonr_512(salt);
        let twice = edonr_512(&once);
        let mut key = [0; BLOCK_BYTES];
        let (head, tail) = key.split_at_mut(64);
        head.copy_from_slice(&once);
        tail.copy_from_slice(&twice);
        let mut state = State::initial();
        state.absorb(&key);
        Keyed { state }
    }

    /// The first 32 bytes of the keyed digest of `data`.
    pub fn hash(&self, data: &[u8]) -> [u8; 32] {
        let digest = self.state.clone().finish(BLOCK_BYTES as u64, data);
        let mut half = [0; 32];
        for (to, from) in half.iter_mut().zip(digest) {
            *to = from;
        }
        half
    }
}

/// The 64-byte digest of `data`.
pub fn edonr_512(data: &[u8]) -> [u8; 64] {
    State::initial().finish(0, data)
}

/// The `edonr` checksum of `data`; [`Keyed`] is cheaper for many blocks.
pub fn edonr_512_256_keyed(salt: &[u8; 32], data: &[u8]) -> [u8; 32] {
    Keyed::new(salt).hash(data)
}

impl State {
    /// Bytes 0x80, 0x81, ... 0xff, big-endian in each word.
    fn initial() -> State {
        const STEP: u64 = 0x0808_0808_0808_0808;
        let word = |i: u64| 0x8081_8283_8485_8687 + STEP * i;
        State {
            left: std::array::from_fn(|i| word(i as u64)),
            right: std::array::from_fn(|i| word(i as u64 + 8)),
        }
    }

    /// Absorbs the rest of a message of which `before` bytes were absorbed, and its padding.
    fn finish(mut self, before: u64, data: &[u8]) -> [u8; 64] {
        let (blocks, rest) = data.as_chunks::<BLOCK_BYTES>();
        for block in blocks {
            self.absorb(block);
        }
        let mut last = [0u8; BLOCK_BYTES];
        let bytes = rest.iter().chain(&[0x80]);
        for (to, from) in last.iter_mut().zip(bytes) {
            *to = *from;
        }
        // The marker and the length need nine bytes; without room they get their own block.
        if rest.len() + 9 > BLOCK_BYTES {
            self.absorb(&last);
            last = [0; BLOCK_BYTES];
        }
        let bits = before.wrapping_add(data.len() as u64).wrapping_mul(8);
        if let Some(tail) = last.last_chunk_mut::<8>() {
            *tail = bits.to_le_bytes();
        }
        self.absorb(&last);
        let mut digest = [0; 64];
        for (to, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(self.right) {
            *to = word.to_le_bytes();
        }
        digest
    }

    #[inline]
    fn absorb(&mut self, block: &[u8; BLOCK_BYTES]) {
        let mut words = [0u64; 16];
        for (word, bytes) in words.iter_mut().zip(block.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let a: Vector = std::array::from_fn(|i| words[i]);
        let b: Vector = std::array::from_fn(|i| words[i + 8]);

        let mut x = product(&reversed(&b), &a);
        let mut y = product(&x, &b);
        x = product(&self.right, &x);
        y = product(&x, &y);
        x = product(&x, &self.left);
        y = product(&y, &x);
        x = product(&reversed(&a), &x);
        y = product(&x, &y);
        for i in 0..8 {
            self.left[i] ^= b[i] ^ x[i];
            self.right[i] ^= a[i] ^ y[i];
        }
    }
}

fn reversed(vector: &Vector) -> Vector {
    let mut reversed = *vector;
    reversed.reverse();
    reversed
}

macro_rules! sum {
    ($first:expr $(, $more:expr)*) => { $first $(.wrapping_add($more))* };
}

/// The quasigroup product `Q(x, y)`, row by row of the specification's table.
///
/// Rows overlap: sums of two and four words are reused, which saves half of the additions.
#[inline]
fn product(x: &Vector, y: &Vector) -> Vector {
    let [x0, x1, x2, x3, x4, x5, x6, x7] = *x;
    let (x01, x23, x56) = (sum!(x0, x1), sum!(x2, x3), sum!(x5, x6));
    let (x0147, x2356) = (sum!(x01, x4, x7), sum!(x23, x56));
    let s0 = sum!(x0147, x2, ROW_CONSTANT);
    let s1 = sum!(x0147, x3).rotate_left(5);
    let s2 = sum!(x0147, x6).rotate_left(15);
    let s3 = sum!(x2356, x7).rotate_left(22);
    let s4 = sum!(x2356, x1).rotate_left(31);
    let s5 = sum!(x23, x0, x4, x5).rotate_left(40);
    let s6 = sum!(x01, x56, x7).rotate_left(50);
    let s7 = sum!(x2356, x4).rotate_left(59);

    let [y0, y1, y2, y3, y4, y5, y6, y7] = *y;
    let (y01, y25, y34, y67) = (sum!(y0, y1), sum!(y2, y5), sum!(y3, y4), sum!(y6, y7));
    let (y0125, y0134) = (sum!(y01, y25), sum!(y01, y34));
    let (y2567, y3467) = (sum!(y25, y67), sum!(y34, y67));
    let t0 = sum!(y0125, y7, !ROW_CONSTANT);
    let t1 = sum!(y0134, y6).rotate_left(10);
    let t2 = sum!(y0125, y3).rotate_left(19);
    let t3 = sum!(y3467, y2).rotate_left(29);
    let t4 = sum!(y0134, y5).rotate_left(36);
    let t5 = sum!(y2567, y4).rotate_left(44);
    let t6 = sum!(y2567, y1).rotate_left(48);
    let t7 = sum!(y3467, y0).rotate_left(55);

    [
        sum!(s0 ^ s1 ^ s4, t0 ^ t1 ^ t5),
        sum!(s0 ^ s4 ^ s7, t2 ^ t6 ^ t7),
        sum!(s1 ^ s6 ^ s7, t0 ^ t1 ^ t3),
        sum!(s2 ^ s3 ^ s4, t0 ^ t3 ^ t4),
        sum!(s0 ^ s1 ^ s7, t1 ^ t2 ^ t5),
        sum!(s3 ^ s5 ^ s6, t3 ^ t4 ^ t6),
        sum!(s2 ^ s5 ^ s6, t2 ^ t5 ^ t7),
        sum!(s2 ^ s3 ^ s5, t4 ^ t6 ^ t7),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(bytes: &[u8]) -> Vec<u64> {
        bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect()
    }

    /// Spec 02 §3.2.
    #[test]
    fn abc() {
        assert_eq!(edonr_512(b"abc")[..8], 0x1b14_db15_5f1d_4065_u64.to_be_bytes());
    }

    /// Spec 02 §3.3: 512 bytes, byte i = i mod 256, salt 00..1f.
    #[test]
    fn spec_vector() {
        let salt: [u8; 32] = std::array::from_fn(|i| i as u8);
        let data: Vec<u8> = (0..512).map(|i| i as u8).collect();
        let want = [0x86f009c293823406, 0x1787f335116ef352, 0x616de2d3955eb1e1, 0x0f0e3039494fa11f];
        assert_eq!(words(&edonr_512_256_keyed(&salt, &data)), want);
    }

    /// The keyed digest equals the plain hash of key block and data, for every length of the tail.
    #[test]
    fn keyed_is_the_hash_behind_a_key_block() {
        let salt = [9; 32];
        let once = edonr_512(&salt);
        let twice = edonr_512(&once);
        for length in 0..300 {
            let data: Vec<u8> = (0..length).map(|i| (i * 7) as u8).collect();
            let whole: Vec<u8> = [&once[..], &twice[..], &data[..]].concat();
            assert_eq!(Keyed::new(&salt).hash(&data), edonr_512(&whole)[..32], "length {length}");
        }
    }
}
