//! A recording from its start to its end, whoever takes it: its pieces, losses, changed facts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nestrace_kernel::plan::Detail;
use nestrace_probes::clock;
use nestrace_trace::manifest::{GuestFile, Refused};
use nestrace_wire::kernel_buffers::Format;
use nestrace_wire::{AgentHello, Lost};

use crate::backend::{Attached, Backend, Backends, Chosen, Piece};
use crate::guest::{Facts, Surroundings};
use crate::names::Names;

/// How often losses, disks and mounts are looked at.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often others have their turn while names are looked for.
const A_WHILE: Duration = Duration::from_millis(10);
/// As many as a recorder takes.
const MAX_REFUSED: usize = 256;

/// What a look around has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// [`Capture::hello`] says something new.
    pub facts: bool,
    /// There is more that cannot be recorded ([`Attached::refused`] of [`Capture::attached`]).
    pub refused: bool,
}

/// A running recording.
pub struct Capture<'b> {
    backend: &'b mut dyn Backend,
    names: &'b [String],
    facts: Facts,
    surroundings: Surroundings,
    /// `CLOCK_MONOTONIC` before the last look that found the facts as they were; 0 before the first.
    held_ns: u64,
    reason: String,
    /// What the start attached, and what it or a later change could not.
    pub attached: Attached,
    /// `CLOCK_MONOTONIC` when it was live.
    pub live_ns: u64,
    lost: BTreeMap<u32, u64>,
    /// Those that were taken, as they were then.
    taken_losses: BTreeMap<u32, u64>,
    correction: clock::Correction,
    correction_grew: bool,
    next_drain: Instant,
    next_look: Instant,
    /// Finds names of files, if they are wanted.
    file_names: Option<Names>,
}

impl<'b> Capture<'b> {
    /// Starts a backend. `paths`: names of files are wanted; `cpu`: when threads have a processor.
    ///
    /// # Errors
    /// Why nothing can be recorded.
    pub fn start(
        backends: &'b mut Backends,
        names: &'b [String],
        asked: &str,
        facts: Facts,
        (detail, paths, cpu): (Detail, bool, bool),
    ) -> Result<Self, String> {
        let chosen = backends.start(asked, &facts, (detail, cpu))?;
        chosen.backend.note_files(paths);
        let mut capture = Self::of(chosen, names, facts);
        capture.file_names = if paths { Names::start() } else { None };
        Ok(capture)
    }

    fn of(chosen: Chosen<'b>, names: &'b [String], facts: Facts) -> Self {
        let Chosen {
            backend,
            reason,
            attached,
        } = chosen;
        let live_ns = clock::monotonic_ns();
        let now = Instant::now();
        Self {
            next_drain: now + backend.period(),
            // The facts are from before the start, which takes seconds.
            next_look: now,
            surroundings: Surroundings::default(),
            backend,
            names,
            facts,
            held_ns: 0,
            reason,
            attached,
            live_ns,
            lost: BTreeMap::new(),
            taken_losses: BTreeMap::new(),
            correction: clock::Correction::watch(),
            correction_grew: false,
            file_names: None,
        }
    }

    /// Who records what.
    pub fn hello(&self, session: u64) -> AgentHello {
        AgentHello {
            held_mono_ns: self.held_ns,
            clock_correction_ppm: self.correction.most_ppm(),
            ..self.facts.hello(session, self.backend.name(), &self.reason)
        }
    }

    /// How long nothing is due.
    pub fn idle_for(&self) -> Duration {
        self.next_drain.saturating_duration_since(Instant::now())
    }

