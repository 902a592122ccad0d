//! The names of the files in a bundle `NAME.nest/`. Nothing here opens them.

/// The manifest.
pub const MANIFEST: &str = "manifest.json";
/// The recording machine's stream.
pub const HOST_STREAM: &str = "host.arrows";
/// What a bundle's folder ends with.
pub const EXTENSION: &str = "nest";

/// The index of a stream: `host.arrows` has `host.arrows.idx`.
#[must_use]
pub fn index_of(stream: &str) -> String {
    format!("{stream}.idx")
}

/// The stream of a guest, `guest-NAME.arrows`. Bytes other than ASCII letters, digits, `-`, `_`
/// and `.` become `%XX`, so that no name of a guest leaves the folder or collides with another's.
#[must_use]
pub fn guest_stream(guest: &str) -> String {
    use std::fmt::Write as _;
    let mut name = String::from("guest-");
    for byte in guest.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            name.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(name, "%{byte:02X}");
        }
    }
    name.push_str(".arrows");
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_folder() {
        for (guest, expected) in [
            ("vm1", "guest-vm1.arrows"),
            ("../x", "guest-..%2Fx.arrows"),
            ("a%2Fb", "guest-a%252Fb.arrows"),
            ("pid:7", "guest-pid%3A7.arrows"),
            ("", "guest-.arrows"),
        ] {
            assert_eq!(guest_stream(guest), expected);
        }
        assert_eq!(index_of(HOST_STREAM), "host.arrows.idx");
    }
}
