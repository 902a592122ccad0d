//! Tests on live guests: the real program is run as a user would, and its JSON is held against
//! counts that the kernel and QEMU keep by themselves.
//!
//! A new scenario is a file here with `pub const SCENARIO: Scenario` and a line in [`scenarios`].

mod agent;
mod analysis;
mod backend_calls;
mod block_device;
mod block_graph;
mod case;
mod direct_io_link;
mod embedding;
mod export;
mod full_state;
mod ground_truth;
mod guest_kernels;
mod guest_programs;
mod guest_side;
mod hostile_host;
mod image_names;
mod image_pattern;
mod kernels;
mod lab;
mod lanes;
mod libvirt;
mod measure;
mod nameless_qemu;
mod namespaces;
mod newest_kernel;
mod python;
mod qemu_10;
mod qemu_versions;
mod random_load;
mod recognition;
mod replay;
mod report;
mod rig;
mod stacked_devices;
mod stacks;
mod stopped_qemu;
mod survival;
mod topology;
mod truth;
mod two_guests;
mod without_functions;

pub use case::{Case, Report};
pub use guest_programs::agent as static_agent;
pub use lanes::run as run_scenarios;
pub use newest_kernel::freeze_and_follow as newest_kernel;
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
    /// It measures: nothing may run beside it.
    pub alone: bool,
}

/// Every scenario, the long ones first, so that lanes end together; what runs alone comes last.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        stacks::SCENARIO,
        lab::SCENARIO,
        agent::SCENARIO,
        guest_side::SCENARIO,
        hostile_host::SCENARIO,
        survival::SCENARIO,
        truth::SCENARIO,
        without_functions::SCENARIO,
        kernels::SCENARIO_6_1,
        kernels::SCENARIO_6_12,
        kernels::SCENARIO_7_3,
        guest_kernels::SCENARIO,
        newest_kernel::SCENARIO,
        libvirt::SCENARIO,
        stacked_devices::SCENARIO,
        two_guests::SCENARIO,
        block_device::SCENARIO,
        namespaces::SCENARIO,
        qemu_10::SCENARIO,
        qemu_versions::SCENARIO,
        block_graph::SCENARIO,
        image_names::SCENARIO,
        recognition::SCENARIO,
        export::SCENARIO,
        replay::SCENARIO,
        report::SCENARIO,
        embedding::SCENARIO,
        crate::bench::SCENARIO,
    ]
}
