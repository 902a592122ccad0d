//! The end of a recording: last words, last events, and the bundle is closed.

use std::time::Duration;

use nestrace_probes::clock;
use nestrace_trace::{
    bundle::IMAGE_MAPS,
    manifest::{Loss, State},
};

use super::{LAST_PROBE, RecordError, Recorder, Summary};

impl Recorder {
    /// Shuts the gate, drains what is left, and closes the bundle.
    ///
    /// # Errors
    /// The bundle's; what was written stays readable in any case.
    pub fn finish(mut self, reason: &str) -> Result<Summary, RecordError> {
        self.end_guest_sides();
        if let Err(error) = self.probes.set_gate(false) {
            self.notice(
                "gate",
                &format!("{error}; events of the last moments may be missing"),
            );
        }
        self.manifest.end_mono_ns = clock::monotonic_ns();
        self.correction.look_last();
        self.note_clock_correction();
        // A probe that passed the gate may still be writing; what stands behind its record comes after it.
        std::thread::sleep(LAST_PROBE);
        let sink = &mut self.sink;
        self.collector
            .drain_all(self.probes.rings_mut(), |event| sink.take(&event));
        self.note_losses();
        self.identify_last_backends();
        self.note_machine_states();
        if let Err(error) = self.sink.stream.finish() {
            self.sink.failed.get_or_insert(error);
        }
        self.note_write_failure();
        self.write_image_maps();
        self.take_guest_sides(clock::monotonic_ns());
        self.put_guest_sides();
        let (late, malformed) = (self.collector.late(), self.collector.malformed());
        if late > 0 {
            self.notice(
                "out_of_order",
                &format!("{late} events came too late to be put in order"),
            );
        }
        if malformed > 0 {
            self.notice(
                "malformed",
                &format!("{malformed} ring entries had an unknown size"),
            );
        }
        self.manifest.losses = self.losses();
        self.manifest.end_reason = reason.to_owned();
        self.manifest.state = State::Complete;
        // The older one is not needed any more, also where the last manifest finds no room.
        self.settle();
        self.dir.close(&self.manifest)?;
        self.give_bundle_back();
        let live_ns = self
            .manifest
            .end_mono_ns
            .saturating_sub(self.manifest.live_mono_ns);
        Ok(Summary {
            path: self.dir.path().to_owned(),
            counters: self.counters(),
            duration: Duration::from_nanos(live_ns),
            end_reason: self.manifest.end_reason,
            notices: self.manifest.notices,
            losses: self.manifest.losses,
        })
    }

    fn note_write_failure(&mut self) {
        if let Some(error) = self.sink.failed.take() {
            let cause = std::error::Error::source(&error)
                .map(|cause| format!(": {cause}"))
                .unwrap_or_default();
            let lost = self.sink.stream.rows_lost();
            self.notice(
                "disk_full",
                &format!("{error}{cause}; {lost} events could not be written"),
            );
        }
    }

    fn losses(&self) -> Vec<Loss> {
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

    /// The tables as they are now; QEMU's newest entries may still be in its memory.
    fn write_image_maps(&mut self) {
        if self.has_image_maps
            && let Err(error) = self.reader.write_maps()
        {
            self.notice(
                "image_maps",
                &format!("{IMAGE_MAPS} cannot be written: {error}"),
            );
        }
        for note in self.reader.notes() {
            self.notice("image_maps", &note);
        }
    }
}
