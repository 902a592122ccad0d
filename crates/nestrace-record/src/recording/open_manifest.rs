//! The manifest of a recording that runs.

use nestrace_output::bundle_dir::{BundleDir, BundleError};
use nestrace_probes::clock;
use nestrace_trace::{Manifest, manifest::Notice};

/// More notices than this are not kept, so that the manifest stays within its reserve.
pub(super) const MAX_NOTICES: usize = 500;

/// The manifest as it is so far.
pub(super) struct OpenManifest {
    pub value: Manifest,
    /// The one on the disk is older.
    pub changed: bool,
}

impl OpenManifest {
    /// One that is on the disk.
    pub fn new(value: Manifest) -> Self {
        Self {
            value,
            changed: false,
        }
    }

    /// Notes what happened now.
    pub fn notice(&mut self, what: &str, message: &str) {
        self.notice_at(clock::monotonic_ns(), what, message);
    }

    /// Notes what happened at this time.
    pub fn notice_at(&mut self, mono_ns: u64, what: &str, message: &str) {
        if self.value.notices.len() >= MAX_NOTICES {
            return;
        }
        self.value.notices.push(Notice {
            mono_ns,
            what: what.to_owned(),
            message: message.to_owned(),
        });
        self.changed = true;
    }

    /// Writes it if the one on the disk is older; where that fails, the next call tries again.
    pub fn write_changes(&mut self, dir: &mut BundleDir) {
        if self.changed {
            self.changed = self.write(dir).is_err();
        }
    }

    /// Writes it.
    pub fn write(&self, dir: &mut BundleDir) -> Result<(), BundleError> {
        dir.write_manifest(&self.value)
    }
}
