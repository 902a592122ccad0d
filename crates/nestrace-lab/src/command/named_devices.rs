//! Devices of the user's that a plan names: nothing is written to one that the command line did not name too.

use std::path::{Path, PathBuf};

use nestrace_lab::plan::Plan;
use nestrace_report::units;
use nestrace_trace::shell_word;

use nestrace_cli::exit::{Failure, USAGE};
use nestrace_cli::lab::LabRunArgs;

/// What is lost on the devices that a plan names.
pub(super) fn erases(plan: &Plan) -> Option<String> {
    if plan.devices.is_empty() {
        return None;
    }
    let devices: Vec<&PathBuf> = plan.devices.iter().collect();
    Some(format!(
        "Erases {}; {} are needed of each.",
        names(&devices),
        units::size(plan.device_bytes())
    ))
}

/// Whether every device of the plan was named on the command line, and no other.
pub(super) fn check(plan: &Plan, args: &LabRunArgs) -> Result<(), Failure> {
    let told = &args.i_know_this_erases;
    // Letter by letter: what is another way to write it today may be another device tomorrow.
    let has = |list: &[PathBuf], device: &Path| {
        list.iter().any(|one| one.as_os_str() == device.as_os_str())
    };
    let strange: Vec<&PathBuf> = told.iter().filter(|d| !has(&plan.devices, d)).collect();
    if !strange.is_empty() {
        return Err(
            Failure::new(USAGE, format!("the plan does not use {}", names(&strange)))
                .hint("devices are named in the plan: [host] devices = [\"/dev/sdb1\"]"),
        );
    }
    let untold: Vec<&PathBuf> = plan.devices.iter().filter(|d| !has(told, d)).collect();
    if untold.is_empty() {
        return Ok(());
    }
    Err(
        Failure::new(USAGE, format!("this plan erases {}", names(&untold))).hint(format!(
            "if nothing on it is needed: {}",
            whole_line(plan, args)
        )),
    )
}

/// The line that runs a plan with its devices, as it is to be typed.
pub(super) fn whole_line(plan: &Plan, args: &LabRunArgs) -> String {
    let mut words = vec![format!("sudo nestrace lab run {}", path_word(&args.plan))];
    words.extend(
        args.output
            .iter()
            .map(|folder| format!("-o {}", path_word(folder))),
    );
    words.extend(args.install.then(|| String::from("--install")));
    words.extend(
        args.only
            .iter()
            .map(|cell| format!("--only {}", shell_word(cell))),
    );
    let devices = plan.devices.iter();
    words.extend(devices.map(|device| format!("--i-know-this-erases {}", path_word(device))));
    words.join(" ")
}

fn path_word(path: &Path) -> String {
    shell_word(&path.display().to_string())
}

fn names(devices: &[&PathBuf]) -> String {
    let names: Vec<String> = devices.iter().map(|d| d.display().to_string()).collect();
    names.join(" and ")
}

/// The arguments of `lab run mine.toml -o out` with these devices.
#[cfg(test)]
pub(super) fn args_of(erases: &[&str]) -> LabRunArgs {
    LabRunArgs {
        plan: PathBuf::from("mine.toml"),
        output: Some(PathBuf::from("out")),
        install: false,
        inside_guest: false,
        only: Vec::new(),
        i_know_this_erases: erases.iter().map(PathBuf::from).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_device_is_erased_that_was_not_named_twice() {
        let text = "name = 'p'\n[host]\ndevices = ['/dev/sdb1', '/dev/sdb2']\n[[workload]]\nname = 'randread'\n";
        let plan = Plan::read(text).unwrap();
        check(&plan, &args_of(&["/dev/sdb2", "/dev/sdb1"])).unwrap();
        for (erases, told) in [
            (&[][..], "this plan erases /dev/sdb1 and /dev/sdb2"),
            (&["/dev/sdb1"], "this plan erases /dev/sdb2"),
            (
                &["/dev/sdb1", "/dev/sdb2", "/dev/sdc"],
                "the plan does not use /dev/sdc",
            ),
            // Another name of it may be another device tomorrow.
            (
                &["/dev/sdb1", "/dev/./sdb2/"],
                "the plan does not use /dev/./sdb2/",
            ),
        ] {
            let failure = check(&plan, &args_of(erases)).unwrap_err();
            assert_eq!((failure.code(), failure.message()), (USAGE, told));
        }
        assert_eq!(
            whole_line(&plan, &args_of(&[])),
            "sudo nestrace lab run mine.toml -o out \
             --i-know-this-erases /dev/sdb1 --i-know-this-erases /dev/sdb2"
        );
    }
}
