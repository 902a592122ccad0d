//! `fuzz/targets/blktrace.rs` under libFuzzer.
#![no_main]

#[path = "../targets/blktrace.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|input: &[u8]| target::check(input));
