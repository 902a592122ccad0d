//! XFS' log: for which of its writes a call has waited.
//!
//! A write is the bio of an `xlog_in_core`, and a thread that waits names it. The writes end for those who wait in the order
//! of the log: so those that lie right before it in the log and were in flight when it was queued had to end, too, and those
//! for which the log's own worker waited before.

use std::collections::VecDeque;

use nestrace_trace::Event;

use crate::model::call::{Call, LogWait, LogWrite, WaitedBio, Why};
use crate::model::span::BioSpan;

/// File systems that are distinguished where no event names a write.
const MAX_FILE_SYSTEMS: usize = 64;
/// Waits of workers that are kept: a log has 8 writes.
const MAX_WORKERS: usize = 1 << 6;
/// Waits, and writes, of one call.
const MAX_OF_ONE: usize = 1 << 8;
/// First `sub` of `Kind::LogWait` with which the write has ended (`XLOG_STATE_DONE_SYNC`), and the one before any write.
const ENDED: u8 = 3;
const NO_WRITE: u8 = 0;

/// The logs of a guest's XFS.
#[derive(Debug, Default)]
pub(super) struct XfsLogs {
    /// File systems that have forced their logs, by their devices.
    forced: Vec<u32>,
    /// Waits of threads that are in no call.
    workers: VecDeque<LogWait>,
    /// Waits are recorded: by kernels since 5.14.
    are_waits_known: bool,
}

impl XfsLogs {
    /// A thread forces the log.
    pub(super) fn forces(&mut self, call: Option<&mut Call>, event: &Event) {
        if !self.forced.contains(&event.dev) && self.forced.len() < MAX_FILE_SYSTEMS {
            self.forced.push(event.dev);
        }
        if let Some(call) = call {
            call.log_forced_ns.get_or_insert(event.ts_ns);
        }
    }

    /// A thread waits for a write, or finds that it has ended.
    pub(super) fn waits(&mut self, call: Option<&mut Call>, event: &Event) {
        self.are_waits_known = true;
        if event.sub == NO_WRITE || event.sub >= ENDED {
            return;
        }
        let wait = LogWait {
            bio: event.object,
            ts_ns: event.ts_ns,
        };
        match call {
            Some(call) if call.log_waits.len() < MAX_OF_ONE => call.log_waits.push(wait),
            Some(call) => call.incomplete = true,
            None => {
                if self.workers.len() >= MAX_WORKERS {
                    self.workers.pop_front();
                }
                self.workers.push_back(wait);
            }
        }
    }

    /// A write has ended that a call holds.
    pub(super) fn ended(call: &mut Call, bio: &BioSpan, id: u64) {
        if call.log_writes.len() < MAX_OF_ONE {
            call.log_writes.push(LogWrite {
                id,
                bio: bio.pointer,
                dev: bio.dev,
                offset: bio.offset,
                bytes: bio.bytes,
                queued_ns: bio.queued_ns,
                ended_ns: bio.ended_ns,
            });
        }
    }

    /// Takes out the writes for which a call that has ended did not wait, as far as is known.
    pub(super) fn take_unproven(&self, call: &mut Call) -> Vec<WaitedBio> {
        if !self.are_waits_known && self.forced.len() <= 1 {
            return Vec::new();
        }
        let proven = self.proven(call);
        let is_unproven = |bio: &mut WaitedBio| bio.why == Why::Log && !proven.contains(&bio.id);
        call.bios.extract_if(.., is_unproven).collect()
    }

    fn proven(&self, call: &Call) -> Vec<u64> {
        let awaited = call.log_waits.iter().filter_map(|wait| {
            let mut writes = call.log_writes.iter();
            writes.find(|write| write.bio == wait.bio && write.ended_ns > wait.ts_ns)
        });
        let mut proven: Vec<LogWrite> = Vec::new();
        for write in awaited {
            let mut next = Some(write);
            while let Some(write) = next.filter(|write| !proven.contains(write)) {
                proven.push(*write);
                next = self.before(write, &call.log_writes);
            }
        }
        proven.into_iter().map(|write| write.id).collect()
    }

