//! Skein-512 with 256 bits of output and a key: the `skein` checksum (spec 02 §3.2).
//!
//!     key (32 bytes) -UBI-> G0 -UBI(config)-> G1 -UBI(data)-> G2 -UBI(0)-> 32 bytes
//!                                              ^
//!                                              prepared once per pool: [`Keyed`]
//!
//! Skein is a chain of one tweakable cipher, Threefish-512, whose 64-byte blocks are added to its
//! own output; the tweak holds the byte count and the purpose of the block. OpenZFS uses version
//! 1.3 of the algorithm with the pool's 32-byte salt as key, through Skein's own key block and not
//! as a prefix, so the first two steps are the same for every block of a pool.
//!
//! The 72 rounds are unrolled eight at a time: the word permutation between rounds then costs
//! nothing, because the macro names the words at their permuted positions.
//!
//! Sources: spec 02 §3.2 and §3.3; "The Skein Hash Function Family", version 1.3.

/// Bytes of one block of Threefish-512.
const BLOCK_BYTES: usize = 64;

/// The constant that is combined with the eight key words (`C240`).
const KEY_PARITY: u64 = 0x1bd1_1bda_a9fc_1a22;

/// Purpose of a chain of blocks: bits 56..61 of the second tweak word.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Purpose {
    Key = 0,
    Config = 4,
    Message = 48,
    Output = 63,
}

const FIRST: u64 = 1 << 62;
const FINAL: u64 = 1 << 63;

/// Schema "SHA3", version 1, 256 bits of output, no tree.
const CONFIG: [u64; 8] = [0x0000_0001_3341_4853, 256, 0, 0, 0, 0, 0, 0];
const CONFIG_BYTES: u64 = 32;

/// Skein-512-256 with its key and configuration already absorbed.
#[derive(Clone)]
pub struct Keyed {
    chain: [u64; 8],
}

impl Keyed {
    /// Absorbs `key`; hashing of each block starts from this state.
    pub fn new(key: &[u8; 32]) -> Keyed {
        let mut block = [0u8; BLOCK_BYTES];
        let (head, _) = block.split_at_mut(32);
        head.copy_from_slice(key);
        let keyed = encrypt_and_add(&[0; 8], tweak(32, Purpose::Key), &words(&block));
        Keyed { chain: encrypt_and_add(&keyed, tweak(CONFIG_BYTES, Purpose::Config), &CONFIG) }
    }

    /// The 32-byte digest of `data`.
    pub fn hash(&self, data: &[u8]) -> [u8; 32] {
        let chain = absorb(self.chain, data);
        let out = encrypt_and_add(&chain, tweak(8, Purpose::Output), &[0; 8]);
        let mut digest = [0; 32];
        for (bytes, word) in digest.chunks_exact_mut(8).zip(out) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }
}

/// The 32-byte keyed digest of `data`; [`Keyed`] is cheaper for many blocks.
pub fn skein_512_256_keyed(key: &[u8; 32], data: &[u8]) -> [u8; 32] {
    Keyed::new(key).hash(data)
}

/// Runs the message through the chain. All blocks but the last are complete; the last one is padded
/// with zeros, counted by its real bytes, and exists for an empty message too.
fn absorb(mut chain: [u64; 8], data: &[u8]) -> [u64; 8] {
    let whole = data.len().saturating_sub(1) / BLOCK_BYTES;
    let (blocks, rest) = data.split_at(whole * BLOCK_BYTES);
    let mut position = 0;
    let mut flags = FIRST;
    for block in blocks.as_chunks::<BLOCK_BYTES>().0 {
        position += BLOCK_BYTES as u64;
        let purpose = (Purpose::Message as u64) << 56;
        chain = encrypt_and_add(&chain, [position, purpose | flags], &words(block));
        flags = 0;
    }
    let mut last = [0u8; BLOCK_BYTES];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    let purpose = (Purpose::Message as u64) << 56;
    let tweak = [data.len() as u64, purpose | flags | FINAL];
    encrypt_and_add(&chain, tweak, &words(&last))
}

/// The tweak of a chain of one block.
fn tweak(position: u64, purpose: Purpose) -> [u64; 2] {
    [position, (purpose as u64) << 56 | FIRST | FINAL]
}

