//! `nestrace doctor`.

use nestrace_record::doctor::DoctorReport;

use crate::{
    cli::DoctorArgs,
    exit::{DONE, FAILURE, Failure, MISSING, print},
};

/// Prints the report; 4 where nothing could be recorded.
pub fn run(args: &DoctorArgs) -> Result<u8, Failure> {
    let report = DoctorReport::of_this_machine();
    if args.json {
        let json = serde_json::to_string_pretty(&report)
            .map_err(|error| Failure::caused(FAILURE, &error))?;
        print(&format!("{json}\n"))?;
    } else {
        print(&report.to_text())?;
    }
    if report.can_record {
        return Ok(DONE);
    }
    let why = report.obstacle.unwrap_or_default();
    Err(Failure::new(
        MISSING,
        format!("this user cannot record on this machine: {why}"),
    ))
}
