//! Tests on live guests: the real program is run as a user would, and its JSON is held against
//! counts that the kernel and QEMU keep by themselves.
//!
//! `cargo xtask test`, `fixtures` and `vm newest` build this program and become it.

mod agent;
mod analysis;
mod backend_calls;
mod backup;
mod bench;
mod block_device;
mod block_graph;
mod block_jobs;
mod browser;
mod busy;
mod calls;
mod cgroup;
mod context;
mod cpu;
mod data_set;
mod database;
mod direct_io_link;
mod embedding;
mod export;
mod fixtures;
mod flight;
mod full_state;
mod fuzz;
mod ground_truth;
mod guest_kernels;
mod guest_side;
mod hostile_host;
mod image_names;
mod image_pattern;
mod installed_packages;
mod jobs;
mod kept_privileges;
mod kernels;
mod lab;
mod lanes;
mod libvirt;
mod limits;
mod little_memory;
mod long_cases;
mod measure;
mod modelled_disk;
mod nameless_qemu;
mod namespaces;
mod newest_kernel;
mod pressure;
mod python;
mod qemu_10;
mod qemu_versions;
mod raid_stripes;
mod random_load;
mod recognition;
mod remote;
mod replay;
mod report;
mod scenario;
mod scenarios;
mod stacked_devices;
mod stacked_layers;
mod stacks;
mod stage;
mod stopped_qemu;
mod stuck;
mod survival;
mod test;
mod top;
mod topology;
mod truth;
mod two_guests;
mod with_agents;
mod without_functions;

use std::process::ExitCode;

use clap::Parser;
use xtask::ending;
use xtask::progress::Progress;

use scenario::Scenario;

/// What `cargo xtask` hands over.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Runs every test, live guests included
    Test(test::TestArgs),
    /// Records the guests that test the rules of findings
    Fixtures(fixtures::FixturesArgs),
    /// Freezes the layout of the archive's newest kernel, and follows a guest with it
    NewestKernel,
}

fn main() -> ExitCode {
    let chore = Chore::parse();
    ending::of(|| match chore {
        Chore::Test(args) => test::run(&args),
        Chore::Fixtures(args) => fixtures::run(&args),
        Chore::NewestKernel => newest_kernel::freeze_and_follow(Progress::start()),
    })
}