fn words(block: &[u8; BLOCK_BYTES]) -> [u64; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// One step of the chain: Threefish-512 of the block under `key` and `tweak`, plus the block.
#[inline]
#[expect(clippy::many_single_char_names, reason = "eight words of one state")]
fn encrypt_and_add(key: &[u64; 8], tweak: [u64; 2], block: &[u64; 8]) -> [u64; 8] {
    let [k0, k1, k2, k3, k4, k5, k6, k7] = *key;
    let k8 = KEY_PARITY ^ k0 ^ k1 ^ k2 ^ k3 ^ k4 ^ k5 ^ k6 ^ k7;
    let [t0, t1] = tweak;
    let t2 = t0 ^ t1;
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *block;

    macro_rules! mix {
        ($x:ident, $y:ident, $by:literal) => {
            $x = $x.wrapping_add($y);
            $y = $y.rotate_left($by) ^ $x;
        };
    }
    macro_rules! add_subkey {
        ($number:literal, [$($k:ident)*], $ta:ident, $tb:ident) => {
            add_subkey!(@ [$($k)*], $ta, $tb, $number)
        };
        (@ [$ka:ident $kb:ident $kc:ident $kd:ident $ke:ident $kf:ident $kg:ident $kh:ident],
         $ta:ident, $tb:ident, $number:literal) => {
            a = a.wrapping_add($ka);
            b = b.wrapping_add($kb);
            c = c.wrapping_add($kc);
            d = d.wrapping_add($kd);
            e = e.wrapping_add($ke);
            f = f.wrapping_add($kf.wrapping_add($ta));
            g = g.wrapping_add($kg.wrapping_add($tb));
            h = h.wrapping_add($kh.wrapping_add($number));
        };
    }
    macro_rules! four_rounds {
        ($($p:literal $q:literal $r:literal $s:literal)*) => {
            four_rounds!(@ $($p, $q, $r, $s),*)
        };
        (@ $p0:literal, $q0:literal, $r0:literal, $s0:literal,
           $p1:literal, $q1:literal, $r1:literal, $s1:literal,
           $p2:literal, $q2:literal, $r2:literal, $s2:literal,
           $p3:literal, $q3:literal, $r3:literal, $s3:literal) => {
            mix!(a, b, $p0); mix!(c, d, $q0); mix!(e, f, $r0); mix!(g, h, $s0);
            mix!(c, b, $p1); mix!(e, h, $q1); mix!(g, f, $r1); mix!(a, d, $s1);
            mix!(e, b, $p2); mix!(g, d, $q2); mix!(a, f, $r2); mix!(c, h, $s2);
            mix!(g, b, $p3); mix!(a, h, $q3); mix!(c, f, $r3); mix!(e, d, $s3);
        };
    }
    macro_rules! even_rounds {
        () => {
            four_rounds!(46 36 19 37  33 27 14 42  17 49 36 39  44 9 54 56);
        };
    }
    macro_rules! odd_rounds {
        () => {
            four_rounds!(39 30 34 24  13 50 10 17  25 29 39 43  8 35 56 22);
        };
    }

    add_subkey!(0, [k0 k1 k2 k3 k4 k5 k6 k7], t0, t1);
    even_rounds!();
    add_subkey!(1, [k1 k2 k3 k4 k5 k6 k7 k8], t1, t2);
    odd_rounds!();
    add_subkey!(2, [k2 k3 k4 k5 k6 k7 k8 k0], t2, t0);
    even_rounds!();
    add_subkey!(3, [k3 k4 k5 k6 k7 k8 k0 k1], t0, t1);
    odd_rounds!();
    add_subkey!(4, [k4 k5 k6 k7 k8 k0 k1 k2], t1, t2);
    even_rounds!();
    add_subkey!(5, [k5 k6 k7 k8 k0 k1 k2 k3], t2, t0);
    odd_rounds!();
    add_subkey!(6, [k6 k7 k8 k0 k1 k2 k3 k4], t0, t1);
    even_rounds!();
    add_subkey!(7, [k7 k8 k0 k1 k2 k3 k4 k5], t1, t2);
    odd_rounds!();
    add_subkey!(8, [k8 k0 k1 k2 k3 k4 k5 k6], t2, t0);
    even_rounds!();
    add_subkey!(9, [k0 k1 k2 k3 k4 k5 k6 k7], t0, t1);
    odd_rounds!();
    add_subkey!(10, [k1 k2 k3 k4 k5 k6 k7 k8], t1, t2);
    even_rounds!();
    add_subkey!(11, [k2 k3 k4 k5 k6 k7 k8 k0], t2, t0);
    odd_rounds!();
    add_subkey!(12, [k3 k4 k5 k6 k7 k8 k0 k1], t0, t1);
    even_rounds!();
    add_subkey!(13, [k4 k5 k6 k7 k8 k0 k1 k2], t1, t2);
    odd_rounds!();
    add_subkey!(14, [k5 k6 k7 k8 k0 k1 k2 k3], t2, t0);
    even_rounds!();
    add_subkey!(15, [k6 k7 k8 k0 k1 k2 k3 k4], t0, t1);
    odd_rounds!();
    add_subkey!(16, [k7 k8 k0 k1 k2 k3 k4 k5], t1, t2);
    even_rounds!();
    add_subkey!(17, [k8 k0 k1 k2 k3 k4 k5 k6], t2, t0);
    odd_rounds!();
    add_subkey!(18, [k0 k1 k2 k3 k4 k5 k6 k7], t0, t1);

    let [m0, m1, m2, m3, m4, m5, m6, m7] = *block;
    [a ^ m0, b ^ m1, c ^ m2, d ^ m3, e ^ m4, f ^ m5, g ^ m6, h ^ m7]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spec 02 §3.3: 512 bytes, byte i = i mod 256, salt 00..1f.
    #[test]
    fn spec_vector() {
        let key: [u8; 32] = std::array::from_fn(|i| i as u8);
        let data: Vec<u8> = (0..512).map(|i| i as u8).collect();
        let digest = skein_512_256_keyed(&key, &data);
        let found: Vec<u64> =
            digest.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
        let want = [0xdf06b17bad515284, 0xc1074e6c80f80357, 0x0564949cf231e28f, 0x3b30efa65148a406];
        assert_eq!(found, want);
    }

    /// A prefix never has the digest of the longer text, also around the block border.
    #[test]
    fn prefixes_have_other_digests() {
        let keyed = Keyed::new(&[7; 32]);
        let zeros = [0u8; 200];
        let mut seen = std::collections::BTreeSet::new();
        for length in [0, 1, 63, 64, 65, 127, 128, 129, 200] {
            assert!(seen.insert(keyed.hash(&zeros[..length])), "length {length}");
        }
    }
}
