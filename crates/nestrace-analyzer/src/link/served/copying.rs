//! In which direction a job of QEMU's copies a disk.

use nestrace_trace::manifest::Job;

/// How QEMU copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copying {
    /// To another file, before the guest's write.
    BeforeWrite,
    /// From the images below into the image itself.
    Up,
    /// To another file, with the guest's writes or after them.
    Along,
}

impl Copying {
    /// `None` for what is no copy of a disk's data.
    pub(super) fn of(job: &Job) -> Option<Self> {
        match job.kind.as_str() {
            "backup" => Some(Self::BeforeWrite),
            "stream" => Some(Self::Up),
            "mirror" | "commit" => Some(Self::Along),
            _ => None,
        }
    }
}
