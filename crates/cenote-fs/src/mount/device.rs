//! Device numbers: as programs use them and as they are stored (spec 03 §10.4).

/// Returns the stored number of a device, in Linux's encoding.
#[must_use]
pub const fn encode_rdev(major: u32, minor: u32) -> u64 {
    (major as u64) << 20 | minor as u64 & 0xf_ffff
}

/// Returns major and minor of a number in the form of programs (`dev_t` of the C library).
#[must_use]
pub const fn decode_dev(dev: u64) -> (u32, u32) {
    let major = dev >> 8 & 0xfff | dev >> 32 & 0xffff_f000;
    let minor = dev & 0xff | dev >> 12 & 0xffff_ff00;
    (major as u32, minor as u32)
}

#[cfg(test)]
mod tests {
    use cenote_ondisk::znode::decode_rdev;

    use super::*;

    #[test]
    fn device_numbers_survive_the_round_trip() {
        assert_eq!(decode_rdev(encode_rdev(8, 17)), (8, 17));
        assert_eq!(decode_rdev(encode_rdev(259, 0xf_ffff)), (259, 0xf_ffff));
        assert_eq!(decode_dev(0x811), (8, 17));
        assert_eq!(decode_dev(0x1231_0345), (259, 0x12345));
    }
}
