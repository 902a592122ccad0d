//! Discovery against real QEMUs, paused at their first instruction, on real file systems.

mod channels;
mod file_systems;
mod monitors;
mod processes;
mod rig;

/// What every test here needs.
const TOOLS: &[&str] = &["qemu-system-x86_64", "qemu-img", "losetup", "mount"];

/// `MAJOR << 20 | MINOR` of what `stat` shows.
fn kernel_dev(dev: u64) -> u32 {
    (libc::major(dev) << 20) | libc::minor(dev)
}
