//! Known bytes on a disk, without a guest file system: what reaches QEMU's file and the host's
//! block layer is then known to the byte.

use std::time::Duration;

use nestrace_rig::guest::Guest;
use nestrace_rig::stack::{CacheMode, HostFsKind, ImageFormat, Stack};
use serde_json::Value;
use xtask::case::Case;

use super::analysis::{entry, number};

/// Bytes that are written once and, with a direct image, read once.
pub const PATTERN_BYTES: u64 = 8 << 20;

/// Writes the pattern past the first megabyte with O_DIRECT and reads it back.
pub fn write_and_read(guest: &Guest, disk: &str) -> anyhow::Result<()> {
    let device = guest.device_of(disk)?;
    guest.run_ok(&script(&device), Duration::from_secs(60))?;
    Ok(())
}

/// What [`write_and_read`] has the guest do on its block device.
pub fn script(device: &str) -> String {
    let blocks = PATTERN_BYTES >> 16;
    format!(
        "fio --name=p --filename={device} --direct=1 --ioengine=libaio --iodepth=4 --bs=64k \
             --offset=1m --size={PATTERN_BYTES} --rw=write --end_fsync=1 && \
         dd if={device} of=/dev/null bs=64k skip=16 count={blocks} iflag=direct"
    )
}

/// Whether direct I/O on the image stays direct: on btrfs and ext3 it may fall back.
pub fn stays_direct(stack: &Stack) -> bool {
    stack.disk.cache.is_direct() && matches!(stack.host_fs, HostFsKind::Xfs | HostFsKind::Ext4)
}

/// `images[]` against the pattern: nothing else was written to or read from the image. `device_read` are the
/// bytes that the kernel counts as read from the device below.
pub fn compare(
    case: &mut Case,
    analysis: &Value,
    (guest, disk): (&str, &str),
    stack: &Stack,
    device_read: u64,
) -> anyhow::Result<()> {
    let image = entry(analysis, "images", &[("guest", guest), ("disk", disk)])?;
    let file_read = number(image, "/file_io/bytes/read")?;
    let file_written = number(image, "/file_io/bytes/write")?;
    let host_read = number(image, "/host_bytes/read")?;
    let host_written = number(image, "/host_bytes/write")?;
    case.figure(format!(
        "{stack}: file {} + {} KiB, host {} + {} KiB",
        file_read >> 10,
        file_written >> 10,
        host_read >> 10,
        host_written >> 10
    ));
    let name = |what: &str| format!("{disk} ({stack}): {what}");
    if stack.disk.format == ImageFormat::Raw {
        case.equal(
            &name("images.file_io.bytes.write"),
            file_written,
            PATTERN_BYTES,
        );
        case.equal(&name("images.file_io.bytes.read"), file_read, PATTERN_BYTES);
    } else {
        // qcow2 reads and writes tables besides.
        let enough = file_written >= PATTERN_BYTES && file_read >= PATTERN_BYTES;
        case.holds(
            &name("images.file_io.bytes"),
            enough,
            &format!("{file_read} + {file_written}"),
        );
    }
    if stays_direct(stack) {
        case.equal(
            &name("direct: images.host_bytes.write"),
            host_written,
            file_written,
        );
        case.equal(
            &name("direct: images.host_bytes.read"),
            host_read,
            file_read,
        );
        case.equal(
            &name("direct: buffered_fallback"),
            number(image, "/file_io/buffered_fallback")?,
            0,
        );
    } else if stack.disk.format == ImageFormat::Raw {
        // After the sync every page has been written, once: nothing was rewritten meanwhile.
        case.equal(
            &name("after sync: images.host_bytes.write"),
            host_written,
            PATTERN_BYTES,
        );
    } else {
        let enough = host_written >= PATTERN_BYTES;
        case.holds(
            &name("after sync: images.host_bytes.write"),
            enough,
            &host_written.to_string(),
        );
    }
    if stack.disk.cache == CacheMode::Writeback {
        // It was written through the page cache just before; this machine's kernel gives up pages that
        // rest, and a page that it gave up is read from the device.
        case.holds(
            &name("read from the cache: images.host_bytes.read"),
            host_read <= device_read,
            &format!("{host_read} of {device_read}"),
        );
    }
    Ok(())
}

/// `images[]` under a file system's load through the host's page cache: it reaches the device.
pub fn compare_load(
    case: &mut Case,
    analysis: &Value,
    guest: &str,
    disk: &str,
) -> anyhow::Result<()> {
    let image = entry(analysis, "images", &[("guest", guest), ("disk", disk)])?;
    let file_written = number(image, "/file_io/bytes/write")?;
    let host_written = number(image, "/host_bytes/write")?;
    let figures = format!("host {host_written}, file {file_written}");
    case.holds(
        "images.host_bytes.write",
        host_written > 0 && file_written > 0,
        &figures,
    );
    Ok(())
}
