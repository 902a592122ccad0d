//! The launcher: starts `-- COMMAND` as whoever called the recorder, when the recorder may not start programs any more.
//!
//! The command has to start after the guests' agents are live, and nothing is read from an agent before the recorder has given up
//! its privileges. So a process that keeps them waits for one word. It knows its command from its own arguments and the
//! bundle from the time before; afterwards a recorder that was taken over can only have that command started and
//! ended, and the bundle kept or removed. It reads nothing else.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nestrace_output::bundle_dir::{BundleDir, HandedOver};
use nestrace_probes::refusal::with_causes;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use serde::{Deserialize, Serialize};

use super::channel::{Channel, Received};
use super::{Helper, Inherits};

/// How long a command may take to start, or a bundle to be removed: both may wait for a slow file system.
const ANSWER: Duration = Duration::from_secs(30);

/// What the recorder says.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// At first: the bundle and the one that it replaces, by their names in a folder. Beside it the standard input of the
    /// command, that folder and the bundle's.
    Bundle {
        name: OsString,
        older: Option<OsString>,
        /// Of a flight recorder's, which may be several: the name that it gets by [`Order::Appear`], and whether that
        /// replaces an older bundle.
        unseen: Option<(OsString, bool)>,
    },
    /// The bundle with this number can be read: give it its name.
    Appear(usize),
    /// Everything is live: start the command, and remove the older bundle if that went well.
    Start,
    /// The bundle is kept: remove the older one.
    Settle,
    /// Nothing is wanted of the recording: remove its bundle, and give the older one its name back.
    Discard,
    /// Ask the command to end.
    EndCommand,
}

/// What the launcher says.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// The command runs, or there is none. Why the older bundle is still there, if it is.
    Started { older: Option<String> },
    /// The command could not be started.
    NotStarted { error: Option<i32>, text: String },
    /// The bundle has its name, or why not.
    Appeared(Result<(), String>),
    /// The bundle was kept or removed; why the older one is still there.
    Done { older: Option<String> },
    /// The command ended with this wait status.
    Ended(i32),
}

/// The recorder's view of its launcher.
#[derive(Debug)]
pub struct Launcher {
    channel: Channel,
    /// The launcher itself where there is no command: it ends at [`Self::launch`].
    without_command: Mutex<Option<Child>>,
    /// The wait status of a command that ended while something else was answered.
    ended: Mutex<Option<i32>>,
    /// It goes on without a command too: bundles wait for their names.
    stays: AtomicBool,
}

impl Launcher {
    /// Starts it, for this command if there is one; it waits for [`Self::begin`].
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn start(command: &[String]) -> io::Result<Self> {
        let (channel, child) = Helper::Launcher.start_with(command, Inherits::Session)?;
        Ok(Self {
            channel,
            without_command: Mutex::new(command.is_empty().then_some(child)),
            ended: Mutex::new(None),
            stays: AtomicBool::new(false),
        })
    }

