#![no_main]
//! Under libFuzzer: `cenote_fuzz_targets::lists::vdev_config`.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_fuzz_targets::lists::vdev_config(bytes));
