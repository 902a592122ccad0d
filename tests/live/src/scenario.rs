//! A group of live tests, and all of them.
//!
//! A new one is a file of this crate with `pub const SCENARIO: Scenario` and a line in [`scenarios`].

use xtask::case::Report;

use crate::context::LiveContext;
use crate::{
    agent, bench, block_device, block_graph, embedding, export, guest_kernels, guest_side,
    hostile_host, image_names, kernels, lab, libvirt, namespaces, newest_kernel, qemu_10,
    qemu_versions, recognition, replay, report, stacked_devices, stacks, survival, truth,
    two_guests, without_functions,
};

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
        bench::SCENARIO,
    ]
}
