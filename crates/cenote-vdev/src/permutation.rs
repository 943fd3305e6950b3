//! dRAID permutations: which child serves which column, by permutation number.
//!
//! The table is shuffled with a generator whose seed depends on the number of children. Seeds and
//! generator are part of the format: one wrong number would misplace every block behind it, so each
//! table is checked against a checksum before it is used (spec 06 §6.3, §21.1).

use std::sync::Arc;

use cenote_rt::FixedMap;
use cenote_rt::lock::{Mutex, Rank};

/// The fixed half of the generator's initial state.
const FIRST_WORD: u64 = 0xd7a1d5eed;

/// The permutations for one number of children.
#[derive(Debug)]
pub(crate) struct Permutation {
    children: usize,
    /// Rows, one after the other; an entry is the index of a child.
    table: Vec<u8>,
}

impl Permutation {
    /// Returns the table for `children`, from a cache.
    pub(crate) fn of(children: usize) -> Option<Arc<Self>> {
        static CACHE: Mutex<Option<FixedMap<usize, Arc<Permutation>>>> =
            Mutex::new(Rank::Permutations, None);
        let (seed, sum) = *SEEDS.get(children.checked_sub(2)?)?;
        let mut cache = CACHE.lock();
        let cache = cache.get_or_insert_with(FixedMap::default);
        if let Some(found) = cache.get(&children) {
            return Some(Arc::clone(found));
        }
        let made = Arc::new(Self { children, table: shuffle(children, seed) });
        if made.sum() != sum {
            return None;
        }
        cache.insert(children, Arc::clone(&made));
        Some(made)
    }

    /// The child of `column` in permutation `number`.
    pub(crate) fn child(&self, number: u64, column: usize) -> usize {
        // Each row of the table is used once per child, rotated by one each time.
        let number = (number % self.table.len() as u64) as usize;
        let (row, rotation) = (number / self.children, number % self.children);
        let child = usize::from(self.table[row * self.children + column]);
        (child + rotation) % self.children
    }

    /// Sum of the table's little-endian 32-bit words.
    fn sum(&self) -> u64 {
        let (words, _) = self.table.as_chunks::<4>();
        words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum()
    }
}

/// Generates the table: each row is a further shuffle of the row before.
fn shuffle(children: usize, seed: u64) -> Vec<u8> {
    let rows = if children <= 31 { 256 } else { 512 };
    let mut draws = Draws { a: FIRST_WORD, b: seed };
    let mut row: Vec<u8> = (0..=255).take(children).collect();
    let mut table = Vec::with_capacity(rows * children);
    for _ in 0..rows {
        for last in (1..children).rev() {
            row.swap(last, (draws.next() % (last as u64 + 1)) as usize);
        }
        table.extend_from_slice(&row);
    }
    table
}

/// xoroshiro128++.
struct Draws {
    a: u64,
    b: u64,
}

impl Draws {
    fn next(&mut self) -> u64 {
        let Self { a, b } = *self;
        let mixed = a ^ b;
        self.a = a.rotate_left(49) ^ mixed ^ (mixed << 21);
        self.b = mixed.rotate_left(28);
        a.wrapping_add(b).rotate_left(17).wrapping_add(a)
    }
}

