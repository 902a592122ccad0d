//! Telling QEMU by its executable, and what the executable says about itself.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::fs::File;
use std::hint::black_box;

use crate::qemu_symbols::{Bytes, Elf, Table};

/// The largest `.rodata` that is searched for the version.
const MAX_RODATA: u64 = 32 << 20;
/// Bytes of it that are searched at once.
const RODATA_AT_ONCE: usize = 256 << 10;
/// In every QEMU system emulator's `.rodata`, followed by the version.
const VERSION_TEXT: &[u8] = b"QEMU emulator version ";

/// Whether a program of this name is a QEMU system emulator: `qemu-system-*`, `qemu-kvm`, `kvm`,
/// and wrappers' names for it (`.qemu-system-x86_64-wrapped`).
#[must_use]
pub fn is_qemu_name(name: &str) -> bool {
    name.contains("qemu-system-") || matches!(name, "qemu-kvm" | "kvm" | "qemu-dm")
}

/// Whether a program is the dynamic loader, which then runs the program that its arguments name.
#[must_use]
pub fn is_loader(name: &str) -> bool {
    name.starts_with("ld-linux")
        || name.starts_with("ld-musl")
        || name.starts_with("ld-2.")
        || name.starts_with("ld.so")
        || name == "ld64.so.2"
}

/// The arguments from the program on that the dynamic loader runs.
#[must_use]
pub fn behind_loader(argv: &[String]) -> &[String] {
    let mut at = 1;
    while let Some(word) = argv.get(at) {
        match word.as_str() {
            "--library-path"
            | "--preload"
            | "--audit"
            | "--argv0"
            | "--inhibit-rpath"
            | "--glibc-hwcaps-prepend"
            | "--glibc-hwcaps-mask" => at += 2,
            option if option.starts_with("--") => at += 1,
            _ => break,
        }
    }
    argv.get(at..).unwrap_or_default()
}

/// Options of QEMU's that hardly another program has.
const OWN_OPTIONS: [&str; 38] = [
    "accel",
    "blockdev",
    "cdrom",
    "chardev",
    "cpu",
    "daemonize",
    "device",
    "drive",
    "enable-kvm",
    "fda",
    "fsdev",
    "hda",
    "hdb",
    "hdc",
    "hdd",
    "incoming",
    "loadvm",
    "machine",
    "mon",
    "monitor",
    "netdev",
    "nic",
    "no-reboot",
    "no-shutdown",
    "no-user-config",
    "nodefaults",
    "nographic",
    "overcommit",
    "pflash",
    "qmp",
    "qmp-pretty",
    "readconfig",
    "runas",
    "smbios",
    "smp",
    "snapshot",
    "usbdevice",
    "virtfs",
];
/// Options of QEMU's that others have too: two of them count as one of its own.
const COMMON_OPTIONS: [&str; 21] = [
    "M", "S", "append", "bios", "boot", "display", "global", "initrd", "kernel", "m", "name",
    "net", "object", "pidfile", "rtc", "serial", "spice", "uuid", "vga", "vnc", "watchdog",
];
/// Endings of disk images: QEMU takes one as its only argument.
const IMAGE_ENDINGS: [&str; 8] = [
    ".img", ".iso", ".qcow", ".qcow2", ".raw", ".vdi", ".vhdx", ".vmdk",
];

/// Whether arguments look enough like QEMU's to look into an executable of another name.
#[must_use]
pub fn may_be_qemu(argv: &[String]) -> bool {
    let mut common: Vec<&str> = Vec::new();
    for word in argv.iter().skip(1) {
        let option = word
            .strip_prefix("--")
            .or_else(|| word.strip_prefix('-'))
            .unwrap_or("");
        if OWN_OPTIONS.contains(&option) {
            return true;
        }
        if COMMON_OPTIONS.contains(&option) && !common.contains(&option) {
            common.push(option);
        }
    }
    let is_image = |word: &String| IMAGE_ENDINGS.iter().any(|ending| word.ends_with(ending));
    let has_image = argv.iter().skip(1).any(is_image);
    common.len() + usize::from(has_image) > 1 || (argv.len() == 2 && has_image)
}

/// Whether an executable is a QEMU system emulator: by its functions, or, where it exports none, by its usage text.
/// `false` where it cannot be read.
#[must_use]
pub fn is_emulator(file: &File) -> bool {
    is_emulator_in(file)
}

fn is_emulator_in<B: Bytes + ?Sized>(program: &B) -> bool {
    has_qemu_symbols(program) || has_usage_text(program)
}

/// What [`is_emulator`] and [`version`] say of a program's bytes.
#[must_use]
pub fn emulator_of_bytes(program: &[u8]) -> (bool, Option<String>) {
    (
        is_emulator_in(program),
        in_rodata(program, MAX_VERSION_TEXT, version_in),
    )
}

/// Whether an executable has the functions of a QEMU system emulator. `false` where it cannot be read.
fn has_qemu_symbols<B: Bytes + ?Sized>(program: &B) -> bool {
    let Ok(elf) = Elf::read(program) else {
        return false;
    };
    let mut accounting = false;
    let mut system = false;
    for table in [Table::Exported, Table::All] {
        let read = elf.functions(table, |symbol| {
            match symbol.name {
                b"block_acct_start" => accounting = true,
                // qemu-storage-daemon and qemu-nbd have the accounting, but no machine.
                b"qemu_init" | b"qemu_main" | b"qemu_main_loop" => system = true,
                _ => {}
            }
            !(accounting && system)
        });
        if read.is_err() || (accounting && system) {
            break;
        }
    }
    accounting && system
}

