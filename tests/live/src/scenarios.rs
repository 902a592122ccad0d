//! All groups of live tests.
//!
//! A new one is a file of this crate with `pub const SCENARIO: Scenario` and a line in [`scenarios`].

use crate::scenario::Scenario;
use crate::{
    agent, bench, block_device, block_graph, block_jobs, calls, cpu, data_set, database, embedding,
    export, flight, guest_kernels, guest_side, hostile_host, image_names, jobs, kernels, lab,
    libvirt, limits, modelled_disk, namespaces, newest_kernel, pressure, qemu_10, qemu_versions,
    raid_stripes, recognition, remote, replay, report, stacked_devices, stacked_layers, stacks,
    stuck, survival, top, truth, two_guests, without_functions,
};

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
        calls::SCENARIO,
        database::SCENARIO,
        without_functions::SCENARIO,
        kernels::SCENARIO_6_1,
        kernels::SCENARIO_6_12,
        kernels::SCENARIO_7_3,
        guest_kernels::SCENARIO,
        newest_kernel::SCENARIO,
        libvirt::SCENARIO,
        stacked_devices::SCENARIO,
        stacked_layers::SCENARIO,
        raid_stripes::SCENARIO,
        two_guests::SCENARIO,
        block_device::SCENARIO,
        namespaces::SCENARIO,
        qemu_10::SCENARIO,
        qemu_versions::SCENARIO,
        block_graph::SCENARIO,
        image_names::SCENARIO,
        recognition::SCENARIO,
        stuck::SCENARIO,
        block_jobs::SCENARIO,
        jobs::SCENARIO,
        remote::SCENARIO,
        limits::SCENARIO,
        pressure::SCENARIO,
        flight::SCENARIO,
        top::SCENARIO,
        export::SCENARIO,
        data_set::SCENARIO,
        replay::SCENARIO,
        report::SCENARIO,
        embedding::SCENARIO,
        modelled_disk::SCENARIO,
        flight::UNDER_LOAD,
        cpu::SCENARIO,
        bench::SCENARIO,
    ]
}
