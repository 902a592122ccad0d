//! `DM_TABLE_STATUS`: what device mapper makes a device of. sysfs does not say it.
//!
//! Of a table only the names of targets are kept, and of `crypt` the options behind its fixed arguments: its table holds
//! the key.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;

/// What is known of a device of device mapper.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// Names of its targets, each once, in the order of the table, joined by `+`: `linear`, `thin`, `crypt`, …
    pub targets: String,
    /// Options of `crypt`.
    pub options: Vec<String>,
}

/// Bytes of the ioctl's buffer. A longer table is not read: then the device has no targets here.
const BUFFER: usize = 16 << 10;
/// Targets of a table that are looked at.
const MAX_TARGETS: usize = 1024;
/// `DM_STATUS_TABLE_FLAG`: the table as it was loaded, instead of the targets' state.
const TABLE: u32 = 1 << 4;
/// `DM_NOFLUSH_FLAG`: thin pools commit nothing for it.
const NO_FLUSH: u32 = 1 << 11;
/// `DM_SECURE_DATA_FLAG`: the kernel wipes its own copy.
const SECURE: u32 = 1 << 15;
/// `DM_BUFFER_FULL_FLAG`.
const IS_FULL: u32 = 1 << 8;
/// Arguments of crypt before its options: cipher, key, offset of the IV, device, start on it.
const CRYPT_ARGUMENTS: usize = 5;

/// `struct dm_ioctl` of `<linux/dm-ioctl.h>`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event_nr: u32,
    padding: u32,
    dev: u64,
    name: [u8; 128],
    uuid: [u8; 129],
    data: [u8; 7],
}

const _: () = assert!(size_of::<Header>() == 312);

/// The header with room for the table.
#[repr(C)]
struct Request {
    header: Header,
    table: [u8; BUFFER],
}

/// Bytes of `struct dm_target_spec`, which stands before the arguments of each target.
const SPEC_BYTES: usize = 40;

mod ioctl {
    #![allow(missing_docs, reason = "the macro takes no documentation")]
    use super::Header;
    // The kernel reads and writes as many bytes as `data_size` says, not as the number does.
    nix::ioctl_readwrite!(table_status, 0xfd, 12, Header);
}

/// The table of the device `dev` (`MAJOR << 20 | MINOR`); `None` where it cannot be asked.
#[must_use]
pub fn read(dev: u32) -> Option<Mapped> {
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/mapper/control")
        .ok()?;
    let mut request = Box::new(Request {
        header: Header {
            version: [4, 0, 0],
            data_size: size_of::<Request>() as u32,
            data_start: size_of::<Header>() as u32,
            target_count: 0,
            open_count: 0,
            flags: TABLE | NO_FLUSH | SECURE,
            event_nr: 0,
            padding: 0,
            dev: libc::makedev(dev >> 20, dev & 0xf_ffff),
            name: [0; 128],
            uuid: [0; 129],
            data: [0; 7],
        },
        table: [0; BUFFER],
    });
    // SAFETY: the descriptor is open. The kernel reads and writes at most `data_size` bytes from the header's address, which
    // is the size of the whole of `request`; every bit pattern is valid for its integers.
    unsafe { ioctl::table_status(control.as_raw_fd(), (&raw mut *request).cast()) }.ok()?;
    if request.header.flags & IS_FULL != 0 {
        return None;
    }
    let start = request.header.data_start as usize;
    let start = start.checked_sub(size_of::<Header>())?;
    let table = request.table.get(start..)?;
    let mapped = of_table(table, request.header.target_count as usize);
    request.table.fill(0);
    Some(mapped)
}

/// The targets of a table as the kernel writes it: for each a `dm_target_spec` and its arguments, ended by a zero. `next` of
/// a spec counts from the begin of the table.
fn of_table(table: &[u8], count: usize) -> Mapped {
    let mut mapped = Mapped::default();
    let mut names: Vec<String> = Vec::new();
    let mut at = 0;
    for _ in 0..count.min(MAX_TARGETS) {
        let Some(spec) = table.get(at..).and_then(|rest| rest.get(..SPEC_BYTES)) else {
            break;
        };
        let name = text(spec.get(24..SPEC_BYTES).unwrap_or_default());
        if name == "crypt" {
            let arguments = text(table.get(at + SPEC_BYTES..).unwrap_or_default());
            // The first of the options is how many there are.
            let options = arguments.split_whitespace().skip(CRYPT_ARGUMENTS + 1);
            mapped.options = options.map(str::to_owned).collect();
        }
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
        let next = spec.get(20..24).and_then(|bytes| bytes.try_into().ok());
        let next = next.map_or(0, u32::from_ne_bytes) as usize;
        if next <= at {
            break;
        }
        at = next;
    }
    mapped.targets = names.join("+");
    mapped
}

/// Up to the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let bytes = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table as the kernel writes it.
    fn table(targets: &[(&str, &str)]) -> Vec<u8> {
        let mut table = Vec::new();
        for (name, arguments) in targets {
            let mut spec = vec![0; SPEC_BYTES];
            spec[24..24 + name.len()].copy_from_slice(name.as_bytes());
            let next = table.len() + SPEC_BYTES + arguments.len() + 1;
            spec[20..24].copy_from_slice(&(next as u32).to_ne_bytes());
            table.extend(spec);
            table.extend(arguments.bytes().chain([0]));
        }
        table
    }

    #[test]
    fn targets_are_named_once() {
        let two = table(&[
            ("linear", "8:0 1"),
            ("linear", "8:16 1"),
            ("striped", "2 8 8:0 1 8:16 1"),
        ]);
        assert_eq!(of_table(&two, 3).targets, "linear+striped");
        assert_eq!(of_table(&[], 3), Mapped::default());
        assert_eq!(of_table(&two[..50], 3).targets, "linear");
    }

    #[test]
    fn of_crypt_the_options_are_kept_and_not_the_key() {
        let crypt = "aes-xts-plain64 00112233 0 8:0 4096 2 no_read_workqueue no_write_workqueue";
        let mapped = of_table(&table(&[("crypt", crypt)]), 1);
        assert_eq!(mapped.targets, "crypt");
        assert_eq!(mapped.options, ["no_read_workqueue", "no_write_workqueue"]);
        assert!(!format!("{mapped:?}").contains("00112233"));
    }

    /// A table that leads back to itself ends.
    #[test]
    fn a_table_that_goes_in_circles_ends() {
        let mut twice = table(&[("linear", "8:0 1"), ("delay", "8:0 1 5")]);
        twice[20..24].copy_from_slice(&0u32.to_ne_bytes());
        assert_eq!(of_table(&twice, 2).targets, "linear");
    }
}
