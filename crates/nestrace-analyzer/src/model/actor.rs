//! Threads that carry I/O from one moment to the next.
//!
//! What is waited for in an interval is the thread that ends it: a submission ends when a thread issues what lies below, a
//! completion when a thread passes it on. So each span names the threads of its two ends.

/// A thread whose state says where the time before its event went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Actor {
    /// A device, an interrupt, or nothing that is known.
    #[default]
    Unknown,
    /// A thread of the host.
    Host(u32),
    /// A thread of the guest.
    Guest(u32),
    /// A virtual processor, by its number in the guest: a thread of QEMU.
    Vcpu(u16),
}

impl Actor {
    /// A thread of the host; in the idle task nothing acts but an interrupt.
    pub(crate) const fn host(tid: u32) -> Self {
        match tid {
            0 => Self::Unknown,
            tid => Self::Host(tid),
        }
    }

    /// The same in a guest.
    pub(crate) const fn guest(tid: u32) -> Self {
        match tid {
            0 => Self::Unknown,
            tid => Self::Guest(tid),
        }
    }
}

/// The threads of a span's ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Actors {
    /// That began it.
    pub begins: Actor,
    /// That ended it; of what a call waits for, the thread that waits.
    pub ends: Actor,
    /// Of a guest's request: the guest's clock minus the host's there.
    pub ahead_ns: i64,
}

impl Actors {
    /// Begun and ended by these.
    pub(crate) const fn of(begins: Actor, ends: Actor) -> Self {
        Self {
            begins,
            ends,
            ahead_ns: 0,
        }
    }
}
