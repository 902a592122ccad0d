//! `fuzz/targets/programs.rs` under libFuzzer.
#![no_main]

#[path = "../targets/programs.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|input: &[u8]| target::check(input));
