//! `--qemu-debug`: debug symbols of a QEMU that exports no functions.

use std::{fs::File, path::Path, sync::Arc};

use nestrace_record::qemu_symbols::debug_file;

use crate::exit::{Failure, INPUT};

/// Opens the file that a user named.
pub(super) fn open_debug_file(path: &Path) -> Result<Arc<File>, Failure> {
    debug_file::open(path).map(Arc::new).map_err(|error| {
        let text = format!("--qemu-debug {}: {error}", path.display());
        Failure::new(INPUT, text).hint(HINT)
    })
}

/// Where files of QEMU's debug symbols come from.
pub(super) const HINT: &str = "apt install qemu-system-x86-dbgsym (with Debian's debug archive) or dnf debuginfo-install qemu-kvm puts \
     the file of this very build below /usr/lib/debug, where it is found without --qemu-debug";
