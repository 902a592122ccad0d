//! From layer to layer: the clock, requests with what serves them, chains, the guest's side.

pub(crate) mod calls;
pub(crate) mod chains;
pub mod clock;
pub(crate) mod cpu;
pub(crate) mod guest_memory;
pub(crate) mod guest_side;
pub(crate) mod served;
