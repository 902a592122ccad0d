//! Tests on live guests: the real program is run as a user would, and its JSON is held against
//! counts that the kernel and QEMU keep by themselves.
//!
//! A new scenario is a file here with `pub const SCENARIO: Scenario` and a line in [`scenarios`].

mod analysis;
mod backend_calls;
mod block_device;
mod case;
mod direct_io_link;
mod ground_truth;
mod image_pattern;
mod kernels;
mod libvirt;
mod measure;
mod namespaces;
mod qemu_10;
mod rig;
mod stacks;
mod survival;
mod topology;
mod two_guests;

pub use case::{Case, Report};
pub use rig::{LiveContext, NeedsRoot, require_root};

/// One group of live tests.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// For `--only`.
    pub name: &'static str,
    /// For `--list`.
    pub about: &'static str,
    /// Runs the group: each case is reported by itself. An error ends the group and counts as one
    /// failed case.
    pub run: fn(&LiveContext, &mut Report) -> anyhow::Result<()>,
}

/// Every scenario, in the order of running.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        stacks::SCENARIO,
        two_guests::SCENARIO,
        survival::SCENARIO,
        block_device::SCENARIO,
        namespaces::SCENARIO,
        libvirt::SCENARIO,
        qemu_10::SCENARIO,
        kernels::SCENARIO_6_1,
        kernels::SCENARIO_6_12,
        crate::bench::SCENARIO,
    ]
}
