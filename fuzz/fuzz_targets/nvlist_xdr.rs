#![no_main]
//! Under libFuzzer: `cenote_fuzz_targets::lists::nvlist_xdr`.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_fuzz_targets::lists::nvlist_xdr(bytes));
