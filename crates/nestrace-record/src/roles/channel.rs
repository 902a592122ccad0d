//! Messages between the recorder and a helper: JSON over a socket that keeps their borders, with descriptors beside them.
//!
//! A message is bounded, and a side that sends something else is not understood: the other one ends or goes on without it.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message.
pub const MAX_MESSAGE: usize = 64 << 10;
/// Descriptors beside one message.
const MAX_DESCRIPTORS: usize = 4;

/// One end.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// A message and the descriptors that came with it.
pub type Received<T> = (T, Vec<OwnedFd>);

/// The next message, if one comes within the limit; `None` too where there is no channel.
///
/// # Errors
/// What the system says, once: a channel whose other end is gone or makes no sense is taken away.
pub(super) fn next_of<T: DeserializeOwned>(
    channel: &mut Option<Channel>,
    limit: Duration,
) -> io::Result<Option<T>> {
    let Some(open) = channel else { return Ok(None) };
    let next: io::Result<Received<T>> = match open.wait(limit) {
        Ok(false) => return Ok(None),
        Ok(true) => match open.receive() {
            Ok(Some(received)) => Ok(received),
            Ok(None) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    if next.is_err() {
        *channel = None;
    }
    next.map(|(message, _)| Some(message))
}

impl Channel {
    /// This side's end, and the one that a helper gets.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self(ours), theirs))
    }

    /// The end that a helper was given.
    pub(super) fn of_stdin() -> io::Result<Self> {
        Ok(Self(io::stdin().as_fd().try_clone_to_owned()?))
    }

    /// Sends a message; waits where the other side does not read.
    ///
    /// # Errors
    /// What the system says; `BrokenPipe` where the other side is gone.
    pub fn send(&self, message: &impl Serialize, with: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_as(message, with, MsgFlags::MSG_NOSIGNAL)
    }

    /// Sends a message if the other side has room for it; whether it had.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn try_send(&self, message: &impl Serialize) -> io::Result<bool> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        match self.send_as(message, &[], flags) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn send_as(
        &self,
        message: &impl Serialize,
        with: &[BorrowedFd<'_>],
        flags: MsgFlags,
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let raw: Vec<RawFd> = with.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let rights: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
        loop {
            let part = [IoSlice::new(&bytes)];
            match sendmsg::<()>(self.0.as_raw_fd(), &part, rights, flags, None) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next message; `None` where the other side is gone.
    ///
    /// # Errors
    /// What the system says, and for what is not such a message.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<Received<T>>> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut rights = cmsg_space!([RawFd; MAX_DESCRIPTORS]);
        let (n, with) = loop {
            let mut part = [IoSliceMut::new(&mut bytes)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            match recvmsg::<()>(self.0.as_raw_fd(), &mut part, Some(&mut rights), flags) {
                Ok(message) => {
                    let with = message.cmsgs()?.flat_map(|rights| match rights {
                        ControlMessageOwned::ScmRights(fds) => fds,
                        _ => Vec::new(),
                    });
                    // SAFETY: the kernel has just made these descriptors for this process.
                    let owned = with.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
                    break (message.bytes, owned.collect());
                }
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNRESET) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        let Some(text) = bytes.get(..n).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        Ok(Some((serde_json::from_slice(text)?, with)))
    }

    /// The answer to what was sent, with its descriptors.
    ///
    /// # Errors
    /// `TimedOut` where none comes within `limit`, `BrokenPipe` where the other side is gone.
    pub fn answer<T: DeserializeOwned>(&self, limit: Duration) -> io::Result<Received<T>> {
        if !self.wait(limit)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.receive()?
            .ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Waits until there is something to receive, or the other side is gone.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut waiting = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waiting, timeout) {
                Ok(n) => return Ok(n > 0),
                // A signal, as Ctrl-C is, is no answer.
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

    use super::*;

    #[test]
    fn messages_keep_their_borders_and_their_descriptors() {
        let (here, there) = Channel::pair().unwrap();
        let there = Channel(there);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"of the file").unwrap();
        file.rewind().unwrap();
        here.send(&"first", &[file.as_fd()]).unwrap();
        here.send(&"second", &[]).unwrap();
        let (text, with): Received<String> = there.receive().unwrap().unwrap();
        assert_eq!((text.as_str(), with.len()), ("first", 1));
        let mut read = String::new();
        let mut file = File::from(with.into_iter().next().unwrap());
        file.read_to_string(&mut read).unwrap();
        assert_eq!(read, "of the file");
        let (text, with): Received<String> = there.answer(Duration::ZERO).unwrap();
        assert_eq!((text.as_str(), with.len()), ("second", 0));
        let late = there.answer::<String>(Duration::ZERO).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        drop(here);
        assert!(there.receive::<String>().unwrap().is_none());
    }

    #[test]
    fn a_signal_is_not_taken_for_silence() {
        extern "C" fn nothing(_: libc::c_int) {}
        let action = SigAction::new(
            SigHandler::Handler(nothing),
            SaFlags::empty(),
            SigSet::empty(),
        );
        // SAFETY: the handler does nothing.
        unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
        let (here, there) = Channel::pair().unwrap();
        let there = Channel(there);
        // SAFETY: the call takes nothing.
        let waiting = unsafe { libc::pthread_self() };
        let other = std::thread::spawn(move || {
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(5));
                // SAFETY: that thread waits for this one to end.
                let sent = unsafe { libc::pthread_kill(waiting, libc::SIGUSR1) };
                assert_eq!(sent, 0);
            }
            there.send(&"late", &[]).unwrap();
        });
        let (text, _): Received<String> = here.answer(Duration::from_secs(20)).unwrap();
        assert_eq!(text, "late");
        other.join().unwrap();
    }

    #[test]
    fn what_is_too_long_or_no_message_is_an_error() {
        let (here, there) = Channel::pair().unwrap();
        let there = Channel(there);
        let long = "x".repeat(MAX_MESSAGE);
        assert!(here.send(&long, &[]).is_err());
        here.send(&7, &[]).unwrap();
        assert!(there.receive::<String>().is_err());
        here.send(&"understood", &[]).unwrap();
        assert!(there.receive::<String>().unwrap().is_some());
    }
}
