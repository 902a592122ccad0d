//! The program that a process runs, opened once: what is parsed, what is probed and what runs are one inode, or nothing is
//! probed.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nestrace_kernel::probes::QEMU;
use nestrace_probes::proc_file;
use serde::{Deserialize, Serialize};

use super::process::start_of;
use crate::qemu_symbols::{self, Located};
use crate::stats_offset;

/// Why a program may not be probed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// Its process is gone, or another one has its number.
    #[error("the process ended, or another process has its pid now")]
    Gone,
    /// The process runs another program by now.
    #[error("the process runs another program now")]
    Replaced,
    /// It gives its user other rights.
    #[error("it is {0}, and such programs are not probed")]
    Privileged(&'static str),
    /// Nothing executable of it is mapped where a probe would go.
    #[error("the process has no code mapped at offset {offset:#x} of its program")]
    NotMapped {
        /// Bytes from the start of the file.
        offset: u64,
    },
    /// The system's word.
    #[error("its program cannot be opened: {0}")]
    System(#[source] io::Error),
}

/// A program and the process that runs it.
#[derive(Debug)]
pub struct Program {
    file: File,
    pid: u32,
    start_ticks: u64,
    /// Device and inode.
    identity: (u64, u64),
}

/// What the tables of a program say, and the inode that it was read from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParsedProgram {
    identity: (u64, u64),
    located: Located,
}

impl ParsedProgram {
    /// Where its functions are, if this program is the one that was read.
    ///
    /// # Errors
    /// [`ProgramError::Replaced`].
    pub fn located(&self, program: &Program) -> Result<&Located, ProgramError> {
        if self.identity == program.identity {
            Ok(&self.located)
        } else {
            Err(ProgramError::Replaced)
        }
    }
}

impl Program {
    /// Opens what the process `pid` runs, which has to be the process that started at `start_ticks` (clock ticks since boot).
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn open(pid: u32, start_ticks: u64) -> Result<Self, ProgramError> {
        let file = File::open(exe(pid)).map_err(ProgramError::System)?;
        let about = file.metadata().map_err(ProgramError::System)?;
        let program = Self {
            identity: (about.dev(), about.ino()),
            file,
            pid,
            start_ticks,
        };
        refuse_privileged(&program.file, about.mode())?;
        program.check_still_runs()?;
        Ok(program)
    }

    /// The program's file.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Where the functions are that are probed or read, by the program's own tables.
    #[must_use]
    pub fn parse(&self) -> ParsedProgram {
        let probed = QEMU.iter().map(|row| row.target);
        let names: Vec<&str> = probed.chain([stats_offset::FUNCTION]).collect();
        ParsedProgram {
            identity: self.identity,
            located: qemu_symbols::locate_program(self.pid, &self.file, &names),
        }
    }

    /// A path that leads to this very inode, for the kernel, as long as this is open.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Whether the same process still runs this inode.
    ///
    /// # Errors
    /// [`ProgramError::Gone`] and [`ProgramError::Replaced`].
    pub fn check_still_runs(&self) -> Result<(), ProgramError> {
        let about = fs::metadata(exe(self.pid)).map_err(|_| ProgramError::Gone)?;
        // Asked last: the number may have changed hands in between.
        if start_of(self.pid) != Some(self.start_ticks) {
            return Err(ProgramError::Gone);
        }
        if (about.dev(), about.ino()) != self.identity {
            return Err(ProgramError::Replaced);
        }
        Ok(())
    }

    /// Where the process has code of this file mapped: ranges of offsets in the file.
    ///
    /// The inode's number decides, not the device: `maps` shows that of the super block, which on btrfs and overlayfs is
    /// not what `stat` shows.
    ///
    /// # Errors
    /// [`ProgramError::System`].
    pub fn mapped_code(&self) -> Result<MappedCode, ProgramError> {
        let maps = format!("/proc/{}/maps", self.pid);
        let maps = proc_file::read(maps, proc_file::MAX_MAPS).map_err(ProgramError::System)?;
        Ok(MappedCode::parse(&maps.text(), self.identity.1))
    }
}

fn exe(pid: u32) -> String {
    format!("/proc/{pid}/exe")
}

