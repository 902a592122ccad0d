//! The talk with one recorder, from the moment that it holds the other end to the moment that it is gone.

mod sums;

use std::time::{Duration, Instant};

use nestrace_kernel::plan::Detail;
use nestrace_probes::clock;
use nestrace_trace::manifest::GuestFile;
use nestrace_wire::files::portions;
use nestrace_wire::kernel_buffers::Format;
use nestrace_wire::sums::AskSums;
use nestrace_wire::{AgentHello, AgentMessage, End, FrameReader, HostMessage, Live, Start};
use nix::poll::{PollFd, PollFlags, poll};

use crate::backend::{Backends, Piece};
use crate::capture::Capture;
use crate::guest::Facts;
use crate::signals::{Signals, poll_timeout};
use crate::transport::outbox::Outbox;
use crate::transport::{Connection, Moved};

/// How long the last frames may take.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// [`End::reason`] of a recording that the recorder has ended.
const STOP: &str = "stop";
/// A sleep without a recording: only bytes and signals matter then.
const LONG: Duration = Duration::from_secs(60);

/// Serves recordings until the other side is gone or a signal comes.
pub fn serve(
    connection: &Connection,
    backends: &mut Backends,
    names: &[String],
    signals: &mut Signals,
) {
    let mut line = Line {
        connection,
        reader: FrameReader::new(),
        outbox: Outbox::default(),
        told_left_out: false,
        held_ns: 0,
        asked: None,
    };
    while let Some(wish) = line.wait_for_wish(signals) {
        let is_here = match wish {
            Wish::Events(start) => Session::run(&mut line, backends, names, &start, signals),
            Wish::Sums(ask) => sums::run(&mut line, backends, names, &ask, signals),
        };
        if !is_here {
            return;
        }
    }
}

/// What goes over the connection, both ways.
struct Line<'c> {
    connection: &'c Connection,
    reader: FrameReader,
    outbox: Outbox,
    /// The recorder knows in this session that not all mounts are listed.
    told_left_out: bool,
    /// [`AgentHello::held_mono_ns`] of the newest Hello.
    held_ns: u64,
    /// A request that has come and was not yet looked at.
    asked: Option<Asked>,
}

enum Asked {
    Start(Start),
    Sums(AskSums),
    Stop,
}

/// What a recorder wants to have.
enum Wish {
    Events(Start),
    Sums(AskSums),
}

