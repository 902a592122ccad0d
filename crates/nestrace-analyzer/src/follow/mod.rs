//! Each layer by itself: bios and requests, file I/O, QEMU, images, identities.
//!
//! Times are those of the machine that the layer runs on, whichever it is: `u64` nanoseconds of its own clock.

pub(crate) mod block;
pub(crate) mod calls;
pub(crate) mod cpu;
pub(crate) mod file_io;
pub(crate) mod image;
pub(crate) mod image_observer;
pub(crate) mod qemu;
pub(crate) mod sector_identity;