/// Whoever may start a set-uid program has no say over what it does; a breakpoint in it would be one.
fn refuse_privileged(file: &File, mode: u32) -> Result<(), ProgramError> {
    if mode & libc::S_ISUID != 0 {
        return Err(ProgramError::Privileged("set-uid"));
    }
    if mode & libc::S_ISGID != 0 {
        return Err(ProgramError::Privileged("set-gid"));
    }
    // SAFETY: the name ends with a NUL, and with a size of 0 nothing is written.
    let found = unsafe {
        libc::fgetxattr(
            file.as_raw_fd(),
            c"security.capability".as_ptr(),
            std::ptr::null_mut(),
            0,
        )
    };
    if found > 0 {
        return Err(ProgramError::Privileged("a program with file capabilities"));
    }
    Ok(())
}

/// Ranges of a file that a process has mapped as code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappedCode(Vec<std::ops::Range<u64>>);

impl MappedCode {
    /// Those of the inode, in the text of `maps`: `55d0-55e0 r-xp 00001000 fe:00 4711 /usr/bin/qemu`.
    #[must_use]
    pub fn parse(text: &str, inode: u64) -> Self {
        let range = |line: &str| {
            let mut fields = line.split_ascii_whitespace();
            let (start, end) = fields.next()?.split_once('-')?;
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            let bytes = number(end)?.checked_sub(number(start)?)?;
            let is_code = fields.next()?.as_bytes().get(2) == Some(&b'x');
            let offset = number(fields.next()?)?;
            let is_of_inode = fields.nth(1)?.parse() == Ok(inode);
            (is_code && is_of_inode).then_some(offset..offset.checked_add(bytes)?)
        };
        Self(text.lines().filter_map(range).collect())
    }

    /// Whether the code at an offset of the file is mapped.
    ///
    /// # Errors
    /// [`ProgramError::NotMapped`].
    pub fn check(&self, offset: u64) -> Result<(), ProgramError> {
        if self.0.iter().any(|range| range.contains(&offset)) {
            Ok(())
        } else {
            Err(ProgramError::NotMapped { offset })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Child, Command};

    use super::*;

    /// A process that runs a copy of `sleep` with this mode.
    fn sleeping(folder: &Path, mode: u32) -> Child {
        let program = folder.join("sleeper");
        // By a process of its own: none of ours has the copy open for writing then.
        let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        Command::new(&program).arg("600").spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn programs_that_give_rights_are_refused() {
        for (mode, expected) in [
            (0o755, "Ok(())"),
            (
                0o4755,
                "Err(\"it is set-uid, and such programs are not probed\")",
            ),
            (
                0o2755,
                "Err(\"it is set-gid, and such programs are not probed\")",
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let child = sleeping(folder.path(), mode);
            let found = Program::open(child.id(), start_of(child.id()).unwrap());
            let found = found.map(drop).map_err(|error| error.to_string());
            end(child);
            assert_eq!(format!("{found:?}"), expected);
        }
    }

    #[test]
    fn another_program_or_process_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let shell = folder.path().join("go");
        // It becomes another program when the file is there.
        let script = format!(
            "while ! [ -e {} ]; do sleep 0.05; done; exec sleep 600",
            shell.display()
        );
        let child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let start_ticks = start_of(child.id()).unwrap();
        let program = Program::open(child.id(), start_ticks).unwrap();
        assert!(program.check_still_runs().is_ok());
        assert!(matches!(
            Program::open(child.id(), start_ticks + 1),
            Err(ProgramError::Gone)
        ));
        fs::write(&shell, "").unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while program.check_still_runs().is_ok() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let replaced = program.check_still_runs();
        end(child);
        assert!(matches!(replaced, Err(ProgramError::Replaced)));
        assert!(matches!(
            program.check_still_runs(),
            Err(ProgramError::Gone)
        ));
    }

    #[test]
    fn code_of_the_inode_alone_counts() {
        let maps = "55d000000000-55d000002000 r--p 00000000 fe:00 4711 /usr/bin/qemu\n\
                    55d000002000-55d000004000 r-xp 00002000 fe:00 4711 /usr/bin/qemu\n\
                    55d000004000-55d000006000 rw-p 00004000 fe:00 4711 /usr/bin/qemu\n\
                    7f0000000000-7f0000001000 r-xp 00009000 fe:00 12 /lib/libc.so.6\n\
                    7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0 [vdso]\nbroken\n";
        let code = MappedCode::parse(maps, 4711);
        for (offset, is_code) in [
            (0x1fff, false),
            (0x2000, true),
            (0x3fff, true),
            (0x4000, false),
            (0x9000, false),
        ] {
            assert_eq!(code.check(offset).is_ok(), is_code, "{offset:#x}");
        }
        let own = Program::open(std::process::id(), start_of(std::process::id()).unwrap()).unwrap();
        assert!(!own.mapped_code().unwrap().0.is_empty());
    }
}
