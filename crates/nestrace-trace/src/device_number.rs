//! Numbers of block devices: the kernel's own form (`MAJOR << 20 | MINOR`), and as they are typed and shown, `MAJ:MIN`, or with a
//! comma as blkparse writes them.

use std::borrow::Cow;

/// The kernel's own form of a number.
#[must_use]
pub const fn of(major: u32, minor: u32) -> u32 {
    (major << 20) | (minor & 0xf_ffff)
}

/// The number that this is (`MAJOR << 20 | MINOR`); `None` where it is a name.
pub fn parse(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once([':', ','])?;
    let major = major.trim().parse::<u32>().ok();
    let minor = minor.trim().parse::<u32>().ok();
    let major = major.filter(|major| *major < 1 << 12)?;
    Some(major << 20 | minor.filter(|minor| *minor < 1 << 20)?)
}

/// `MAJ:MIN`.
pub fn text(dev: u32) -> String {
    format!("{}:{}", dev >> 20, dev & 0xf_ffff)
}

/// A number as [`text`] has it, a name as it is.
pub fn normal(wanted: &str) -> Cow<'_, str> {
    parse(wanted).map_or(Cow::Borrowed(wanted), |dev| Cow::Owned(text(dev)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_from_names() {
        for (typed, expected) in [
            ("8:0", Some(8 << 20)),
            ("254,16", Some(254 << 20 | 16)),
            ("8, 1", Some(8 << 20 | 1)),
            ("vda", None),
            ("dm-0", None),
            ("8:", None),
            ("4096:0", None),
            ("1:1048576", None),
            ("drive:0,1", None),
        ] {
            assert_eq!(parse(typed), expected, "{typed}");
        }
        assert_eq!(normal("8, 1"), "8:1");
        assert_eq!(normal("drive,a"), "drive,a");
    }
}
