//! Processes beside the recorder, each with the rights for one task: this program, executed again.
//!
//! | process | does | keeps |
//! |---|---|---|
//! | finder | looks at processes, programs, monitors and images, before a recording begins | `CAP_SYS_PTRACE`, `CAP_DAC_READ_SEARCH`, `CAP_FOWNER`; writes nothing, connects to nothing |
//! | asker | asks QEMU's monitors for jobs and limits | uid 0, `CAP_DAC_READ_SEARCH`, no files, no programs |
//! | keeper | connects to an agent anew, gives the bundle back to root | uid 0, no reading, no programs |
//! | launcher | starts and ends `-- COMMAND`, removes the bundle that is replaced | everything; reads orders of five words |
//! | reader | reads QEMU's memory and the tables of qcow2 images, through descriptors that it gets | nothing; opens and connects to nothing |
//! | watcher | notices which files guests open and close | `CAP_SYS_PTRACE`, `CAP_DAC_READ_SEARCH`; opens and connects to nothing |
//!
//! A helper ends when its recorder does: its socket, which is its standard input, has no other end then. Whoever embeds
//! [`Recorder`](crate::recording::Recorder) in a program calls [`run_if_asked`] first of all in `main`.

pub mod asker;
pub mod channel;
pub mod finder;
pub mod keeper;
pub mod launcher;
pub mod reader;
mod socket_place;
pub mod watcher;

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use channel::Channel;

/// The first argument of a program that is a helper.
const WORD: &str = "--as-role";

/// A kind of helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Helper {
    Asker,
    Finder,
    Keeper,
    Launcher,
    Reader,
    Watcher,
}

/// What a helper has of the process that starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inherits {
    /// Its standard error alone.
    Nothing,
    /// Environment, folder, standard output and the terminal, for a program that is started later.
    Session,
}

impl Helper {
    const ALL: [Self; 6] = [
        Self::Asker,
        Self::Finder,
        Self::Keeper,
        Self::Launcher,
        Self::Reader,
        Self::Watcher,
    ];

    const fn word(self) -> &'static str {
        match self {
            Self::Asker => "asker",
            Self::Finder => "finder",
            Self::Keeper => "keeper",
            Self::Launcher => "launcher",
            Self::Reader => "reader",
            Self::Watcher => "watcher",
        }
    }

    /// What `ps` calls it, in 15 characters.
    const fn name(self) -> &'static std::ffi::CStr {
        match self {
            Self::Asker => c"nestrace-ask",
            Self::Finder => c"nestrace-find",
            Self::Keeper => c"nestrace-keeper",
            Self::Launcher => c"nestrace-launch",
            Self::Reader => c"nestrace-read",
            Self::Watcher => c"nestrace-watch",
        }
    }

    /// Starts it. It waits for its first message.
    pub(crate) fn start(self) -> io::Result<Channel> {
        Ok(self.start_as_child()?.0)
    }

    /// The same, with the process, for whoever waits for its end.
    pub(crate) fn start_as_child(self) -> io::Result<(Channel, Child)> {
        self.start_with(&[], Inherits::Nothing)
    }

    /// The same with arguments of its own.
    pub(crate) fn start_with(
        self,
        arguments: &[String],
        inherits: Inherits,
    ) -> io::Result<(Channel, Child)> {
        let (ours, theirs) = Channel::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("nestrace")
            .args([WORD, self.word()])
            .args(arguments)
            .stdin(theirs);
        if inherits == Inherits::Nothing {
            command
                .env_clear()
                .current_dir("/")
                .stdout(Stdio::null())
                // A terminal's Ctrl-C is for the recorder.
                .process_group(0);
        }
        let child = command.spawn()?;
        Ok((ours, child))
    }
}

/// Does a helper's work, where that is what this program was started for.
#[must_use]
pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = env::args_os().skip(1);
    if args.next()? != WORD {
        return None;
    }
    let word = args.next()?;
    let helper = Helper::ALL.into_iter().find(|h| word == h.word())?;
    // SAFETY: the name ends with a NUL.
    let _ = unsafe { libc::prctl(libc::PR_SET_NAME, helper.name().as_ptr()) };
    let done = Channel::of_stdin().and_then(|channel| match helper {
        Helper::Asker => asker::run(&channel),
        Helper::Finder => finder::run(channel),
        Helper::Keeper => keeper::run(&channel),
        Helper::Launcher => launcher::run(&channel, &args.collect::<Vec<OsString>>()),
        Helper::Reader => reader::run(&channel),
        Helper::Watcher => watcher::run(&channel),
    });
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}
