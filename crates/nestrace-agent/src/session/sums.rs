//! A session that sends sums instead of events, once a second, for a recorder that shows live figures.

use std::time::{Duration, Instant};

use nestrace_probes::clock;
use nestrace_wire::sums::AskSums;
use nestrace_wire::{AgentMessage, Live};

use super::{Asked, Line, STOP, end};
use crate::backend::{Backends, Summing};
use crate::guest::{Facts, Surroundings};
use crate::signals::Signals;

/// How often sums are sent, and disks looked for.
const PERIOD: Duration = Duration::from_secs(1);

/// Sums until asked to stop; `false` when the other side is gone.
pub(super) fn run(
    line: &mut Line<'_>,
    backends: &mut Backends,
    names: &[String],
    ask: &AskSums,
    signals: &mut Signals,
) -> bool {
    line.begin_session();
    let surroundings = Surroundings::now();
    let facts = Facts::gather(names);
    let (backend, reason) = backends.expected("");
    let session = ask.session;
    let mut summed = Summed {
        names,
        facts,
        surroundings,
        hello: (session, backend, reason),
    };
    // Loading the probes may take seconds: the recorder is to know at once that there is an agent.
    summed.say_hello(line);
    line.outbox.write_to(line.connection);
    let begun = backends.summing(summed.facts.disks.len());
    let begun = begun.and_then(|summing| Ok((summing.start(&summed.facts.disks)?, summing)));
    let (probes, summing) = match begun {
        Ok(begun) => begun,
        Err(reason) => {
            eprintln!("nestrace-agent: cannot sum: {reason}");
            end(line, clock::monotonic_ns(), &reason);
            return line.finish(signals);
        }
    };
    line.outbox.push(&AgentMessage::Live(Live {
        mono_ns: clock::monotonic_ns(),
        probes,
        translation: None,
    }));
    eprintln!("nestrace-agent: summing");
    let (reason, is_here) = summed.send(line, summing, signals);
    summing.stop();
    eprintln!("nestrace-agent: summing ended: {reason}");
    if !is_here {
        return false;
    }
    end(line, clock::monotonic_ns(), reason);
    line.finish(signals)
}

/// What is summed, as the recorder knows it.
struct Summed<'n> {
    names: &'n [String],
    facts: Facts,
    surroundings: Surroundings,
    /// Session, backend, and why this one.
    hello: (u64, &'static str, String),
}

impl Summed<'_> {
    fn say_hello(&self, line: &mut Line<'_>) {
        let (session, backend, reason) = &self.hello;
        let mut hello = self.facts.hello(*session, backend, reason);
        // Sums are of disks.
        hello.mounts.clear();
        line.say_hello(hello);
    }

    /// Why it ended, and whether the other side is still there.
    fn send(
        &mut self,
        line: &mut Line<'_>,
        summing: &mut Summing,
        signals: &mut Signals,
    ) -> (&'static str, bool) {
        let mut next = Instant::now();
        loop {
            if !line.wait(next.saturating_duration_since(Instant::now()), signals) {
                return ("the recorder is gone", false);
            }
            if signals.arrived() {
                return ("signal", true);
            }
            match &line.asked {
                // It asks again where it has heard nothing for a while.
                Some(Asked::Sums(ask)) if ask.session == self.hello.0 => line.asked = None,
                Some(Asked::Sums(_) | Asked::Start(_)) => return ("new session", true),
                Some(Asked::Stop) => {
                    line.asked = None;
                    return (STOP, true);
                }
                None => {}
            }
            if Instant::now() < next {
                continue;
            }
            next = Instant::now() + PERIOD;
            if self.have_disks_changed() {
                summing.follow(&self.facts.disks);
                self.say_hello(line);
            }
            // What a stuck port does not take stays in the sums.
            if line.outbox.flows() {
                for sums in summing.read() {
                    line.outbox.push(&AgentMessage::Sums(sums));
                }
            }
        }
    }

    fn have_disks_changed(&mut self) -> bool {
        let surroundings = Surroundings::now();
        if surroundings == self.surroundings {
            return false;
        }
        self.surroundings = surroundings;
        let facts = self.facts.again(self.names);
        let have_changed = facts.disks != self.facts.disks;
        self.facts = facts;
        have_changed
    }
}