    /// Tells it the bundle, which it keeps or removes when the recorder may not.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn begin(&self, bundle: &HandedOver) -> io::Result<()> {
        let order = Order::Bundle {
            name: bundle.name.clone(),
            older: bundle.older.clone(),
            unseen: bundle.unseen.clone(),
        };
        if bundle.unseen.is_some() {
            self.stays.store(true, Ordering::Relaxed);
        }
        let input = io::stdin();
        let with = [input.as_fd(), bundle.around.as_fd(), bundle.dir.as_fd()];
        self.channel.send(&order, &with)
    }

    /// Starts the command. Why the older bundle could not be removed, if so.
    ///
    /// # Errors
    /// Why the command does not start, or the launcher is gone.
    pub(crate) fn launch(&self) -> io::Result<Option<String>> {
        self.channel.send(&Order::Start, &[])?;
        match self.answer()? {
            Said::Started { older } if self.stays.load(Ordering::Relaxed) => Ok(older),
            Said::Started { older } => {
                let child = self.without_command.lock();
                let child = child.unwrap_or_else(PoisonError::into_inner).take();
                // It has no more to do.
                child.map(|mut child| child.wait()).transpose()?;
                Ok(older)
            }
            Said::NotStarted {
                error: Some(error), ..
            } => Err(io::Error::from_raw_os_error(error)),
            Said::NotStarted { text, .. } => Err(io::Error::other(text)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The bundle is kept. Why the older one could not be removed, if so.
    ///
    /// # Errors
    /// Where the launcher is gone.
    pub(crate) fn settle(&self) -> io::Result<Option<String>> {
        self.done(&Order::Settle)
    }

    /// The bundle with this number, in the order of [`Self::begin`], gets its name.
    ///
    /// # Errors
    /// Why not, or that the launcher is gone.
    pub(crate) fn appear(&self, number: usize) -> io::Result<()> {
        self.channel.send(&Order::Appear(number), &[])?;
        match self.answer()? {
            Said::Appeared(appeared) => appeared.map_err(io::Error::other),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The bundle is removed, and an older one has its name again. Bundles that have appeared stay.
    ///
    /// # Errors
    /// Where the launcher is gone.
    pub(crate) fn discard(&self) -> io::Result<Option<String>> {
        self.done(&Order::Discard)
    }

    fn done(&self, order: &Order) -> io::Result<Option<String>> {
        self.channel.send(order, &[])?;
        match self.answer()? {
            Said::Done { older } => Ok(older),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Asks the command to end.
    ///
    /// # Errors
    /// Where the launcher is gone, as it is when the command has ended.
    pub(crate) fn end_command(&self) -> io::Result<()> {
        self.channel.send(&Order::EndCommand, &[])
    }

    /// How the command ended; `None` where it still runs after `limit`.
    ///
    /// # Errors
    /// Where the launcher is gone and has not said it.
    pub(crate) fn command_status(&self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + limit;
        while ended.is_none() {
            if !self
                .channel
                .wait(deadline.saturating_duration_since(Instant::now()))?
            {
                return Ok(None);
            }
            match self.channel.receive()? {
                Some((Said::Ended(status), _)) => *ended = Some(status),
                Some(_) => {}
                None => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        Ok(ended.map(ExitStatus::from_raw))
    }

    fn answer(&self) -> io::Result<Said> {
        loop {
            let (said, _): Received<Said> = self.channel.answer(ANSWER)?;
            match said {
                Said::Ended(status) => {
                    let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
                    *ended = Some(status);
                }
                said => return Ok(said),
            }
        }
    }
}

impl AsFd for Launcher {
    /// It can be read when the command has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// The launcher's life.
pub(super) fn run(channel: &Channel, command: &[OsString]) -> io::Result<()> {
    stay_at_signals();
    let mut state = State {
        command,
        input: None,
        bundles: Vec::new(),
        is_flight: false,
        child: None,
    };
    loop {
        if state.wait(channel)? == Woken::ByChild {
            let status = state.ended()?;
            channel.send(&Said::Ended(status), &[])?;
            if !state.has_unseen() {
                return Ok(());
            }
            state.child = None;
            continue;
        }
        let Some((order, with)) = channel.receive()? else {
            // A recorder that is gone before its command was started recorded nothing: what it would have replaced, is there
            // again when the bundle is dropped here. A command that was started goes on.
            return Ok(());
        };
        if let Some(said) = state.obey(order, with)? {
            channel.send(&said, &[])?;
            // Without a command there is nothing more to do with the caller's rights.
            let goes_on = matches!(said, Said::NotStarted { .. }) || state.has_unseen();
            if state.child.is_none() && !goes_on {
                return Ok(());
            }
        }
    }
}

/// Ctrl-C and a closed terminal are for the recorder and the command, whose group this process is in. What was ignored stays
/// ignored, so that the command inherits it.
fn stay_at_signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    let stay = SigAction::new(
        SigHandler::Handler(nothing),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    for signal in [
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGHUP,
        Signal::SIGTERM,
    ] {
        // SAFETY: the handler does nothing.
        let before = unsafe { sigaction(signal, &stay) };
        if let Ok(before) = before
            && matches!(before.handler(), SigHandler::SigIgn)
        {
            // SAFETY: no handler of ours is put back.
            let _ = unsafe { sigaction(signal, &before) };
        }
    }
}

#[derive(PartialEq, Eq)]
enum Woken {
    ByRecorder,
    ByChild,
}

/// What the launcher has.
struct State<'a> {
    command: &'a [OsString],
    input: Option<OwnedFd>,
    /// One, or those of a flight recorder.
    bundles: Vec<BundleDir>,
    is_flight: bool,
    child: Option<(Child, OwnedFd)>,
}

impl State<'_> {
    /// Waits for an order or the command's end.
    fn wait(&self, channel: &Channel) -> io::Result<Woken> {
        loop {
            let mut waiting = vec![PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
            let child = self.child.as_ref();
            waiting.extend(child.map(|(_, fd)| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
            match poll(&mut waiting, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let is_ready = |fd: Option<&PollFd<'_>>| fd.and_then(PollFd::any).unwrap_or(false);
            if is_ready(waiting.get(1)) {
                return Ok(Woken::ByChild);
            }
            if is_ready(waiting.first()) {
                return Ok(Woken::ByRecorder);
            }
        }
    }

    /// The command's wait status.
    fn ended(&mut self) -> io::Result<i32> {
        let (child, _) = self.child.as_mut().ok_or(io::ErrorKind::NotFound)?;
        child.wait().map(ExitStatus::into_raw)
    }

    /// What is answered, if anything is.
    fn obey(&mut self, order: Order, with: Vec<OwnedFd>) -> io::Result<Option<Said>> {
        match order {
            Order::Bundle {
                name,
                older,
                unseen,
            } if self.bundles.iter().all(BundleDir::is_unseen) => {
                let [input, around, dir] =
                    <[OwnedFd; 3]>::try_from(with).map_err(|_| io::ErrorKind::InvalidData)?;
                self.input = Some(input);
                self.is_flight = unseen.is_some();
                self.bundles.push(BundleDir::taken_over(HandedOver {
                    name,
                    older,
                    unseen,
                    around: File::from(around).into(),
                    dir: File::from(dir).into(),
                }));
                Ok(None)
            }
            Order::Bundle { .. } => Err(io::ErrorKind::InvalidData.into()),
            Order::Start => Ok(Some(match self.start() {
                Ok(()) => Said::Started {
                    older: self.settle(),
                },
                Err(error) => Said::NotStarted {
                    error: error.raw_os_error(),
                    text: error.to_string(),
                },
            })),
            Order::Settle => Ok(Some(Said::Done {
                older: self.settle(),
            })),
            Order::Appear(number) => {
                let bundle = self.bundles.get_mut(number);
                let bundle = bundle.filter(|bundle| bundle.is_unseen());
                let bundle = bundle.ok_or(io::ErrorKind::NotFound)?;
                let appeared = bundle.take_wanted_name();
                let appeared = appeared.map_err(|error| with_causes(&error));
                Ok(Some(Said::Appeared(appeared)))
            }
            Order::Discard => {
                let mut bundles = std::mem::take(&mut self.bundles);
                for bundle in &mut bundles {
                    // What a flight recorder has written is kept.
                    if bundle.is_unseen() || !self.is_flight {
                        bundle.discard();
                    }
                }
                Ok(Some(Said::Done { older: None }))
            }
            Order::EndCommand => {
                if let Some((_, child)) = &self.child {
                    end(child);
                }
                Ok(None)
            }
        }
    }

    fn start(&mut self) -> io::Result<()> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Ok(());
        };
        let Some(input) = self.input.take() else {
            // It was started already.
            return Err(io::ErrorKind::AlreadyExists.into());
        };
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::from(input))
            .spawn()?;
        let process = process_of(child.id())?;
        self.child = Some((child, process));
        Ok(())
    }

    /// Removes the older bundle, or says why it is still there.
    fn settle(&mut self) -> Option<String> {
        let settled = self.bundles.iter_mut().map(BundleDir::settle);
        let failed = settled.filter_map(Result::err).last();
        failed.map(|error| with_causes(&error))
    }

    /// Whether a bundle waits for its name.
    fn has_unseen(&self) -> bool {
        self.bundles.iter().any(BundleDir::is_unseen)
    }
}

/// A descriptor that can be read when the process has ended.
fn process_of(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers alone.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), 0) };
    match i32::try_from(fd) {
        // SAFETY: the descriptor is new, and has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A command that has just ended needs no word.
fn end(process: &OwnedFd) {
    let nothing: *const libc::siginfo_t = std::ptr::null();
    // SAFETY: the descriptor is open; without a `siginfo_t` the kernel makes one.
    let _ = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            libc::SIGTERM,
            nothing,
            0,
        )
    };
}
