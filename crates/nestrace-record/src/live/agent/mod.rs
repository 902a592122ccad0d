//! The guest's side of a guest's disks: its agent sums, and sends its sums once a second.
//!
//! Each guest with a channel has a thread, so that one that is stopped or hostile holds up nothing: a snapshot takes what was
//! heard last. `channel` talks, `heard` takes in, `same_disk` says which disk of the guest is which of QEMU's, `neighbours`
//! who else is connected.

mod channel;
mod heard;
mod neighbours;
mod same_disk;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use nestrace_probes::clock;
use nestrace_trace::manifest::Disk;

use crate::agent_address::Address;
use channel::Channel;
use heard::Heard;
pub(super) use heard::{GuestLayer, GuestOp};
pub(super) use neighbours::Neighbours;

/// What a channel's thread needs at most.
const STACK_BYTES: usize = 256 << 10;

/// An agent that is asked for sums until this is dropped.
pub(super) struct Agent {
    pub address: Address,
    shared: Arc<Shared>,
}

/// What a channel's thread and the snapshots both see.
struct Shared {
    heard: Mutex<Heard>,
    leave: AtomicBool,
}

impl Agent {
    /// Starts a thread that connects, and connects again.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn start(address: Address, neighbours: &Arc<Neighbours>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            heard: Mutex::new(Heard::default()),
            leave: AtomicBool::new(false),
        });
        let channel = Channel::new(address.clone(), Arc::clone(&shared), Arc::clone(neighbours));
        thread::Builder::new()
            .name("nestrace-agent".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || channel.run())?;
        Ok(Self { address, shared })
    }

    /// The guest has these disks now: name and facts.
    pub fn set_disks(&self, disks: Vec<(String, Disk)>) {
        self.shared.lock().set_disks(disks);
    }

    /// What it says of the guest's disks, for a snapshot.
    pub fn read(&self) -> GuestLayer {
        self.shared.lock().read(clock::monotonic_ns())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shared.leave.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Heard> {
        // Values; a thread that panicked has left its last ones.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
