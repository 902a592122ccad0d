//! `fuzz/targets/guest_words.rs` under libFuzzer.
#![no_main]

#[path = "../targets/guest_words.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|input: &[u8]| target::check(input));
