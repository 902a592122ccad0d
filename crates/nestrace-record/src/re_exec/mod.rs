//! Starts this program again as a process of its own with less power: one that reads what others made up, or one that
//! keeps what the recorder gives up.
//!
//! The program is executed and not only forked: no memory of the caller, no descriptor but its end of a socket pair
//! (standard input) and standard error are there, and addresses are others. A program that records or looks at guests
//! calls [`serve`] before anything else in `main`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

/// What a process of this program's own is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Looks at the machine's processes, and answers with what it found.
    Discovery,
}

impl Role {
    const ALL: &[Self] = &[Self::Discovery];

    /// The name of the process, as `ps` shows it.
    const fn name(self) -> &'static str {
        match self {
            Self::Discovery => "nestrace-discovery",
        }
    }

    /// Serves the caller through `socket` until it closes its end.
    fn serve(self, socket: UnixStream) -> ExitCode {
        match self {
            Self::Discovery => drop(socket),
        }
        ExitCode::FAILURE
    }
}

/// A process of this program in one of its roles. It is killed and waited for when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// The caller's end of the socket pair.
    pub socket: UnixStream,
}

impl Running {
    /// Starts a process in the role `role`.
    ///
    /// # Errors
    /// Where the system gives no socket pair or no process.
    pub fn start(role: Role) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let child = Command::new("/proc/self/exe")
            .arg0(role.name())
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { child, socket })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where this process was started in a role: plays it, and gives the code to exit with.
#[must_use]
pub fn serve() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    let role = Role::ALL
        .iter()
        .copied()
        .find(|role| name.to_str() == Some(role.name()))?;
    // What a user starts under such a name has no socket there, and is refused by the first read.
    let socket = io::stdin().as_fd().try_clone_to_owned().ok()?;
    Some(role.serve(UnixStream::from(socket)))
}