/// Seed and checksum of the table by number of children, from 2 on (spec 06 §21.1).
#[rustfmt::skip]
const SEEDS: [(u64, u64); 254] = [
    (0x89ef3dabbcc7de37, 0x433d433d), (0x89a57f3de98121b4, 0xbcd8b7b5), (0xc9ea9ec82340c885, 0x1819d7c69),
    (0xf46733b7f4d47dfd, 0x2a1648d74), (0x88c3c62d8585b362, 0x3d3b0c2c4), (0x3a65d809b4d1b9d5, 0x55c4183ee),
    (0xe98930e3c5d2e90a, 0x6edfb0329), (0x5a5430036b982ccb, 0x8ceaf6934), (0x92bf389e9eadac74, 0xb26668c09),
    (0x74ccebf1dcf3ae80, 0xdd691358c), (0x8847e41a1a9f5671, 0x10a0c63c8e), (0x7481b56debf0e637, 0x1424121fe4),
    (0x559b8c44065f8967, 0x16ab2ff079), (0x34c49545a2ee7f01, 0x1a6028efd6), (0xb85f4fa81a7698f7, 0x1e95ff5e66),
    (0x6353e47b7e47aba0, 0x21a81fa0fe), (0xaa549746b1cbb81c, 0x26f02494c9), (0x892e343f2f31d690, 0x29eb392835),
    (0x76914824db98cc3f, 0x3004f31a7c), (0x4b3cbabf9cfb1d0f, 0x36363a2408), (0xf45c77abb4f035d4, 0x38dd0f3e84),
    (0x5e18bd7f3fd4baf4, 0x3f0660391f), (0xa7b3a4d285d6503b, 0x443dfc9ff6), (0x56ac7dd967521f5a, 0x4b03a87eb7),
    (0x3a42dfda4eb880f7, 0x522c719bba), (0xd200d2fc6b54bf60, 0x5760b4fdf5), (0xc52605bbd486c546, 0x5e00d8f74c),
    (0xc761779e63cd762f, 0x67be3cd85c), (0xca577b1e07f85ca5, 0x6f5517f3e4), (0xfd50a593c518b3d4, 0x7370e7778f),
    (0xc6c87ba5b042650b, 0xf7eb08a156), (0xc3880d0c9d458304, 0x10734b5d160), (0xe920927e4d8b2c97, 0x118c1edbce0),
    (0x8da7fcda87bde316, 0x12a3e9f9110), (0xcf09937491514a29, 0x13bd6a24bef), (0x9b5abbf345cbd7cc, 0x14b9d90fac3),
    (0x506312a44668d6a9, 0x15e1b5f6148), (0x71659ede62b4755f, 0x173ef029bcd), (0xa7fde73fb74cf2d7, 0x1866fb72748),
    (0x19e8b461a1dea1d3, 0x1a046f76b23), (0x031c9b868cc3e976, 0x1afa64c49d3), (0xbaa5125faa781854, 0x1c76789e278),
    (0x4ed55052550d721b, 0x1d800ccd8eb), (0x0fd63ddbdff90677, 0x1f08ad59ed2), (0x36d66546de7fdd6f, 0x2016f09574b),
    (0x99f997e7eafb69d7, 0x21e42e47cb6), (0xbecd9c2571312c5d, 0x2320fe2872b), (0xd97371329e488a32, 0x24cd73f2ca7),
    (0x30e9b136670749ee, 0x2681c83b0e0), (0x11ad6bc8f47aaeb4, 0x27e9261b5d5), (0x68e445300af432c1, 0x29aa0eb7dbf),
    (0x910fb561657ea98c, 0x2b3dca04853), (0xd619693d8ce5e7a5, 0x2cc280e9c97), (0x24e281f564dbb60a, 0x2e9fa842713),
    (0x947a7d3bdaab44c5, 0x3046680f72e), (0x2d44fec9c093e0de, 0x324198ba810), (0x87743c272d29bb4c, 0x33ec48c9ac9),
    (0x96aa3b6f67f5d923, 0x34faead902c), (0x94a4f1faf520b0d3, 0x37d713ab005), (0xb13ed3a272f711a2, 0x397368f3cbd),
    (0x3b1b11805fa4a64a, 0x3b8a5e2840c), (0x4c74caad9172ba71, 0x3d4be280290), (0x035ff643923dd29e, 0x3fad6c355e1),
    (0x768e9171b11abd3c, 0x40eb07fed20), (0x75880e6f78a13ddd, 0x4433d6acf14), (0x910b9714f698a877, 0x451ea65d5db),
    (0x87f5db6f9fdcf5c7, 0x4732169e3f7), (0x836d4968fbaa3706, 0x4954068a380), (0xc567d73a036421ab, 0x4bd7cb7bd3d),
    (0x619df40f240b8fed, 0x4e376c2e972), (0x42763a680d5bed8e, 0x5084275c680), (0x5866f064b3230431, 0x52906f2c9ab),
    (0x9fa08548b1621a44, 0x54708019247), (0xb6053078ce0fc303, 0x572cc5c72b0), (0x4a7aad7bf3890923, 0x58e987bc8e9),
    (0xe165613fd75b5a53, 0x5c20473a211), (0x3ff154ac878163a6, 0x5d659194bf3), (0x24b93ade0aa8a532, 0x60a201c4f8e),
    (0xc18e2d14cd9bb554, 0x62c55cfe48c), (0x98cc78302feb58b6, 0x66656a07194), (0xc6c5fd5a2abc0543, 0x67cff94fbf8),
    (0xa7962f514acbba21, 0x6ab7b5afa2e), (0xba02545069ddc6dc, 0x6d19861364f), (0x447c73192c35073e, 0x6fce315ce35),
    (0x48beef9e2d42b0c2, 0x720a8e38b6b), (0x4874cf98541a35e0, 0x758382a2273), (0xad4cf8333a31127a, 0x781e1651b1b),
    (0x47ae4859d57888c1, 0x7b27edbe5bc), (0x06f7723cfe5d1891, 0x7dc2a96d8eb), (0xd4e44218d660576d, 0x80ac46f02d5),
    (0x7066702b0d5be1f2, 0x832c96d154e), (0x011209b4f9e11fb9, 0x85eefda104c), (0x47ffba30a0b35708, 0x899badc32dc),
    (0x1a95a6ac4538aaa8, 0x8b6b69a42b2), (0xbda2b239bb2008eb, 0x8f22d2de38a), (0x7ffa0bea90355c6c, 0x92e5b23b816),
    (0x1d56ba34be426795, 0x94f482e5d1b), (0x0aa89d45c502e93d, 0x977d94a98ce), (0x54369449f6857774, 0x9c06c9b34cc),
    (0xf7d4dd8445b46765, 0x9e5dc542259), (0xfa8866312f169469, 0xa16b54eae93), (0xd8a5aea08aef3ff9, 0xa381d2cbfe7),
    (0x66bcd2c3d5f9ef0e, 0xa8191817be7), (0x3fb13a47a012ec81, 0xab562b9a254), (0x43100f01c9e5e3ca, 0xaeee84c185f),
    (0xca09c50ccee2d054, 0xb1c359c047d), (0xd7176732ac503f9b, 0xb578bc52a73), (0xed206e51f8d9422d, 0xb8083e0d960),
    (0x17ead5dc6ba0dcd6, 0xbcfb1a32ca8), (0x5f1dc21e38a969eb, 0xc0171becdd6), (0xddaa973de33ec528, 0xc3edaba4b95),
    (0x2a5eccd7735a3630, 0xc630664e7df), (0xafcccee5c0b71446, 0xcb65392f6e4), (0x8fa30c5e7b147e27, 0xcd4db391e55),
    (0x5afe0711fdfafd82, 0xd08cb4ec35d), (0x533a6090238afd4c, 0xd336f115d1b), (0x90cf11b595e39a84, 0xd8e041c2048),
    (0x0d61a3b809444009, 0xdcb798afe35), (0x7f34da0f54b0d114, 0xdf3922664e1), (0xa52258d5b72f6551, 0xe4d37a9872d),
    (0xc1de54d7672878db, 0xe6583a94cf6), (0x1d03354316a414ab, 0xebffc50308d), (0xcebdcc377665412c, 0xedee1997cea),
    (0x4ddd4c04b1a12344, 0xf21d64b373f), (0x64fc8f94e3973658, 0xf8f87a8896b), (0x68765f78034a334e, 0xfb8fe62197e),
    (0xaf36b871a303e816, 0xfec6f3afb1e), (0x2a4cbf73866c3a28, 0x1027febfe4e5), (0x9cb128aacdcd3b2f, 0x106aa8ac569d),
    (0x5511d41c55869124, 0x10bbd755ddf1), (0x42f92461937f284a, 0x10fb8bceb3b5), (0xe2d89a1cf6f1f287, 0x114cf5331e34),
    (0xdc631a038956200e, 0x116428d2adc5), (0xb2e5ac222cd236be, 0x11ca88e4d4d2), (0xbc7d8236655d88e7, 0x11e39cb94e66),
    (0x073e02d88d2d8e75, 0x123136c7933c), (0x3ddb9c3873166be0, 0x1280e4ec6d52), (0x7d3b1a845420e1b5, 0x12c2e7cd6a44),
    (0x60102308aa7b2a6c, 0x12fc490e6c7d), (0xdb22bb2f9eb894aa, 0x1343f5a85a1a), (0xd853f879a13b1606, 0x13bb7d5f9048),
    (0x001620a03f804b1d, 0x13e74cc794fd), (0xfdb52dda76fbf667, 0x1442d2f22480), (0xa9160110f66e24ff, 0x144b899f9dbb),
    (0x77306a30379ae03b, 0x14cb98eb1f81), (0x14f5985d2752319d, 0x14feab821fc9), (0xa4b8ff11de7863f8, 0x154a0e60b9c9),
    (0x44b345426455c1b3, 0x15999c3c569c), (0x272677826049b46c, 0x15c9697f4b92), (0x2f9216e2cd74fe40, 0x162b1f7bbd39),
    (0x706ae3e763ad8771, 0x1661371c55e1), (0xf7fd345307c2480e, 0x16e251f28b6a), (0x6e94e3d26b3139eb, 0x16f2429bb8c6),
    (0x5458bbfbb781fcba, 0x173efdeca1b9), (0xa80e2afeccd93b33, 0x17bfdcb78adc), (0x1e4ccbb22796cf9d, 0x1826fdcc39c9),
    (0x8fba4b676aaa3663, 0x1841a1379480), (0xf82b843814b315fa, 0x18886e19b8a3), (0x7f21e920ecf753a3, 0x191812ca0ea7),
    (0x48bb8ea2c4caa620, 0x192f310faccf), (0x5cdb652b4952c91b, 0x199e1d7437c7), (0x6ac1ba6f78c06cd4, 0x19cd11f82c70),
    (0x9faf5f9ca2669a56, 0x1a18d5431f6a), (0xaa57e9383eb01194, 0x1a9e7d253d85), (0x896967bf495c34d2, 0x1afb8319b9fc),
    (0xdfad5f05de225f1b, 0x1b3a59c3093b), (0xfd299a99f9f2abdd, 0x1bb6f1a10799), (0xdda239e798fe9fd4, 0x1bfae0c9692d),
    (0x5fca670414a32c3e, 0x1c22129dbcff), (0x1bb8934314b087de, 0x1c955db36cd0), (0xd96394b4b082200d, 0x1cfc8619b7e6),
    (0xb612a7735b1c8cbc, 0x1d303acdd585), (0x28e7430fe5875fe1, 0x1d7ed5b3697d), (0x5038e89efdd981b9, 0x1dc40ec35c59),
    (0x075fd78f1d14db7c, 0x1e31c83b4a2b), (0xc50fafdb5021be15, 0x1e7cdac82fbc), (0xe6dc7572ce7b91c7, 0x1edd8bb454fc),
    (0x21f7843e7beda537, 0x1f3a8e019d6c), (0xc83385e20b43ec82, 0x1f70735ec137), (0xca818217dddb21fd, 0x201ca44c5a3c),
    (0xe6035defea48f933, 0x2038e3346658), (0x47262a4f953dac5a, 0x20c2e554314e), (0xe24c7246260873ea, 0x21197e618d64),
    (0xeef6b57c9b58e9e1, 0x217ea48ecddc), (0x2becd3346e386142, 0x21c496d4a5f9), (0x63c6207bdf3b40a3, 0x220e0f2eec0c),
    (0x3056ce8989767d4b, 0x228eb76cd137), (0x91af61c307cee780, 0x22e17e2ea501), (0xda359da225f6d54f, 0x2358a2debc19),
    (0x0a5f7a2a55607ba0, 0x238a79dac18c), (0x27bb75bf5224638a, 0x2403a58e2351), (0x1ebfdb94630f5d0f, 0x2492a10cb339),
    (0x6eae5e51d9c5f6fb, 0x24ce4bf98715), (0x08d903b4daedc2e0, 0x250d1e15886c), (0xc722a2f7fa7cd686, 0x258a99ed0c9e),
    (0x8f71faf0e54e361d, 0x25dee11976f5), (0x87f64695c91a54e7, 0x264e00a43da0), (0xc719cbac2c336b92, 0x26d327277ac1),
    (0xe7e647afaf771ade, 0x27523a5c44bf), (0x12d4b5c38ce8c946, 0x273898432545), (0xf2e0cd4067bdc94a, 0x27e47bb2c935),
    (0x21b79f14d6d947d3, 0x281e64977f0d), (0x515093f952f18cd6, 0x289691a473fd), (0xd47b160a1b1022c8, 0x2903e8b52411),
    (0xc02fc96684715a16, 0x297515608601), (0xef51e68efba72ed0, 0x29ef73604804), (0x9e3be6e5448b4f33, 0x2a2846ed074b),
    (0x81d446c6d5fec063, 0x2a92ca693455), (0xff215de8224e57d5, 0x2b2271fe3729), (0xe2524d9ba8f69796, 0x2b64b99c3ba2),
    (0xf6b28e26097b7e4b, 0x2bd768b6e068), (0x893a487f30ce1644, 0x2c67f722b4b2), (0x386566c3fc9871df, 0x2cc1cf8b4037),
    (0x1e0ed78edf1f558a, 0x2d3948d36c7f), (0xe3bc20c31e61f113, 0x2d6d6b12e025), (0xd6c3ad2e23021882, 0x2deff7572241),
    (0xb4a9f95cf0f69c5a, 0x2e67d537aa36), (0x6e98ed6f6c38e82f, 0x2e9720626789), (0x2e01edba33fddac7, 0x2f407c6b0198),
    (0x559d02e1f5f57ccc, 0x2fb6a5ab4f24), (0xac18f5a916adcd8e, 0x304ae1c5c57e), (0x15789fbaddb86f4b, 0x306f6e019c78),
    (0xf4a9c36d5bc4c408, 0x30da40434213), (0xf640f90fd2727f44, 0x3189ed37b90c), (0xb5313d390d61884a, 0x31e152616b37),
    (0x4bae6b3ce9160939, 0x321f40aeac42), (0x838c34480f1a66a1, 0x32f389c0f78e), (0xb1c4a52c8e3d6060, 0x330062a40284),
    (0xe0f1110c6d0ed822, 0x338be435644f), (0x9f1a8ccdcea68d4b, 0x34045a4e97e1), (0x3261ed62223f3099, 0x34702cfc401c),
    (0xf2191e2311022d65, 0x3509dd19c9fc), (0xf102a395c2033abc, 0x35654dc96fae), (0x11fe378f027906b6, 0x35b5193b0264),
    (0xf777f2c026b337aa, 0x36704f5d9297), (0x1b04e9c2ee143f32, 0x36dfbb7af218), (0x2fcec95266f9352c, 0x3785c8df24a9),
    (0xfe2b0e47e427dd85, 0x37cbdf5da729), (0x72b49bf2225f6c6d, 0x382227c15855), (0x50486b43df7df9c7, 0x389b88be6453),
    (0x5192a3e53181c8ab, 0x38ddf3d67263), (0xe9f5d8365296fd5e, 0x399f1c6c9e9c), (0xc740263f0301efa8, 0x3a147146512d),
    (0x23cd0f2b5671e67d, 0x3ab10bcc0d9d), (0x002ccc7e5cd41390, 0x3ad6cd14a6c0), (0x9aafb3c02544b31b, 0x3b8cb8779fb0),
    (0x72ba07a78b121999, 0x3c24142a5a3f), (0x3d784aa58edfc7b4, 0x3cd084817d99), (0xaab750424d8004af, 0x3d506a8e098e),
    (0x84403fcf8e6b5ca2, 0x3d4c54c2aec4), (0x71eb7455ec98e207, 0x3e655715cf2c), (0xd752b4f19301595b, 0x3ecd7b2ca5ac),
    (0xc4674129750499de, 0x3e99e86d3e95), (0x9772baff5cd12ef5, 0x3f895c019841),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_its_sum() {
        for children in 2..=255 {
            assert!(Permutation::of(children).is_some(), "{children} children");
        }
        assert!(Permutation::of(0).is_none() && Permutation::of(1).is_none());
        assert!(Permutation::of(256).is_none());
    }

    #[test]
    fn first_rows() {
        let row = |children: usize, number| {
            let table = Permutation::of(children).expect("in the table");
            (0..children).map(|column| table.child(number, column)).collect::<Vec<_>>()
        };
        assert_eq!(row(4, 0), [0, 1, 3, 2]);
        assert_eq!(row(4, 1), [1, 2, 0, 3]);
        assert_eq!(row(4, 4), [1, 3, 0, 2]);
        assert_eq!(row(9, 0), [7, 3, 6, 5, 0, 2, 8, 4, 1]);
        assert_eq!(row(14, 0), [1, 7, 3, 13, 9, 0, 12, 5, 6, 10, 4, 11, 8, 2]);
        assert_eq!(row(14, 256 * 14), row(14, 0));
    }
}
