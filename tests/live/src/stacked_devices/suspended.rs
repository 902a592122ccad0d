//! `nestrace stuck` while a device of dm below an image is suspended.

use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use xtask::case::Case;

use crate::kernels::machine::Machine;

/// QEMU and its libraries are read over 9p by a translated guest.
const PATIENCE: Duration = Duration::from_secs(200);

/// The device is named, whether or not its file system is frozen too.
pub fn check(case: &mut Case, machine: &Machine) -> anyhow::Result<()> {
    let lines = machine.run_script("stuck.sh", PATIENCE)?;
    let device = &machine.device("linear")?.kernel_name;
    let mut answers = lines.lines().map(serde_json::from_str::<Value>);
    for what in ["suspended", "suspended and frozen"] {
        let answer = answers.next().context("read an answer")??;
        let guest = &answer["guests"][0];
        let shown = guest.to_string();
        case.holds(
            &format!("{what}: verdict"),
            guest["verdict"] == "stuck",
            &shown,
        );
        case.holds(&format!("{what}: disk"), guest["disk"] == "vda", &shown);
        let holder = &guest["holder"];
        case.holds(
            &format!("{what}: holder"),
            holder["kind"] == "suspended_device" && holder["name"] == device.as_str(),
            &shown,
        );
        case.figure(guest["sentence"].as_str().unwrap_or_default());
    }
    Ok(())
}
