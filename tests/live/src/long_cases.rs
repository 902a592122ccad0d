//! What a usual run leaves to `--full`, so that it ends within an hour on two processors.

/// Cases that only `--full` runs, or `--only` with their name, and what a usual run has of the same.
pub const LONG_CASES: &[(&str, &str)] = &[
    ("export/guest", "export/programs"),
    ("guest-kernels/6.12", "calls/6.12, kernel-6.12"),
    ("guest-kernels/7.1", "guest-kernels/7.3"),
    (
        "guest-side/agent/light",
        "kernel-6.1/light, kernel-6.12/light, kernel-7.3/light",
    ),
    ("guest-side/hostile/gigabytes", "guest-side/hostile/flood"),
    ("guest-side/snapshots", "guest-side/guest/reset"),
    (
        "hostile-host/looks/random-trees",
        "the other hostile-host/looks",
    ),
    (
        "hostile-host/privileges/musl",
        "hostile-host/privileges/newer-libc",
    ),
    ("lab/in-guest", "lab/run"),
    ("lab/kinds", "lab/run, lab/modelled"),
    ("libvirt/lab", "lab/over-ssh, libvirt/record"),
    ("qemu-versions/10.0", "qemu-10"),
    ("remote/7.3/iscsi", "remote/6.1/iscsi, remote/6.12/iscsi"),
    ("remote/7.3/nfs", "remote/6.1/nfs, remote/6.12/nfs"),
    ("remote/7.3/smb", "remote/6.1/smb, remote/6.12/smb"),
    ("replay/guest", "replay/programs"),
    ("stuck/frozen-native", "stuck/frozen-io_uring"),
    ("stuck/frozen-threads", "stuck/frozen-io_uring"),
    ("top/crowd", "top/prometheus, top/clients"),
    ("top/soak", "top/guests-come-and-go"),
    (
        "truth/blktrace-storm",
        "truth/blktrace-rewrites, truth/storm",
    ),
    (
        "truth/nameless-qcow2",
        "truth/nameless-rewrites, truth/qcow2",
    ),
    (
        "truth/nameless-storm",
        "truth/nameless-rewrites, truth/storm",
    ),
];

/// Whether a usual run leaves it out.
pub fn is_long(case: &str) -> bool {
    LONG_CASES.iter().any(|(long, _)| *long == case)
}
