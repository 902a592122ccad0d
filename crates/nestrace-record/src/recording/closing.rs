//! The end of a recording: last words, last events, and the bundle is closed.

use std::time::Duration;

use nestrace_probes::{clock, refusal::with_causes};
use nestrace_trace::manifest::{Loss, State};

use super::{Flying, LAST_PROBE, RecordError, Recorder, Summary, flight_recorder};

impl Recorder {
    /// Shuts the gate, drains what is left, and closes the bundle.
    ///
    /// # Errors
    /// The bundle's; what was written stays readable in any case.
    pub fn finish(mut self, reason: &str) -> Result<Summary, RecordError> {
        flight_recorder::finish_earlier(&mut self);
        self.end_guest_sides();
        if let Err(error) = self.probes.set_gate(false) {
            self.manifest.notice(
                "gate",
                &format!("{error}; events of the last moments may be missing"),
            );
        }
        self.manifest.value.end_mono_ns = clock::monotonic_ns();
        self.limits_and_jobs.look_last(&mut self.manifest);
        self.correction.look_last();
        self.note_clock_correction();
        // A probe that passed the gate may still be writing; what stands behind its record comes after it.
        std::thread::sleep(LAST_PROBE);
        let sink = &mut self.sink;
        self.collector
            .drain_all(self.probes.rings_mut(), |event| sink.take(&event));
        self.note_losses();
        let (sink, manifest) = (&mut self.sink, &mut self.manifest);
        self.guests.identify_last_backends(sink, manifest);
        self.guests.note_machine_states(sink, manifest);
        if let Err(error) = self.sink.stream.finish() {
            self.sink.failed.get_or_insert(error);
        }
        self.note_write_failure();
        if self.flying.is_some() && !flight_recorder::end(&mut self) {
            return Ok(self.without_bundle(reason));
        }
        self.guests.write_image_maps(&mut self.manifest);
        let now_ns = clock::monotonic_ns();
        self.sides.take_news(&mut self.manifest, now_ns);
        self.sides.put_into(&mut self.manifest);
        let (late, malformed) = (self.collector.late(), self.collector.malformed());
        if late > 0 {
            self.manifest.notice(
                "out_of_order",
                &format!("{late} events came too late to be put in order"),
            );
        }
        if malformed > 0 {
            self.manifest.notice(
                "malformed",
                &format!("{malformed} ring entries had an unknown size"),
            );
        }
        self.manifest.value.losses = self.losses();
        self.manifest.value.end_reason = reason.to_owned();
        self.manifest.value.state = State::Complete;
        flight_recorder::complete(&mut self);
        // The older one is not needed any more, also where the last manifest finds no room.
        self.settle();
        self.dir.close(&self.manifest.value)?;
        self.give_bundle_back(self.flying.as_ref().map_or(0, Flying::number));
        if self.flying.is_some() {
            // Folders for bundles that were not needed.
            let _ = self.launcher.discard();
        }
        let manifest = &self.manifest.value;
        let live_ns = manifest.end_mono_ns.saturating_sub(manifest.live_mono_ns);
        Ok(Summary {
            path: self.dir.path().to_owned(),
            flown: flight_recorder::written(&self, true),
            failed: flight_recorder::failed(&self),
            counters: self.counters(),
            duration: Duration::from_nanos(live_ns),
            end_reason: self.manifest.value.end_reason,
            notices: self.manifest.value.notices,
            losses: self.manifest.value.losses,
        })
    }

    /// A flight recorder that ends while it waits.
    fn without_bundle(self, reason: &str) -> Summary {
        let _ = self.launcher.discard();
        let manifest = &self.manifest.value;
        let live_ns = manifest.end_mono_ns.saturating_sub(manifest.live_mono_ns);
        let flown = flight_recorder::written(&self, false);
        let last = flown.iter().flatten().next_back();
        Summary {
            path: last.cloned().unwrap_or_default(),
            failed: flight_recorder::failed(&self),
            counters: self.counters(),
            duration: Duration::from_nanos(live_ns),
            end_reason: reason.to_owned(),
            notices: Vec::new(),
            losses: self.losses(),
            flown,
        }
    }

    fn note_write_failure(&mut self) {
        if let Some(error) = self.sink.failed.take() {
            let error = with_causes(&error);
            let lost = self.sink.stream.rows_lost();
            self.manifest.notice(
                "disk_full",
                &format!("{error}; {lost} events could not be written"),
            );
        }
    }

    pub(super) fn losses(&self) -> Vec<Loss> {
        let loss = |source: &str, events| Loss {
            source: source.to_owned(),
            guest: None,
            events,
        };
        let mut losses: Vec<Loss> = self
            .dropped
            .iter()
            .map(|(source, events)| loss(source.name(), *events))
            .collect();
        if self.sink.stream.rows_lost() > 0 {
            losses.push(loss("disk_full", self.sink.stream.rows_lost()));
        }
        losses.extend(self.sides.losses());
        losses
    }
}
