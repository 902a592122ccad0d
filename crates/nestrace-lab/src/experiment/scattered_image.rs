//! A deliberately fragmented image: written piece by piece in a random order, each on the disk before the next.
//!
//! xfs and btrfs give the pieces places in that order. ext4, which serves ext2 and ext3 too, keeps a place for what lies
//! before and after (`ext4_ext_find_goal`, and preallocation of 8 MiB): of 2,048 pieces of 64 KiB it made 14 extents. There a
//! file takes all space first, but for holes of a piece's size.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nestrace_rig::interrupt;
use nestrace_rig::stack::HostFsKind;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::syncfs;

use crate::plan::{Host, shuffled};

const PIECE: u64 = 64 << 10;
/// Beyond this many pieces nothing is more fragmented, it only takes longer.
const MAX_PIECES: u64 = 4_096;
/// Between two holes.
const LEAST_GAP: u64 = 4 << 10;
/// The file system's own.
const SPARE: u64 = 4 << 20;
/// First and last step of taking space.
const LARGEST_STEP: u64 = 64 << 20;
const SMALLEST_STEP: u64 = 64 << 10;

/// Writes an image of zeros, scattered over its file system.
pub(super) fn write(image: &Path, bytes: u64, host: Host) -> io::Result<()> {
    let piece = PIECE.max(bytes.div_ceil(MAX_PIECES).next_multiple_of(PIECE));
    let n = bytes.div_ceil(piece);
    let needs_holes = matches!(
        host,
        Host::Fs(HostFsKind::Ext2 | HostFsKind::Ext3 | HostFsKind::Ext4)
    );
    let _filler = needs_holes
        .then(|| Filler::with_holes(image.with_extension("filler"), piece, n))
        .transpose()?;
    let file = File::options().write(true).open(image)?;
    let zeros = vec![0; piece as usize];
    for place in shuffled(n, 1) {
        interrupt::check().map_err(io::Error::other)?;
        let at = place * piece;
        let length = piece.min(bytes - at) as usize;
        file.write_all_at(&zeros[..length], at)?;
        file.sync_data()?;
    }
    Ok(())
}

/// A file that takes a file system's space; dropping it gives the space back.
struct Filler {
    path: PathBuf,
    file: File,
}

impl Filler {
    /// Leaves at least `n` holes of `hole` bytes.
    fn with_holes(path: PathBuf, hole: u64, n: u64) -> io::Result<Self> {
        let file = File::create(&path)?;
        let filler = Self { path, file };
        let bytes = filler.grow()?.saturating_sub(SPARE);
        filler.file.set_len(bytes)?;
        let n = n + n / 64 + 1;
        let period = (bytes / n).min(2 * hole) / LEAST_GAP * LEAST_GAP;
        if period < hole + LEAST_GAP {
            return Err(io::Error::from(Errno::ENOSPC));
        }
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        for number in 0..n {
            let at = i64::try_from(number * period).map_err(io::Error::other)?;
            fallocate(&filler.file, punch, at, hole.cast_signed())?;
        }
        // What was freed can be used when the journal has it.
        syncfs(&filler.file)?;
        Ok(filler)
    }

    /// Takes all there is; how many bytes that are.
    fn grow(&self) -> io::Result<u64> {
        let (mut bytes, mut step) = (0, LARGEST_STEP);
        let mut zeros = Vec::new();
        while step >= SMALLEST_STEP {
            interrupt::check().map_err(io::Error::other)?;
            let done = if zeros.is_empty() {
                let at = i64::try_from(bytes).map_err(io::Error::other)?;
                let none = FallocateFlags::empty();
                fallocate(&self.file, none, at, step.cast_signed()).map_err(io::Error::from)
            } else {
                self.file.write_all_at(&zeros[..step as usize], bytes)
            };
            match done {
                Ok(()) => bytes += step,
                Err(error) if error.kind() == io::ErrorKind::StorageFull => step /= 4,
                // ext2 and ext3 have no blocks without content.
                Err(error) if error.kind() == io::ErrorKind::Unsupported && zeros.is_empty() => {
                    step = 1 << 20;
                    zeros = vec![0; step as usize];
                }
                Err(error) => return Err(error),
            }
        }
        self.file.sync_all()?;
        Ok(bytes)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
