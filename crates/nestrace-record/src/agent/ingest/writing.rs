//! From an agent into its guest's stream: the kernel's buffers become events, and these are written. A stream is opened
//! with the first event, and closed at its limit or its end.

use nestrace_probes::refusal::with_causes;
use nestrace_trace::{Event, WriteError};
use nestrace_wire::kernel_buffers::{Format, KernelBuffers, PLAIN_BYTES, Translation};

use super::{Ingest, Streams, WriterOf};

impl<S: Streams> Ingest<S> {
    /// Takes bytes of one of the kernel's buffers.
    pub(super) fn take_buffer(&mut self, number: u32, bytes: &[u8], now_ns: u64) {
        self.throttle
            .charge(0, (bytes.len() / PLAIN_BYTES) as u64, now_ns);
        self.buffers.push(number, bytes);
        self.bound_buffers(now_ns);
    }

    /// A loss in the guest's kernel lies between the events of its buffers.
    pub(super) fn take_loss(&mut self, event: Event, now_ns: u64) {
        self.throttle.charge(0, 1, now_ns);
        self.buffers.push_event(event);
        self.bound_buffers(now_ns);
    }

    fn bound_buffers(&mut self, now_ns: u64) {
        if self.buffers.is_full() {
            self.take_until(u64::MAX, now_ns);
        }
    }

    /// What was stamped before this time of the guest is complete.
    pub(super) fn take_until(&mut self, mono_ns: u64, now_ns: u64) {
        let mut buffers = std::mem::take(&mut self.buffers);
        self.take_events(buffers.until(mono_ns), now_ns);
        self.buffers = buffers;
    }

    /// The next bytes of buffers are a new recording's: with a translation of probes, else of blktrace.
    pub(super) fn begin_buffers(&mut self, translation: Option<Translation>, now_ns: u64) {
        self.end_buffers(now_ns);
        self.buffers = KernelBuffers::new(match translation {
            Some(translation) => Format::Probes(translation),
            None => Format::Blktrace {
                light: self.is_light,
            },
        });
    }

    /// What has come of buffers is all there is.
    pub(super) fn end_buffers(&mut self, now_ns: u64) {
        self.take_until(u64::MAX, now_ns);
        let ended = std::mem::take(&mut self.buffers);
        let skipped = ended.skipped();
        if skipped > 0 {
            let reason = "bytes of its kernel's buffers that are no record";
            self.account.refuse(reason, skipped);
        }
        let late = ended.out_of_order();
        if late > 0 {
            let message = format!("{late} events of its buffers came too late to be put in order");
            self.account.note(now_ns, "out_of_order", &message);
        }
    }

    pub(super) fn write(&mut self, event: &Event, now_ns: u64) {
        let Some(writer) = &mut self.writer else {
            self.account.not_written(1);
            return;
        };
        self.account.events += 1;
        self.wrote = true;
        let mut written = *event;
        if let Some(shift) = &self.shift {
            shift.event(&mut written);
        }
        self.streams.passes(&written);
        if let Err(error) = writer.push(&written) {
            self.give_up_writing(&error, now_ns);
        }
    }

    pub(super) fn give_up_writing(&mut self, error: &WriteError, now_ns: u64) {
        let error = with_causes(error);
        let message = format!("its stream cannot be written: {error}");
        self.account.note(now_ns, "guest_stream_failed", &message);
        if let Some(writer) = self.writer.take() {
            self.settle(&writer);
        }
        self.account.bytes = self.bytes();
    }

    /// Takes into the account what a stream holds, and what it could not write.
    pub(super) fn settle(&mut self, writer: &WriterOf<S>) {
        let lost = writer.rows_lost();
        self.account.not_written(lost);
        self.account.events = self.account.events.saturating_sub(lost);
        self.bytes_before = self
            .bytes_before
            .saturating_add(writer.written().stream_bytes);
    }

    /// Bytes of all streams of this guest.
    pub(super) fn bytes(&self) -> u64 {
        let now = self.writer.as_ref().map_or(0, |w| w.written().stream_bytes);
        self.bytes_before.saturating_add(now)
    }

    pub(super) fn is_full(&mut self) -> bool {
        self.bytes() > self.streams.limit_bytes()
    }

    /// Writes what waits, so that a crash costs no more. Every 250 ms.
    pub fn flush(&mut self, now_ns: u64) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.flush_batch()
        {
            self.give_up_writing(&error, now_ns);
        }
        self.account.bytes = self.bytes();
        self.account.fit();
        self.trips.forget_before(self.streams.oldest_ns());
        let samples = self.trips.samples().to_vec();
        if let Some(side) = self.account.side() {
            side.clock_samples = samples;
        }
    }

    pub(super) fn close_writer(&mut self) {
        if let Some(mut writer) = self.writer.take() {
            // What could not be written is in `rows_lost`.
            let _ = writer.finish();
            self.settle(&writer);
        }
        self.account.bytes = self.bytes();
    }

    /// The session is over; closes the stream.
    pub fn close(&mut self, now_ns: u64) {
        self.end_buffers(now_ns);
        self.flush(now_ns);
        self.close_writer();
    }
}
