//! Calls of a session's programs, if its backend records any.

use nestrace_abi::{Kind, Source};
use nestrace_trace::Event;
use nestrace_trace::manifest::GuestSide;

use crate::link::calls::{CallLinks, KeptCall, call_story, file_syncs};
use crate::link::chains::{Names, StoryChoice};
use crate::link::cpu::CpuLookup;
use crate::measure::clues::{CallWaits, FileSyncs};
use crate::model::call::Call;
use crate::model::chain::Chain;
use crate::model::span::BioSpan;
use crate::model::threads::Threads;
use crate::result::analysis::{CallRow, CallStory, GuestCalls};

/// `None` where the backend records no calls.
#[derive(Debug)]
pub(crate) struct SessionCalls(Option<Box<CallLinks>>);

impl SessionCalls {
    /// Of this side; keeps the trees of the calls that were asked for.
    pub(super) fn new(side: &GuestSide, kept: Option<StoryChoice>, cpu: CpuLookup) -> Self {
        let has_calls = side.backend == "ebpf";
        Self(has_calls.then(|| Box::new(CallLinks::keeping(kept, cpu))))
    }

    pub(super) fn event(&mut self, kind: Kind, event: &Event, threads: &Threads) {
        if let Some(calls) = &mut self.0 {
            calls.event(kind, event, threads);
        }
    }

    pub(super) fn queued(&mut self, event: &Event) {
        if let Some(calls) = &mut self.0 {
            calls.queued(event);
        }
    }

    pub(super) fn bio_ended(&mut self, bio: &BioSpan, number: u64, threads: &Threads) {
        if let Some(calls) = &mut self.0 {
            calls.bio_ended(bio, number, threads);
        }
    }

    pub(super) fn interrupted(&mut self, threads: &Threads) {
        if let Some(calls) = &mut self.0 {
            calls.interrupted(threads);
        }
    }

    pub(super) fn wait_for(&self, chain: &Chain) -> bool {
        let calls = self.0.as_ref();
        calls.is_some_and(|calls| calls.waits_for(chain.bio))
    }

    pub(super) fn link(&mut self, chain: Chain, threads: &Threads) {
        if let Some(calls) = &mut self.0 {
            calls.chain(chain, threads);
        }
    }

    pub(super) fn finish(
        &mut self,
        side: &GuestSide,
        threads: &Threads,
    ) -> (GuestCalls, Vec<CallRow>) {
        match &mut self.0 {
            Some(calls) if calls.seen => {
                calls.end(threads);
                (calls.totals(&side.guest), calls.rows(side))
            }
            _ => {
                let none = GuestCalls {
                    guest: side.guest.clone(),
                    why_none: Some(why_none(side)),
                    ..GuestCalls::default()
                };
                (none, Vec::new())
            }
        }
    }

    /// Files on a disk that programs have synced, when all calls were counted.
    pub(crate) fn file_syncs(&self, side: &GuestSide, disk: &str) -> Vec<FileSyncs> {
        let mounts = side.mounts.iter().filter(|mount| mount.disk == disk);
        let devs: Vec<u32> = mounts.map(|mount| mount.dev).collect();
        let seen = self.0.as_ref().filter(|calls| calls.seen);
        let mut all = seen
            .map(|calls| file_syncs(calls, side))
            .unwrap_or_default();
        all.retain(|syncs| devs.contains(&syncs.dev));
        all
    }

    /// Calls become ready to be taken one by one.
    pub(crate) fn one_by_one(&mut self) {
        if let Some(calls) = &mut self.0 {
            calls.one_by_one();
        }
    }

    /// The next of them that fulfils `may_go`.
    pub(super) fn next_ready(&mut self, may_go: impl FnOnce(&Call) -> bool) -> Option<KeptCall> {
        let calls = self.0.as_mut()?;
        calls.next_ready(may_go)
    }

    /// What calls on the file systems of these devices waited for.
    pub(super) fn waits(&self, devs: &[u32], side: &GuestSide) -> CallWaits {
        let calls = self.0.as_ref();
        calls
            .map(|calls| calls.waits(devs, side))
            .unwrap_or_default()
    }

    /// The calls whose trees were asked for, the slowest first.
    pub(crate) fn take_kept(&mut self) -> Vec<KeptCall> {
        let calls = self.0.as_mut();
        calls.map(|calls| calls.take_kept()).unwrap_or_default()
    }

    /// All but the disk and the time on the host's clock.
    pub(super) fn story(
        &self,
        session: usize,
        kept: &KeptCall,
        side: &GuestSide,
        names: &Names<'_>,
    ) -> CallStory {
        let process = self.0.as_ref().map(|calls| calls.program(kept.program));
        CallStory {
            process: process.unwrap_or_default(),
            ..call_story(session, kept, side, names)
        }
    }
}

fn why_none(side: &GuestSide) -> String {
    String::from(match side.backend.as_str() {
        "ebpf" if left_out_calls(side) => {
            "the recording leaves calls out (--detail io); --detail full has them"
        }
        "ebpf" if side.mounts.is_empty() => {
            "no file system of a recorded disk was mounted in the guest"
        }
        "ebpf" => "no call on a recorded disk's file system was seen",
        _ => "the kernel's blktrace, which recorded this guest, does not know calls",
    })
}

/// Whether its agent was not asked for calls: one that is asked lists their probes as attached or as refused.
fn left_out_calls(side: &GuestSide) -> bool {
    let of_calls = |source: &str| source == Source::File.name();
    let refused = &side.probes_refused;
    !side.probes.is_empty()
        && !side.probes.iter().any(|probe| of_calls(&probe.source))
        && !refused.iter().any(|probe| of_calls(&probe.source))
}
