//! `cargo xtask vm`: boots guests of other kernels and runs a command in them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::{initramfs, kernel_image, packages};
use xtask::progress::Progress;

use crate::elsewhere;

/// Options of `vm`.
#[derive(clap::Args)]
pub struct VmArgs {
    /// Instead: fetch the archive's newest kernel, write its layout to fixtures/kernel, and follow a guest with it
    #[arg(value_enum, conflicts_with_all = ["kernels", "command"])]
    what: Option<What>,
    /// Debian kernel series; may be given several times
    #[arg(long = "kernel", default_values = ["6.1", "6.12"])]
    kernels: Vec<String>,
    /// File of this machine to have in the guest as /opt/NAME; may be given several times
    #[arg(long = "file")]
    files: Vec<PathBuf>,
    /// Module to load at boot; may be given several times
    #[arg(long = "module")]
    modules: Vec<String>,
    /// Memory of the guest, MiB
    #[arg(long, default_value_t = 512)]
    memory: u32,
    /// Seconds that the command may take
    #[arg(long, default_value_t = 60)]
    timeout: u64,
    /// Shell command to run in each guest
    #[arg(last = true, default_values = ["uname", "-a"])]
    command: Vec<String>,
}

/// What `vm` does instead of running a command.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// The archive's newest kernel.
    Newest,
}

/// Runs the command in a guest of each kernel; fails when one of them failed.
pub fn run(args: &VmArgs) -> anyhow::Result<ExitCode> {
    if let Some(What::Newest) = args.what {
        return elsewhere::newest_kernel();
    }
    let progress = Progress::start();
    packages::install(|line| progress.say(line))?;
    let mut all_good = true;
    for series in &args.kernels {
        let kernel = kernel_image::obtain(series)?;
        let initramfs = initramfs::obtain(&kernel)?;
        let mut spec = GuestSpec::new(format!("vm-{}", std::process::id()), &kernel, &initramfs);
        spec.memory_mib = args.memory;
        spec.modules.clone_from(&args.modules);
        for file in &args.files {
            let name = file
                .file_name()
                .context("name a file for the guest")?
                .to_string_lossy();
            spec.files.push((format!("/opt/{name}"), file.clone()));
        }
        progress.say(&format!("booting {}", kernel.release));
        let guest = Guest::boot(spec)?;
        progress.say(&format!("{} is up", kernel.release));
        let output = guest.run(&args.command.join(" "), Duration::from_secs(args.timeout))?;
        print!("{}", output.stdout);
        eprint!("{}", output.stderr);
        all_good &= output.status == 0;
        progress.say(&format!("{}: status {}", kernel.release, output.status));
    }
    Ok(if all_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
