//! Any bytes as a manifest: no panic, and what was read is written and read again unchanged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nestrace_trace::Manifest;

fuzz_target!(|input: &[u8]| {
    if let Ok((manifest, diagnostics)) = Manifest::from_slice(input) {
        assert!(diagnostics.len() <= 101);
        let (again, _) = Manifest::from_slice(manifest.to_json().as_bytes()).expect("own output");
        assert_eq!(again, manifest);
    }
});
