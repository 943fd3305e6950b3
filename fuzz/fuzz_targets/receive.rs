#![no_main]
//! Under libFuzzer: `cenote_fuzz_targets::streams::receive`.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_fuzz_targets::streams::receive(bytes));
