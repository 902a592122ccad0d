//! The command channel into a guest: a virtio-serial port that the guest's init obeys.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::interrupt::{self, Interrupted};

/// How often a wait looks at Ctrl-C and at QEMU.
const LOOK: Duration = Duration::from_millis(100);

/// The channel broke, or the guest did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The socket failed.
    #[error("use the guest's command channel")]
    Io(#[from] io::Error),
    /// The guest did not answer in time.
    #[error("hear from the guest within {0:?}")]
    Timeout(Duration),
    /// QEMU ended.
    #[error("hear from the guest: QEMU has ended")]
    Closed,
    /// The guest sent something else than an answer.
    #[error("understand the guest's answer {0:?}")]
    Garbled(String),
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// What a command in the guest left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestOutput {
    /// Exit status as a shell gives it; 137 when it ran into its time limit.
    pub status: i32,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

/// A shell in a guest that somebody else started (libvirt), over its port `org.nestrace.lab.0`.
#[derive(Debug)]
pub struct GuestShell {
    channel: Mutex<Channel>,
}

impl GuestShell {
    /// Connects to the host side of the port and waits until the guest obeys.
    ///
    /// # Errors
    /// There is no such socket, or the guest does not come up within `patience`.
    pub fn connect(socket: &Path, patience: Duration) -> Result<Self, ChannelError> {
        let mut channel = Channel::new(UnixStream::connect(socket)?)?;
        channel.wait_ready(patience)?;
        let channel = Mutex::new(channel);
        Ok(Self { channel })
    }

    /// Runs a shell script in the guest; it is killed (status 137) after `timeout`.
    ///
    /// # Errors
    /// The channel broke or the guest does not answer; the script's own failure is its status.
    pub fn run(&self, script: &str, timeout: Duration) -> Result<GuestOutput, ChannelError> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let id = channel.start(script, timeout)?;
        channel.finish(id, timeout)
    }
}

/// The host's end.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: UnixStream,
    received: Vec<u8>,
    last_id: u64,
}

impl Channel {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(LOOK))?;
        Ok(Self {
            stream,
            received: Vec::new(),
            last_id: 0,
        })
    }

    /// Waits for init's READY.
    pub(crate) fn wait_ready(&mut self, timeout: Duration) -> Result<(), ChannelError> {
        let deadline = Instant::now() + timeout;
        while self.line(deadline, timeout)? != "READY" {}
        Ok(())
    }

    /// Starts a script; the answer is fetched by [`Channel::finish`].
    pub(crate) fn start(&mut self, script: &str, timeout: Duration) -> Result<u64, ChannelError> {
        self.last_id += 1;
        let seconds = timeout.as_secs().max(1);
        let request = format!("RUN {} {seconds} {}\n", self.last_id, BASE64.encode(script));
        self.stream.write_all(request.as_bytes())?;
        Ok(self.last_id)
    }

    /// Waits for the answer to the script `id`, passing over older ones whose wait was given up.
    pub(crate) fn finish(
        &mut self,
        id: u64,
        timeout: Duration,
    ) -> Result<GuestOutput, ChannelError> {
        // The guest kills the command itself; the answer then takes a moment.
        let patience = timeout + Duration::from_secs(15);
        let deadline = Instant::now() + patience;
        loop {
            let line = self.line(deadline, patience)?;
            if line == "READY" {
                // The guest was reset while it worked.
                return Err(ChannelError::Garbled(line));
            }
            let garbled = || ChannelError::Garbled(line.clone());
            let mut words = line.split(' ');
            if words.next() != Some("DONE") {
                return Err(garbled());
            }
            let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
            let (Some(answered), Some(status), Some(stdout), Some(stderr)) =
                (number(), number(), number(), number())
            else {
                return Err(garbled());
            };
            let stdout = self.exactly(stdout as usize, deadline, patience)?;
            let stderr = self.exactly(stderr as usize, deadline, patience)?;
            if answered == id {
                return Ok(GuestOutput {
                    status: status as i32,
                    stdout,
                    stderr,
                });
            }
        }
    }

    fn line(&mut self, deadline: Instant, patience: Duration) -> Result<String, ChannelError> {
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            self.receive(deadline, patience)?;
        }
    }

    fn exactly(
        &mut self,
        n: usize,
        deadline: Instant,
        patience: Duration,
    ) -> Result<String, ChannelError> {
        while self.received.len() < n {
            self.receive(deadline, patience)?;
        }
        let bytes: Vec<u8> = self.received.drain(..n).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn receive(&mut self, deadline: Instant, patience: Duration) -> Result<(), ChannelError> {
        interrupt::check()?;
        if Instant::now() > deadline {
            return Err(ChannelError::Timeout(patience));
        }
        let mut buffer = [0; 65536];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(ChannelError::Closed),
            Ok(n) => {
                self.received.extend_from_slice(&buffer[..n]);
                Ok(())
            }
            Err(error) if is_retry(&error) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                Err(ChannelError::Closed)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn is_retry(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_pieces_is_put_together_and_stale_ones_are_passed_over() {
        let (host, mut guest) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(host).unwrap();
        let id = channel.start("true", Duration::from_secs(1)).unwrap() + 1;
        channel.start("true", Duration::from_secs(1)).unwrap();
        for piece in ["DONE 1 0 3 0\nold", "DONE 2 ", "7 6 3\nhe", "llo\nwh", "y"] {
            guest.write_all(piece.as_bytes()).unwrap();
        }
        let output = channel.finish(id, Duration::from_secs(1)).unwrap();
        let expected = GuestOutput {
            status: 7,
            stdout: "hello\n".into(),
            stderr: "why".into(),
        };
        assert_eq!(output, expected);
    }

    #[test]
    fn a_closed_channel_is_told_from_a_silent_one() {
        let (host, guest) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(host).unwrap();
        let silent = channel.wait_ready(Duration::from_millis(150)).unwrap_err();
        assert!(matches!(silent, ChannelError::Timeout(_)));
        drop(guest);
        let closed = channel.wait_ready(Duration::from_secs(1)).unwrap_err();
        assert!(matches!(closed, ChannelError::Closed));
    }
}
