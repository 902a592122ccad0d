//! `cargo xtask test`: the workspace's tests, then the live scenarios.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use nestrace_rig::packages;
use xtask::cargo_build::cargo;
use xtask::case::Report;
use xtask::progress::{Progress, timed};

use crate::context::LiveContext;
use crate::long_cases::LONG_CASES;
use crate::scenario::Scenario;
use crate::scenarios::scenarios;
use crate::{data_set, fuzz, installed_packages, lanes};

/// The name of the stage that runs `cargo test`.
const WORKSPACE: &str = "workspace";

/// The name of the stage that tests nestrace-fleet.
const FLEET: &str = "fleet";

/// Options of `test`.
#[derive(clap::Args)]
pub struct TestArgs {
    /// Every combination of the matrix, where an earlier run of the same commit stopped, and a host inside a guest
    #[arg(long)]
    full: bool,
    /// Only this stage, or (STAGE/PREFIX) those of its cases; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Names the stages
    #[arg(long)]
    list: bool,
    /// Runs the live scenarios with this nestrace, and the nestrace-lab and nestrace-disk beside it, instead of building them
    #[arg(long, value_name = "PROGRAM")]
    nestrace: Option<PathBuf>,
    /// Runs the agents of the live scenarios with this static nestrace-agent instead of building one
    #[arg(long, value_name = "PROGRAM")]
    agent: Option<PathBuf>,
    /// So many live scenarios at a time
    #[arg(long, value_name = "LANES", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    jobs: u8,
    /// Keeps the recordings of the live scenarios and says where they are
    #[arg(long)]
    keep: bool,
}

/// Runs the stages; the last line of stdout is `N passed, N failed`.
pub fn run(args: &TestArgs) -> anyhow::Result<ExitCode> {
    let scenarios = scenarios();
    if args.list {
        println!("{WORKSPACE:14} unit, property and snapshot tests of every crate");
        println!("{FLEET:14} the tests of nestrace-fleet, which is outside the workspace");
        println!("{:14} {}", fuzz::STAGE, fuzz::ABOUT);
        let (name, about) = (installed_packages::STAGE, installed_packages::ABOUT);
        println!("{name:14} {about}");
        for scenario in &scenarios {
            println!("{:14} {}", scenario.name, scenario.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    check_names(&args.only, &scenarios)?;
    let wanted =
        |name: &str| args.only.is_empty() || args.only.iter().any(|only| stage_of(only) == name);
    let progress = Progress::start();
    packages::install(|line| progress.say(line))?;
    let mut report = Report::default();
    if wanted(WORKSPACE) {
        timed(WORKSPACE, || workspace_tests(&mut report))?;
    }
    if wanted(FLEET) {
        timed(FLEET, || {
            report.case("cargo test in nestrace-fleet", |_| {
                data_set::fleet::test(args.full)
            })?;
            Ok(())
        })?;
    }
    if wanted(fuzz::STAGE) {
        timed(fuzz::STAGE, || {
            fuzz::run(args.full, &args.only, &mut report)
        })?;
    }
    if wanted(installed_packages::STAGE) {
        timed(installed_packages::STAGE, || {
            installed_packages::run(args.full, &args.only, &mut report)
        })?;
    }
    let scenarios: Vec<Scenario> = scenarios
        .into_iter()
        .filter(|scenario| wanted(scenario.name))
        .collect();
    if !scenarios.is_empty() {
        let ctx = LiveContext::prepare(args.nestrace.clone(), args.full, progress)?
            .only(&args.only)
            .with_agent(args.agent.clone())?
            .keeping(args.keep);
        // A compiler beside guests would take the processors that they are timed on.
        if args.only.is_empty() {
            timed("programs of guests", || ctx.build_guest_programs())?;
        }
        let mut lanes = vec![ctx];
        for lane in 1..usize::from(args.jobs).min(scenarios.len()) {
            lanes.push(lanes[0].beside(lane)?);
        }
        for lane in lanes::run(scenarios, lanes, &mut report)? {
            if let Some(folder) = lane.keep_folder() {
                println!("recordings are in {}", folder.display());
            }
        }
    }
    // Of a full matrix all may have passed before.
    let ran = report.passed().len() + report.failed().len();
    anyhow::ensure!(
        ran > 0 || args.full,
        "find a case called {}: a whole run of its stage prints the names",
        args.only.join(" or ")
    );
    if !args.full && args.only.is_empty() {
        let left = LONG_CASES.iter().map(|(case, _)| *case);
        println!("left to --full: {}", left.collect::<Vec<_>>().join(", "));
    }
    for name in report.failed() {
        println!("failed: {name}");
    }
    println!(
        "{} passed, {} failed",
        report.passed().len(),
        report.failed().len()
    );
    Ok(if report.failed().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// `stacks/xfs/raw` → `stacks`.
fn stage_of(only: &str) -> &str {
    only.split('/').next().unwrap_or(only)
}

fn check_names(only: &[String], scenarios: &[Scenario]) -> anyhow::Result<()> {
    for name in only {
        let name = stage_of(name);
        let known = [WORKSPACE, FLEET, fuzz::STAGE, installed_packages::STAGE].contains(&name)
            || scenarios.iter().any(|scenario| scenario.name == name);
        anyhow::ensure!(known, "find the stage {name}: see cargo xtask test --list");
    }
    Ok(())
}

fn workspace_tests(report: &mut Report) -> anyhow::Result<()> {
    report.case("cargo test --workspace", |_| {
        let status = cargo()
            .args(["test", "--workspace", "--locked", "--no-fail-fast"])
            .status()
            .context("start cargo")?;
        anyhow::ensure!(status.success(), "pass cargo test --workspace");
        Ok(())
    })?;
    Ok(())
}
