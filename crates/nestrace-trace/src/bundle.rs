//! The names of the files in a bundle `NAME.nest/`. Nothing here opens them.

/// The manifest.
pub const MANIFEST: &str = "manifest.json";
/// The recording machine's stream.
pub const HOST_STREAM: &str = "host.arrows";
/// Where the data of qcow2 images lies: JSON, a list of [`crate::ImageMap`]. Only where there is such an image.
pub const IMAGE_MAPS: &str = "image-maps.json";
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

/// The stream of a guest's `nth` session (from 1): a reboot begins another. `guest-NAME.2.arrows`.
#[must_use]
pub fn guest_session_stream(guest: &str, nth: u32) -> String {
    let first = guest_stream(guest);
    match first.strip_suffix(".arrows") {
        Some(stem) if nth > 1 => format!("{stem}.{nth}.arrows"),
        _ => first,
    }
}

/// The guest of a stream's file, the reverse of [`guest_stream`]; `None` where the name is no guest's
/// stream. `guest-vm.2.arrows` may be a guest `vm.2`, or the second session of `vm`
/// ([`session_of_stream`]): the name alone does not tell.
#[must_use]
pub fn guest_of_stream(file: &str) -> Option<String> {
    let name = file.strip_prefix("guest-")?.strip_suffix(".arrows")?;
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let escaped = (*byte == b'%').then(|| after.split_first_chunk::<2>());
        rest = match escaped.flatten() {
            Some((digits, after)) => {
                let digits = std::str::from_utf8(digits).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                after
            }
            None => {
                bytes.push(*byte);
                after
            }
        };
    }
    String::from_utf8(bytes).ok()
}

/// The first session's stream that `file` may be a later one of, and its number (from 2).
#[must_use]
pub fn session_of_stream(file: &str) -> Option<(String, u32)> {
    let (stem, nth) = file.strip_suffix(".arrows")?.rsplit_once('.')?;
    let nth = nth.parse().ok().filter(|nth| *nth > 1)?;
    Some((format!("{stem}.arrows"), nth))
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
            assert_eq!(guest_of_stream(expected).as_deref(), Some(guest));
        }
        for other in ["host.arrows", "guest-vm1.arrows.idx", "guest-%zz.arrows"] {
            assert_eq!(guest_of_stream(other), None, "{other}");
        }
        let second = (guest_stream("vm"), 2);
        assert_eq!(session_of_stream("guest-vm.2.arrows"), Some(second));
        assert_eq!(session_of_stream("guest-vm.arrows"), None);
        assert_eq!(guest_session_stream("a/b", 1), "guest-a%2Fb.arrows");
        assert_eq!(guest_session_stream("a/b", 2), "guest-a%2Fb.2.arrows");
        assert_eq!(index_of(HOST_STREAM), "host.arrows.idx");
    }
}