/// Whether it has the first line of a system emulator's `-help`. qemu-img and the storage daemon have others.
fn has_usage_text<B: Bytes + ?Sized>(program: &B) -> bool {
    let text: Vec<u8> = black_box(USAGE_REVERSED).iter().rev().copied().collect();
    let found = |bytes: &[u8]| {
        let mut windows = bytes.windows(text.len());
        windows.any(|window| window == text).then_some(())
    };
    in_rodata(program, text.len(), found).is_some()
}

/// `[options] [disk_image]`, reversed, so that this program does not have the text itself.
const USAGE_REVERSED: &[u8] = b"]egami_ksid[ ]snoitpo[";

/// The version that the executable prints with `--version`, read instead of run: the program of a
/// container is not to be started with the recorder's rights.
#[must_use]
pub fn version(file: &File) -> Option<String> {
    in_rodata(file, MAX_VERSION_TEXT, version_in)
}

/// The first find in an executable's `.rodata`, which is read in parts that overlap by `overlap` bytes.
fn in_rodata<T, B: Bytes + ?Sized>(
    program: &B,
    overlap: usize,
    find: impl Fn(&[u8]) -> Option<T>,
) -> Option<T> {
    let (mut offset, bytes) = Elf::read(program).ok()?.section_place(b".rodata")?;
    if bytes > MAX_RODATA {
        return None;
    }
    let end = offset.checked_add(bytes)?;
    let mut part = vec![0u8; RODATA_AT_ONCE];
    while offset < end {
        let left = usize::try_from(end - offset).ok()?;
        let wanted = part.get_mut(..left.min(RODATA_AT_ONCE))?;
        program.read_exact_at(wanted, offset).ok()?;
        if let Some(found) = find(wanted) {
            return Some(found);
        }
        if wanted.len() == left {
            return None;
        }
        // A text may lie across the end of this part.
        offset += (wanted.len() - overlap) as u64;
    }
    None
}

/// Bytes of the text with the longest version.
const MAX_VERSION_TEXT: usize = VERSION_TEXT.len() + 64;

/// The version number behind [`VERSION_TEXT`].
fn version_in(bytes: &[u8]) -> Option<String> {
    // Looking for the rare first letter is several times as fast as comparing windows.
    let mut from = 0;
    while let Some(found) = bytes.get(from..)?.iter().position(|b| *b == b'Q') {
        let at = from + found;
        if let Some(rest) = bytes.get(at..)?.strip_prefix(VERSION_TEXT) {
            let end = rest
                .iter()
                .take(64)
                .position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-')))?;
            let version = rest.get(..end)?;
            return (!version.is_empty()).then(|| String::from_utf8_lossy(version).into_owned());
        }
        from = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in [
            "qemu-system-x86_64",
            "qemu-kvm",
            "kvm",
            ".qemu-system-x86_64-wrapped",
            "qemu-system-x86_64-spice",
        ] {
            assert!(is_qemu_name(name), "{name}");
        }
        for name in [
            "qemu-img",
            "qemu-nbd",
            "qemu-ga",
            "kvmtool",
            "bash",
            "qemu-storage-daemon",
        ] {
            assert!(!is_qemu_name(name), "{name}");
        }
    }

    #[test]
    fn loaders() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let line = words(
            "/lib64/ld-linux-x86-64.so.2 --library-path /l --argv0 x /opt/qemu-system-x86_64 -S",
        );
        assert_eq!(behind_loader(&line), ["/opt/qemu-system-x86_64", "-S"]);
        assert!(behind_loader(&words("/lib64/ld-linux-x86-64.so.2 --list")).is_empty());
        assert!(behind_loader(&[]).is_empty());
    }

    #[test]
    fn command_lines() {
        let may = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            may_be_qemu(&words)
        };
        for line in [
            "hypervisor -m 2G -name vm1",
            "hypervisor -cdrom x.iso",
            "hypervisor -hdb a",
            "hypervisor -kernel k -append x",
            "hypervisor -readconfig f",
            "hypervisor -S -m 64",
            "hypervisor --nodefaults",
            "hypervisor disk.qcow2",
            "hypervisor -m 2G disk.raw",
        ] {
            assert!(may(line), "{line}");
        }
        for line in [
            "java -jar app.jar -name x",
            "gcc -M -c a.c",
            "ssh -M host",
            "rsync -a a.img host:",
            "python -m http.server",
            "cp a.img b.img",
            "hypervisor",
            "",
        ] {
            assert!(!may(line), "{line}");
        }
    }

    #[test]
    fn versions() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(version_in(text.as_bytes()).as_deref(), expected, "{text}");
        };
        check(
            "QQEMU QEMU emulator version 7.2.22 (Debian 1:7.2)\n",
            Some("7.2.22"),
        );
        check("QEMU emulator version 10.0.0-rc1\0", Some("10.0.0-rc1"));
        check("QEMU emulator version 9", None);
        check("QEMU", None);
        check("", None);
    }

    #[test]
    fn a_program_that_is_not_qemu() {
        let open = |path: &str| File::open(path).expect("it is there");
        assert!(!is_emulator(&open("/proc/self/exe")));
        assert!(!is_emulator(&open("/dev/null")));
        assert!(!is_emulator(&open("/bin/sh")));
        assert_eq!(version(&open("/bin/sh")), None);
    }
}
