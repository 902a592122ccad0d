//! `fuzz/targets/manifest.rs` under libFuzzer.
#![no_main]

#[path = "../targets/manifest.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|input: &[u8]| target::check(input));
