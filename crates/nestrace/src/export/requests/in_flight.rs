//! Which events at the address of a request are of this request.
//!
//! The kernel uses an address again as soon as a request has ended. Where its C was lost, what comes next is of another,
//! which does other things or lies elsewhere.

use nestrace_trace::{Event, flags};

use super::{Op, Request};

/// A request between its first D and its last C.
#[derive(Debug)]
pub struct InFlight {
    pub request: Request,
    /// Where its next C begins, byte offset on the device.
    next: u64,
    /// Bytes that are still to move; less than `request.bytes - request.moved` where events were lost.
    left: u64,
    /// It was put back, and is not at the device.
    pub put_back: bool,
}

impl InFlight {
    /// At its D.
    pub fn issued(request: Request) -> Self {
        Self {
            next: request.offset,
            left: request.bytes,
            request,
            put_back: false,
        }
    }

    /// At its first C: the D was not seen.
    pub fn unseen(event: &Event) -> Self {
        let request = Request {
            dev: event.dev,
            op: Op::of(event),
            flags: event.flags,
            offset: event.offset,
            ..Request::default()
        };
        Self {
            next: event.offset,
            left: event.bytes.saturating_add(event.remaining_bytes()),
            request,
            put_back: false,
        }
    }

    fn is_like(&self, event: &Event) -> bool {
        (self.request.dev, self.request.op) == (event.dev, Op::of(event))
    }

    /// A flush and a driver's command have no place; an append to a zone learns its own at the C.
    fn has_place(&self) -> bool {
        !matches!(self.request.op, Op::Flush | Op::Other)
    }

    /// Whether `bytes` from the event's place on end where this request ends, and begin behind what it has moved:
    /// a C of a part was lost.
    fn is_the_rest(&self, event: &Event, bytes: u64) -> bool {
        let end = self.next.saturating_add(self.left);
        event.offset > self.next && event.offset.saturating_add(bytes) == end
    }

    /// At the device again, perhaps with what was merged meanwhile.
    pub fn issued_again(&mut self, event: &Event) {
        (self.next, self.left) = (event.offset, event.bytes);
        self.put_back = false;
    }

    /// Whether R, or D after it, is of this request: it holds what is still to be moved. Others may have been
    /// merged with it meanwhile.
    pub fn goes_on(&self, event: &Event) -> bool {
        let end = event.offset.saturating_add(event.bytes);
        let holds = event.offset <= self.next && self.next < end;
        let fits = !self.has_place() || event.bytes == 0;
        self.is_like(event) && (fits || holds || self.is_the_rest(event, event.bytes))
    }

    /// Whether a C is of another request, whose D was not seen: it does other things, moves other data than what this
    /// one still has to move, or is a last one without data where some are left and nothing is of a flush sequence.
    pub fn is_another_s(&self, event: &Event) -> bool {
        if !self.is_like(event) {
            return true;
        }
        if event.bytes > 0 {
            let rest = event.bytes.saturating_add(event.remaining_bytes());
            return self.has_place() && event.offset != self.next && !self.is_the_rest(event, rest);
        }
        let in_sequence = (self.request.flags | event.flags) & flags::FLUSH_SEQ != 0;
        event.remaining_bytes() == 0 && !in_sequence && self.left > 0
    }

    /// A C moves some of it.
    pub fn moves(&mut self, event: &Event) {
        let skipped = match self.has_place() && event.bytes > 0 {
            true => event.offset.saturating_sub(self.next),
            false => 0,
        };
        let gone = skipped.saturating_add(event.bytes);
        self.next = self.next.saturating_add(gone);
        self.left = self.left.saturating_sub(gone);
        self.put_back = false;
        self.request.moved = self.request.moved.saturating_add(event.bytes);
        self.request.failed |= event.sub != 0;
    }
}
