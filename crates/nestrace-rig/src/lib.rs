//! Guests and host file systems on demand, for the lab, the demo and the live tests.
//!
//! It sits beside the recorder, not under it: nothing here traces anything, and the recorder is a program that is
//! started. It makes a host file
//! system on a loop device ([`host_fs`]), an image on it ([`disk_image`]), and a small Debian guest
//! ([`kernel_image`], [`initramfs`], [`guest`]) whose disks have the stack that was asked for
//! ([`stack`]), runs commands in that guest, and reads the counts that the kernel ([`block_stat`])
//! and QEMU ([`qmp`]) keep by themselves. [`recorder`] runs `nestrace record` beside a workload as a user would.
//!
//! Constraints:
//! - Everything that it makes has an owner, and dropping the owner removes it, after an error, a
//!   panic or Ctrl-C too (see [`interrupt`]).
//! - Two runs on one machine never meet: temporary names only, loop devices by `losetup --find`.
//! - Nothing is installed unless [`packages::install`] is called.
//!
//! ```no_run
//! use nestrace_rig::{guest::{DiskSpec, Guest, GuestSpec}, initramfs, kernel_image, stack::DiskStack};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let kernel = kernel_image::obtain("6.1")?;
//! let initramfs = initramfs::obtain(&kernel)?;
//! let mut spec = GuestSpec::new("vm1", &kernel, &initramfs);
//! spec.disks.push(DiskSpec::new("disk-a", "/srv/a.qcow2", DiskStack::default()));
//! let guest = Guest::boot(spec)?;
//! println!("{}", guest.run("uname -r", Duration::from_secs(5))?.stdout);
//! # Ok(()) }
//! ```

pub mod agent;
pub mod block_stat;
pub mod cache_dir;
pub mod child_process;
pub mod cpio_archive;
pub mod debian_archive;
pub mod disk_image;
pub mod external_tool;
pub mod guest;
pub mod guest_channel;
pub mod guest_folder;
pub mod guest_fs;
pub mod guest_spec;
pub mod host_device;
pub mod host_fs;
pub mod initramfs;
pub mod interrupt;
pub mod kernel_image;
pub mod kernel_modules;
pub mod loop_device;
pub mod machine_root;
pub mod modelled_disk;
pub mod named_device;
pub mod packages;
pub mod qemu_command;
pub mod qemu_package;
pub mod qmp;
pub mod real_time;
pub mod recorder;
pub mod root;
pub mod stack;
mod translation;
