#![no_main]
//! Under libFuzzer: `cenote_fuzz_targets::zaps::zap_leaf`.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_fuzz_targets::zaps::zap_leaf(bytes));