    /// Hands over what was recorded if that is due, and of buffers no more than so many bytes.
    pub fn tick(&mut self, max_bytes: usize, sink: &mut dyn FnMut(Piece<'_>)) {
        let now = Instant::now();
        if now >= self.next_drain {
            self.backend.drain(max_bytes, sink);
            self.next_drain = Instant::now() + self.backend.period();
        }
        self.correction_grew |= self.correction.look();
    }

    /// Looks around if that is due.
    pub fn look(&mut self) -> News {
        if Instant::now() < self.next_look {
            return News::default();
        }
        self.next_look = Instant::now() + LOOK_AROUND;
        self.backend.look();
        self.lost = self.backend.lost();
        let correction_grew = std::mem::take(&mut self.correction_grew);
        let looked_ns = clock::monotonic_ns();
        let mut news = self.look_at_facts();
        if !news.facts {
            self.held_ns = looked_ns;
        }
        news.facts |= correction_grew;
        self.look_for_names();
        news
    }

    fn look_for_names(&mut self) {
        if let Some(names) = &mut self.file_names {
            names.look_for(self.backend.take_files(), &self.facts.mounts);
        }
    }

    /// Names of files that were found since the last call.
    pub fn take_names(&mut self) -> Vec<GuestFile> {
        self.file_names
            .as_mut()
            .map(Names::take)
            .unwrap_or_default()
    }

    /// After the end: has the rest of the names looked for. `sink` gets them, and is called again and again meanwhile.
    pub fn end_names(&mut self, mut sink: impl FnMut(Vec<GuestFile>)) {
        self.look_for_names();
        let Some(names) = &mut self.file_names else {
            return;
        };
        names.end();
        while let Some(files) = names.wait(A_WHILE) {
            sink(files);
        }
    }

    fn look_at_facts(&mut self) -> News {
        let surroundings = Surroundings::now();
        if surroundings == self.surroundings {
            return News::default();
        }
        self.surroundings = surroundings;
        let facts = self.facts.again(self.names);
        if facts == self.facts {
            return News::default();
        }
        let refused = self.backend.update(&facts);
        let is_recorded_now = self.forget_refused(&facts, &refused);
        self.facts = facts;
        News {
            facts: true,
            refused: self.take_refused(refused) || is_recorded_now,
        }
    }

    /// Disks that were refused before and are not any more; whether there is one. Where something else failed, nothing
    /// is known of them.
    fn forget_refused(&mut self, facts: &Facts, refused: &[Refused]) -> bool {
        let is_disk = |name: &str| facts.disks.iter().any(|disk| disk.name == name);
        let known = &mut self.attached.refused;
        let n_known = known.len();
        if refused.iter().all(|new| is_disk(&new.name)) {
            known.retain(|old| {
                !is_disk(&old.name) || refused.iter().any(|new| new.name == old.name)
            });
        }
        known.len() < n_known
    }

    /// Adds what is not yet known to be refused; whether there was any.
    fn take_refused(&mut self, refused: Vec<Refused>) -> bool {
        let known = &mut self.attached.refused;
        let n_known = known.len();
        for new in refused {
            let is_known = known.iter().any(|old| old.name == new.name);
            if !is_known && known.len() < MAX_REFUSED {
                eprintln!("nestrace-agent: {}: {}", new.name, new.reason);
                known.push(new);
            }
        }
        known.len() > n_known
    }

    /// Ends it and hands over the rest; [`Self::hello`] may have something new to say. Gives `CLOCK_MONOTONIC` of the
    /// end.
    pub fn stop(&mut self, sink: &mut dyn FnMut(Piece<'_>)) -> u64 {
        let end_ns = clock::monotonic_ns();
        self.correction.look_last();
        self.backend.stop(sink);
        self.lost = self.backend.lost();
        end_ns
    }

    /// Losses so far, by number of a [`nestrace_trace::Source`].
    pub fn lost(&self) -> &BTreeMap<u32, u64> {
        &self.lost
    }

    /// What is in the buffers that are handed over.
    pub fn format(&self) -> Format {
        self.backend.format()
    }

    /// Losses that have grown since they were last taken. Each is an event too, at the time of this call, so that even a
    /// stream that was cut off knows what it lost.
    pub fn take_losses(&mut self) -> Vec<Lost> {
        let mono_ns = clock::monotonic_ns();
        let mut grown = Vec::new();
        for (&source, &total) in &self.lost {
            if total > self.taken_losses.insert(source, total).unwrap_or(0) {
                grown.push(Lost {
                    source,
                    total,
                    mono_ns,
                });
            }
        }
        grown
    }
}

/// Whether it was stopped or not, nothing stays attached.
impl Drop for Capture<'_> {
    fn drop(&mut self) {
        self.backend.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backend that cannot record what comes later.
    #[derive(Default)]
    struct Refuses {
        n_updates: usize,
    }

    impl Backend for Refuses {
        fn name(&self) -> &'static str {
            "none"
        }

        fn start(&mut self, _: &Facts, _: (Detail, bool)) -> Result<Attached, String> {
            Ok(Attached::default())
        }

        fn update(&mut self, facts: &Facts) -> Vec<Refused> {
            self.n_updates += 1;
            let refused = |name: &String| Refused {
                name: name.clone(),
                ..Refused::default()
            };
            facts.missing.iter().map(refused).collect()
        }

        fn drain(&mut self, _: usize, _: &mut dyn FnMut(Piece<'_>)) {}

        fn stop(&mut self, _: &mut dyn FnMut(Piece<'_>)) {}

        fn release(&mut self) {}

        fn lost(&self) -> BTreeMap<u32, u64> {
            BTreeMap::new()
        }

        fn format(&self) -> Format {
            Format::Blktrace { light: false }
        }

        fn period(&self) -> Duration {
            Duration::ZERO
        }
    }

    /// What the first look at disks of these names finds, if the start knew `facts`.
    fn first_look(facts: Facts, names: &[String]) -> (News, Vec<Refused>, usize) {
        let mut backend = Refuses::default();
        let chosen = Chosen {
            backend: &mut backend,
            reason: String::new(),
            attached: Attached::default(),
        };
        let mut capture = Capture::of(chosen, names, facts);
        let news = capture.look();
        assert_eq!(capture.look(), News::default(), "not yet due");
        let refused = capture.attached.refused.clone();
        drop(capture);
        (news, refused, backend.n_updates)
    }

    #[test]
    fn what_changed_while_it_started_is_found_at_the_first_look() {
        let names = ["nestrace-no-disk".to_owned()];
        let (news, refused, n_updates) = first_look(Facts::default(), &names);
        assert!(news.facts && news.refused && n_updates == 1);
        assert_eq!(refused[0].name, names[0]);
        let now = Facts::gather(&names);
        assert_eq!(first_look(now, &names), (News::default(), Vec::new(), 0));
    }

    #[test]
    fn until_when_all_was_as_it_was_told_is_known() {
        let names = ["nestrace-no-disk".to_owned()];
        let held_ns = |facts: Facts| {
            let mut backend = Refuses::default();
            let mut capture = Capture::of(
                Chosen {
                    backend: &mut backend,
                    reason: String::new(),
                    attached: Attached::default(),
                },
                &names,
                facts,
            );
            let begun_ns = clock::monotonic_ns();
            let mut look = || {
                capture.next_look = Instant::now();
                capture.look();
                let held_ns = capture.hello(0).held_mono_ns;
                (held_ns, held_ns >= begun_ns)
            };
            [look(), look()]
        };
        // What was found at the first look may have come at any time before.
        let [(first_ns, _), (_, is_known)] = held_ns(Facts::default());
        assert_eq!((first_ns, is_known), (0, true));
        let [(first_ns, is_known), (second_ns, _)] = held_ns(Facts::gather(&names));
        assert!(is_known && first_ns <= second_ns);
    }

    #[test]
    fn what_cannot_be_recorded_is_told_once() {
        let mut backend = Refuses::default();
        let chosen = Chosen {
            backend: &mut backend,
            reason: String::new(),
            attached: Attached::default(),
        };
        let mut capture = Capture::of(chosen, &[], Facts::default());
        let refused = |name: &str| Refused {
            name: name.to_owned(),
            ..Refused::default()
        };
        assert!(!capture.take_refused(Vec::new()));
        assert!(capture.take_refused(vec![refused("vdb")]));
        assert!(!capture.take_refused(vec![refused("vdb")]));
        assert!(capture.take_refused(vec![refused("vdb"), refused("vdc")]));
        assert_eq!(capture.attached.refused.len(), 2);
    }
}
