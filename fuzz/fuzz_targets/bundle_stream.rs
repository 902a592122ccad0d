//! `fuzz/targets/bundle_stream.rs` under libFuzzer.
#![no_main]

#[path = "../targets/bundle_stream.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|input: &[u8]| target::check(input));
