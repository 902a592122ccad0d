//! Any bytes as a manifest: no panic; what was read is written and read again unchanged, with its names
//! and without; and no part of a manifest is taken for a whole one.

use nestrace_trace::{Manifest, redact};

/// Checks one input.
pub fn check(input: &[u8]) {
    let Ok((manifest, diagnostics)) = Manifest::from_slice(input) else {
        return;
    };
    assert!(diagnostics.len() <= 101);
    let json = manifest.to_json();
    let (again, _) = Manifest::from_slice(json.as_bytes()).expect("own output");
    assert_eq!(again, manifest);
    let redacted = redact::manifest(&manifest);
    assert_eq!(redacted.streams.len(), manifest.streams.len());
    assert_eq!(redacted.guest_sides.len(), manifest.guest_sides.len());
    let (again, _) = Manifest::from_slice(redacted.to_json().as_bytes()).expect("own output");
    assert_eq!(again, redacted);
    let end = input.trim_ascii_end().len();
    let cut = end * usize::from(input.first().copied().unwrap_or_default() ^ input[end / 2]) / 256;
    assert!(
        cut == end || Manifest::from_slice(&input[..cut]).is_err(),
        "cut at {cut}"
    );
}