impl Line<'_> {
    /// The next request; `None` when the other side is gone or a signal has come.
    fn wait_for_wish(&mut self, signals: &mut Signals) -> Option<Wish> {
        loop {
            match self.asked.take() {
                Some(Asked::Start(start)) => return Some(Wish::Events(start)),
                Some(Asked::Sums(ask)) => return Some(Wish::Sums(ask)),
                Some(Asked::Stop) | None => {}
            }
            if signals.arrived() || !self.wait(LONG, signals) {
                return None;
            }
        }
    }

    fn begin_session(&mut self) {
        self.outbox.begin_session();
        self.told_left_out = false;
    }

    /// Says what the guest has, as much of it as a recorder takes.
    fn say_hello(&mut self, mut hello: AgentHello) {
        let left_out = hello.fit();
        if self.outbox.has_facts() {
            // The recorder knows what the Hello before that one said.
            hello.held_mono_ns = self.held_ns;
        }
        self.held_ns = hello.held_mono_ns;
        let hello = AgentMessage::Hello(Box::new(hello));
        self.outbox.push_facts(&hello);
        if left_out > 0 && !self.told_left_out {
            self.told_left_out = true;
            let text = format!(
                "{left_out} of the guest's mounts and disks do not fit into a message and are not named; all I/O is recorded"
            );
            self.outbox.push(&AgentMessage::Notice(text));
        }
    }

    /// Sends and receives for at most this time; `false` when the other side is gone.
    fn wait(&mut self, time: Duration, signals: &Signals) -> bool {
        let mut wanted = PollFlags::POLLIN;
        if !self.outbox.is_empty() {
            wanted |= PollFlags::POLLOUT;
        }
        let mut fds = [
            PollFd::new(self.connection.as_fd(), wanted),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        let _ = poll(&mut fds, poll_timeout(time));
        let seen = fds[0].revents().unwrap_or(PollFlags::empty());
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        let mut here = !seen.intersects(gone);
        if seen.contains(PollFlags::POLLIN) {
            here &= self.receive();
        }
        // Whoever was there has gone, and another has come and asked already.
        here |= matches!(self.asked, Some(Asked::Start(_) | Asked::Sums(_)));
        here && self.outbox.write_to(self.connection)
    }

    /// Reads what is there and answers pings; `false` when the other side is gone.
    fn receive(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            let n = match self.connection.read(&mut buffer) {
                Moved::Bytes(n) => n,
                Moved::Nothing => return true,
                Moved::Gone => return false,
            };
            let mut bytes = &buffer[..n];
            while !bytes.is_empty() {
                let taken = self.reader.feed(bytes);
                bytes = &bytes[taken..];
                self.look_at_frames();
            }
        }
    }

    fn look_at_frames(&mut self) {
        let mut searched = false;
        loop {
            let message = match self.reader.next_frame() {
                Ok(Some(frame)) => HostMessage::parse(frame),
                Ok(None) => return,
                Err(error) if searched => {
                    eprintln!("nestrace-agent: {error}");
                    self.reader = FrameReader::new();
                    return;
                }
                Err(_) => {
                    // Half of a frame of a recorder that is gone; its successor's question is found
                    // behind it, perhaps among the bytes that are here already.
                    self.reader.search();
                    searched = true;
                    continue;
                }
            };
            match message {
                Ok(Some(HostMessage::Ping { token, .. })) => {
                    self.outbox.push_pong(token, clock::monotonic_ns());
                }
                Ok(Some(HostMessage::Start(start))) => self.asked = Some(Asked::Start(start)),
                Ok(Some(HostMessage::AskSums(ask))) => self.asked = Some(Asked::Sums(ask)),
                Ok(Some(HostMessage::Stop)) => self.asked = Some(Asked::Stop),
                Ok(None) => {}
                Err(error) => eprintln!("nestrace-agent: {error}"),
            }
        }
    }

    /// Answers pings and sends, without waiting.
    fn move_on(&mut self) {
        // Only a recorder that is gone makes this fail, and the next wait finds that too.
        let _ = self.receive() && self.outbox.write_to(self.connection);
    }

    /// Sends what waits, for at most [`LAST_WORDS`]; `false` when the other side is gone.
    fn finish(&mut self, signals: &Signals) -> bool {
        let until = Instant::now() + LAST_WORDS;
        while !self.outbox.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if !self.wait(left, signals) {
                return false;
            }
        }
        true
    }
}

/// One recording over a line.
struct Session<'s, 'b, 'c> {
    line: &'s mut Line<'c>,
    capture: Capture<'b>,
    token: u64,
}

