#![no_main]
//! Under libFuzzer: `cenote_fuzz_targets::streams::token`.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_fuzz_targets::streams::token(bytes));
