//! What an agent sends of its kernel's buffers, and how it becomes events here.

use nestrace_trace::Event;
use nestrace_wire::kernel_buffers::{Format, KernelBuffers, PLAIN_BYTES, Translation};

use super::{Ingest, Streams};

impl<S: Streams> Ingest<S> {
    /// Takes bytes of one of the kernel's buffers.
    pub(super) fn take_buffer(&mut self, number: u32, bytes: &[u8], now_ns: u64) {
        self.throttle
            .charge(0, (bytes.len() / PLAIN_BYTES) as u64, now_ns);
        self.buffers.push(number, bytes);
        self.bound_buffers(now_ns);
    }

    /// Events that the agent made itself lie between those of the buffers.
    pub(super) fn take_beside_buffers(&mut self, events: impl Iterator<Item = Event>, now_ns: u64) {
        events.for_each(|event| self.buffers.push_event(event));
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
            let message =
                format!("{late} events of its buffers came later than the order allows for");
            self.account.note(now_ns, "out_of_order", &message);
        }
    }
}
