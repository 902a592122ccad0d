//! What backends hand over, and how it becomes events where the recorder does not make them.

use nestrace_trace::Event;
use nestrace_wire::Lost;
use nestrace_wire::kernel_buffers::{Format, KernelBuffers};

/// A part of a recording. They come in the order in which they are to be taken.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'p> {
    /// Bytes that follow those before in one of the kernel's buffers.
    Buffer { number: u32, bytes: &'p [u8] },
    /// Among what comes up to the next [`Self::Until`], records may be missing.
    Incomplete,
    /// All that the kernel stamped before this time has been handed over.
    Until(u64),
}

/// Makes events of pieces, in the guest itself.
#[derive(Debug)]
pub struct Events {
    buffers: KernelBuffers,
}

impl Events {
    /// Of buffers of this format.
    pub fn new(format: Format) -> Self {
        Self {
            buffers: KernelBuffers::new(format),
        }
    }

    /// Takes a piece, and gives the events that are in order then.
    pub fn take(&mut self, piece: Piece<'_>, sink: &mut dyn FnMut(&Event)) {
        match piece {
            Piece::Buffer { number, bytes } => self.buffers.push(number, bytes),
            Piece::Incomplete => self.buffers.incomplete(),
            Piece::Until(horizon_ns) => self.hand_over(horizon_ns, sink),
        }
        if self.buffers.is_full() {
            self.hand_over(u64::MAX, sink);
        }
    }

    /// Takes losses, which lie between what comes of buffers.
    pub fn take_losses(&mut self, losses: Vec<Lost>) {
        let events = losses.iter().filter_map(Lost::event);
        events.for_each(|event| self.buffers.push_event(event));
    }

    fn hand_over(&mut self, horizon_ns: u64, sink: &mut dyn FnMut(&Event)) {
        for event in self.buffers.until(horizon_ns) {
            sink(&event);
        }
    }

    /// Events that were given after a younger one.
    pub fn out_of_order(&self) -> u64 {
        self.buffers.out_of_order()
    }
}
