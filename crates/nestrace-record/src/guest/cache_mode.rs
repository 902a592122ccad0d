//! QEMU's cache modes: three switches with five names.

/// The switches behind a cache mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheMode {
    /// The guest sees a write cache and flushes it itself (`cache.writeback`, `write-cache`).
    pub writeback: bool,
    /// The image is open with O_DIRECT (`cache.direct`).
    pub direct: bool,
    /// Flushes of the guest are dropped (`cache.no-flush`).
    pub no_flush: bool,
}

impl Default for CacheMode {
    /// QEMU's default since 1.2.
    fn default() -> Self {
        Self {
            writeback: true,
            direct: false,
            no_flush: false,
        }
    }
}

impl CacheMode {
    /// The mode that `cache=NAME` names.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let (writeback, direct, no_flush) = match name {
            "none" | "off" => (true, true, false),
            "writeback" => (true, false, false),
            "writethrough" => (false, false, false),
            "directsync" => (false, true, false),
            "unsafe" => (true, false, true),
            _ => return None,
        };
        Some(Self {
            writeback,
            direct,
            no_flush,
        })
    }

    /// The name of the mode as it works. Combinations without a name of their own get the nearest:
    /// whatever drops flushes is `unsafe`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match (self.no_flush, self.writeback, self.direct) {
            (true, _, _) => "unsafe",
            (false, true, true) => "none",
            (false, true, false) => "writeback",
            (false, false, true) => "directsync",
            (false, false, false) => "writethrough",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_switches_agree() {
        for name in ["none", "writeback", "writethrough", "directsync", "unsafe"] {
            assert_eq!(CacheMode::from_name(name).map(CacheMode::name), Some(name));
        }
        assert_eq!(
            CacheMode::from_name("off").map(CacheMode::name),
            Some("none")
        );
        assert_eq!(CacheMode::from_name("volatile"), None);
        assert_eq!(CacheMode::default().name(), "writeback");
    }
}
