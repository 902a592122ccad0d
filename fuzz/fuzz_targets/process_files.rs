//! `fuzz/targets/process_files.rs` under libFuzzer.
#![no_main]

#[path = "../targets/process_files.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|input: &[u8]| target::check(input));
