//! This machine's files in a guest, with a layer of the guest's memory above, so that nothing of them is changed.

use std::path::Path;

use crate::qemu_command::shared_folder;

/// Where they are in the guest once [`mount_script`] has run.
pub const ROOT: &str = "/host";
/// Modules that it takes.
pub const MODULES: [&str; 3] = ["9pnet_virtio", "9p", "overlay"];

const TAG: &str = "machine";
/// How guests mount a folder of the host's.
pub const P9_OPTIONS: &str = "trans=virtio,version=9p2000.L,msize=262144";

/// Arguments of QEMU that offer them, for [`GuestSpec::extra_arguments`](crate::guest::GuestSpec::extra_arguments).
#[must_use]
pub fn arguments() -> [String; 2] {
    shared_folder(Path::new("/"), TAG, ",readonly=on")
}

/// Shell that makes a whole root of them: what the kernel shows is mounted in it, and `/run` is its own.
#[must_use]
pub fn mount_script() -> String {
    format!(
        "set -e\n\
         mkdir -p /machine /layer {ROOT}\n\
         mount -t 9p -o {P9_OPTIONS},ro,cache=loose {TAG} /machine\n\
         mount -t tmpfs layer /layer\n\
         mkdir /layer/upper /layer/work\n\
         mount -t overlay -o lowerdir=/machine,upperdir=/layer/upper,workdir=/layer/work host {ROOT}\n\
         mount -t proc proc {ROOT}/proc\n\
         mount -t sysfs sysfs {ROOT}/sys\n\
         mount -t tracefs tracefs {ROOT}/sys/kernel/tracing\n\
         mount -t debugfs debugfs {ROOT}/sys/kernel/debug\n\
         mount -t devtmpfs devtmpfs {ROOT}/dev\n\
         mkdir -p {ROOT}/dev/shm\n\
         mount -t tmpfs shm {ROOT}/dev/shm\n\
         mount -t tmpfs run {ROOT}/run"
    )
}
