#![no_main]
//! Under libFuzzer: `cenote_fuzz_targets::space::ddt_log`.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_fuzz_targets::space::ddt_log(bytes));