    /// The write that lies right before one in the log and had to end before it did.
    fn before<'a>(&self, write: &LogWrite, all: &'a [LogWrite]) -> Option<&'a LogWrite> {
        all.iter().find(|before| {
            let is_next = before.dev == write.dev
                && before.offset.checked_add(before.bytes) == Some(write.offset)
                && before.queued_ns <= write.queued_ns;
            is_next && (before.ended_ns > write.queued_ns || self.worker_waited(before, write))
        })
    }

    /// The worker that writes a checkpoint waits for the first writes of it before the last.
    fn worker_waited(&self, before: &LogWrite, write: &LogWrite) -> bool {
        self.workers.iter().any(|wait| {
            wait.bio == before.bio
                && wait.ts_ns < before.ended_ns
                && before.ended_ns <= write.queued_ns
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::follow::calls::Calls;
    use nestrace_abi::{Kind, flags::op};

    /// Number of the bio, its address, place in units of 512 bytes, length in these, Q and end.
    fn write(id: u64, bio: u64, (place, n): (u64, u64), times: (u64, u64)) -> LogWrite {
        LogWrite {
            id,
            bio,
            dev: 1,
            offset: place * 512,
            bytes: n * 512,
            queued_ns: times.0,
            ended_ns: times.1,
        }
    }

    fn call(writes: &[LogWrite]) -> Call {
        let mut calls = Calls::default();
        let event = |kind, ts_ns| Event {
            kind: kind as u8,
            sub: op::FSYNC,
            tid: 1,
            ts_ns,
            ..Event::default()
        };
        calls.push(Kind::SyscallEnter, &event(Kind::SyscallEnter, 5));
        calls.push(Kind::SyscallExit, &event(Kind::SyscallExit, 1000));
        let mut call = calls.ended.pop().unwrap();
        call.log_writes = writes.to_vec();
        call.bios = writes
            .iter()
            .map(|write| WaitedBio {
                id: write.id,
                why: Why::Log,
                own: false,
                queued_ns: write.queued_ns,
                ended_ns: write.ended_ns,
            })
            .collect();
        call
    }

    fn wait(sub: u8, bio: u64, ts_ns: u64) -> Event {
        Event {
            kind: Kind::LogWait as u8,
            sub,
            object: bio,
            ts_ns,
            ..Event::default()
        }
    }

    /// Numbers of the writes that are left.
    fn left(logs: &XfsLogs, call: &mut Call) -> Vec<u64> {
        logs.take_unproven(call);
        call.bios.iter().map(|bio| bio.id).collect()
    }

    #[test]
    fn a_call_has_the_write_that_it_names_and_those_in_flight_before_it() {
        let writes = [
            write(1, 0xa, (0, 8), (10, 90)),
            write(2, 0xb, (8, 8), (50, 80)),
            // Of another file system.
            write(3, 0xc, (400, 8), (20, 95)),
            // Later in the log, and by the same bio again.
            write(4, 0xb, (16, 8), (100, 150)),
        ];
        let mut logs = XfsLogs::default();
        let mut fsync = call(&writes);
        logs.waits(Some(&mut fsync), &wait(1, 0xb, 40));
        assert_eq!(left(&logs, &mut fsync), [1, 2]);
    }

    #[test]
    fn a_write_that_has_ended_before_the_next_was_queued_is_waited_for_by_the_worker_alone() {
        let writes = [
            write(1, 0xa, (0, 64), (10, 40)),
            write(2, 0xb, (64, 8), (50, 80)),
        ];
        let mut logs = XfsLogs::default();
        let mut fsync = call(&writes);
        logs.waits(Some(&mut fsync), &wait(2, 0xb, 60));
        let mut alone = fsync.clone();
        assert_eq!(left(&logs, &mut alone), [2]);
        logs.waits(None, &wait(2, 0xa, 20));
        assert_eq!(left(&logs, &mut fsync), [1, 2]);
    }

    #[test]
    fn who_finds_a_write_ended_has_waited_for_none() {
        let writes = [write(1, 0xa, (0, 8), (10, 90))];
        for sub in [0, 3, 4, 5, 255] {
            let mut logs = XfsLogs::default();
            let mut fsync = call(&writes);
            logs.waits(Some(&mut fsync), &wait(sub, 0xa, 40));
            assert!(left(&logs, &mut fsync).is_empty(), "{sub}");
        }
    }

    #[test]
    fn without_waits_the_one_file_system_that_forces_its_log_has_all_writes() {
        let writes = [write(1, 0xa, (0, 8), (10, 90))];
        let force = |dev| Event {
            dev,
            ts_ns: 8,
            ..Event::default()
        };
        let mut logs = XfsLogs::default();
        let mut fsync = call(&writes);
        logs.forces(Some(&mut fsync), &force(1));
        assert_eq!(left(&logs, &mut fsync.clone()), [1]);
        logs.forces(None, &force(2));
        assert!(left(&logs, &mut fsync).is_empty());
    }

    #[test]
    fn what_a_guest_makes_us_keep_is_bounded() {
        let mut logs = XfsLogs::default();
        let mut fsync = call(&[]);
        for n in 0..5000_u64 {
            logs.waits(None, &wait(1, n, n));
            logs.waits(Some(&mut fsync), &wait(1, n, n));
            logs.forces(
                None,
                &Event {
                    dev: n as u32,
                    ..Event::default()
                },
            );
        }
        assert_eq!(logs.workers.len(), MAX_WORKERS);
        assert_eq!(logs.forced.len(), MAX_FILE_SYSTEMS);
        assert!(fsync.log_waits.len() <= MAX_OF_ONE && fsync.incomplete);
    }
}
