//! Modelled disks of a guest that plays the host: the lab on this machine makes them, the one in the guest finds them.
//!
//! So the disk keeps its own time, however slowly the guest's kernel is translated.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nestrace_rig::guest::DiskSpec;
use nestrace_rig::modelled_disk::{ModelledDisk, ModelledDiskError, ModelledDiskSpec};
use nestrace_rig::named_device::DeviceError;
use nestrace_rig::stack::DiskStack;

use crate::plan::Plan;

const BLOCK: &str = "/sys/block";

fn serial(number: usize) -> String {
    format!("lab-disk-{number}")
}

/// Starts as many as the plan's guests need at a time; none where they come from elsewhere.
pub(super) fn start(
    plan: &Plan,
    common: &ModelledDiskSpec,
    folder: &Path,
) -> Result<Vec<ModelledDisk>, ModelledDiskError> {
    let Some((n, bytes)) = plan.disks_outside() else {
        return Ok(Vec::new());
    };
    let models = plan.modelled_disks().into_iter();
    // All are of one model.
    let spec = models.map(|model| common.of(model)).next();
    let disks = spec.iter().flat_map(|spec| (0..n).map(move |_| spec));
    disks
        .map(|spec| ModelledDisk::start(spec, bytes, folder))
        .collect()
}

/// How QEMU attaches them.
pub(super) fn attached(disks: &[ModelledDisk]) -> impl Iterator<Item = DiskSpec> {
    let numbered = disks.iter().enumerate();
    numbered.map(|(number, disk)| DiskSpec::new(serial(number), disk.path(), DiskStack::RAW))
}

/// The device nodes of `n` of them in the guest, in their order.
///
/// # Errors
/// One of them is not there.
pub(super) fn find(n: usize) -> Result<Vec<PathBuf>, DeviceError> {
    let look = |path: &str, source| DeviceError::Look {
        path: PathBuf::from(path),
        source,
    };
    let mut nodes = BTreeMap::new();
    let failed = |source| look(BLOCK, source);
    for entry in fs::read_dir(BLOCK).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let serial = fs::read_to_string(entry.path().join("serial")).unwrap_or_default();
        let node = Path::new("/dev").join(entry.file_name());
        nodes.insert(serial.trim().to_owned(), node);
    }
    let node = |number| {
        let serial = serial(number);
        let node = nodes.remove(&serial);
        node.ok_or_else(|| look(&serial, io::ErrorKind::NotFound.into()))
    };
    (0..n).map(node).collect()
}