impl Session<'_, '_, '_> {
    /// Records as asked until asked to stop; `false` when the other side is gone.
    fn run(
        line: &mut Line<'_>,
        backends: &mut Backends,
        names: &[String],
        start: &Start,
        signals: &mut Signals,
    ) -> bool {
        line.begin_session();
        let wanted = if start.devices.is_empty() {
            names
        } else {
            &start.devices
        };
        let facts = Facts::gather(wanted);
        let (backend, reason) = backends.expected(&start.backend);
        let hello = facts.hello(start.session, backend, &reason);
        line.say_hello(hello);
        line.outbox.write_to(line.connection);
        let asked = (Detail::asked(&start.detail), start.paths, start.cpu);
        let capture = Capture::start(backends, wanted, &start.backend, facts, asked);
        let capture = match capture {
            Ok(capture) => capture,
            Err(reason) => {
                eprintln!("nestrace-agent: cannot record: {reason}");
                line.outbox.push(&AgentMessage::Notice(reason.clone()));
                end(line, clock::monotonic_ns(), &reason);
                return line.finish(signals);
            }
        };
        let mut session = Session {
            line,
            capture,
            token: start.session,
        };
        session.say_live(backend);
        let (reason, alive) = session.record(signals);
        if alive {
            session.close(reason);
            session.line.finish(signals)
        } else {
            false
        }
    }

    fn say_live(&mut self, expected: &str) {
        let hello = self.capture.hello(self.token);
        if hello.backend != expected {
            self.line.say_hello(hello);
        }
        let outbox = &mut self.line.outbox;
        let refused = &self.capture.attached.refused;
        if !refused.is_empty() {
            outbox.push(&AgentMessage::Refused(refused.clone()));
        }
        outbox.push(&AgentMessage::Live(Live {
            mono_ns: self.capture.live_ns,
            probes: std::mem::take(&mut self.capture.attached.probes),
            translation: match self.capture.format() {
                Format::Probes(translation) => Some(translation),
                Format::Blktrace { .. } => None,
            },
        }));
        eprintln!("nestrace-agent: recording");
    }

    /// Why it ended, and whether the other side is still there.
    fn record(&mut self, signals: &mut Signals) -> (&'static str, bool) {
        loop {
            if !self.line.wait(self.capture.idle_for(), signals) {
                return ("the recorder is gone", false);
            }
            if signals.arrived() {
                return ("signal", true);
            }
            match &self.line.asked {
                // A recorder that has heard nothing for a while asks again, for an agent that was
                // started since; this one is in the session already.
                Some(Asked::Start(start)) if start.session == self.token => self.line.asked = None,
                Some(Asked::Start(_) | Asked::Sums(_)) => return ("new session", true),
                Some(Asked::Stop) => {
                    self.line.asked = None;
                    return (STOP, true);
                }
                None => {}
            }
            let room = self.line.outbox.room();
            self.take_pieces(|capture, sink| capture.tick(room, sink));
            let news = self.capture.look();
            if self.line.outbox.has_room() {
                say_names(self.line, self.capture.take_names());
            }
            if news.facts {
                self.line.say_hello(self.capture.hello(self.token));
            }
            if news.refused {
                let refused = self.capture.attached.refused.clone();
                self.line.outbox.push(&AgentMessage::Refused(refused));
            }
            if self.line.outbox.has_room() {
                self.send_losses();
            }
            if self.line.outbox.flows() {
                self.line.outbox.push_late();
            }
        }
    }

    /// Lets the capture hand over what it has; pings are answered in between.
    fn take_pieces(&mut self, from: impl FnOnce(&mut Capture<'_>, &mut dyn FnMut(Piece<'_>))) {
        let line = &mut *self.line;
        from(&mut self.capture, &mut |piece| match piece {
            Piece::Buffer { number, bytes } => {
                line.outbox.push_buffer(number, bytes);
                line.move_on();
            }
            Piece::Incomplete => {
                line.outbox.push(&AgentMessage::Incomplete);
            }
            Piece::Until(mono_ns) => line.outbox.push_until(mono_ns),
        });
    }

    /// What the kernel has lost since; the outbox itself tells what it dropped.
    fn send_losses(&mut self) {
        for lost in self.capture.take_losses() {
            self.line.outbox.push(&AgentMessage::Loss(lost));
        }
    }

    fn close(&mut self, reason: &str) {
        let mut end_ns = 0;
        self.take_pieces(|capture, sink| {
            end_ns = capture.stop(sink);
        });
        self.send_losses();
        self.line.outbox.push_until(u64::MAX);
        self.line.say_hello(self.capture.hello(self.token));
        self.line.outbox.push_late();
        say_names(self.line, self.capture.take_names());
        // Whoever ends the agent or begins anew does not wait for them.
        if reason == STOP {
            let line = &mut *self.line;
            self.capture.end_names(|files| {
                say_names(line, files);
                line.move_on();
            });
        }
        end(self.line, end_ns, reason);
        eprintln!("nestrace-agent: recording ended: {reason}");
    }
}

fn say_names(line: &mut Line<'_>, files: Vec<GuestFile>) {
    for portion in portions(files) {
        line.outbox.push(&AgentMessage::Files(portion));
    }
}

fn end(line: &mut Line<'_>, mono_ns: u64, reason: &str) {
    line.outbox.push(&AgentMessage::End(End {
        mono_ns,
        reason: reason.to_owned(),
    }));
}
