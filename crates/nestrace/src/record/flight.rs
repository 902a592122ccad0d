//! `nestrace record --flight`.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use nestrace_record::{flight::Flight, recording::Summary};
use tokio::signal::unix::Signal;

use crate::{
    cli::RecordArgs,
    exit::{FAILURE, Failure, USAGE, say},
    new_bundle,
};

/// Bytes of a bundle's streams where `--max-size` says nothing.
const MAX_BYTES: u64 = 256 << 20;

/// What is kept and when it is written; `None` of a recording without `--flight`.
pub(super) fn options(args: &RecordArgs, output: &Path) -> Result<Option<Flight>, Failure> {
    let Some(before) = args.flight.flight else {
        return Ok(None);
    };
    let outputs: Vec<PathBuf> = (1..=args.flight.repeat)
        .map(|number| numbered(output, number))
        .collect();
    let is_there = outputs.iter().find(|path| path.symlink_metadata().is_ok());
    if let Some(path) = is_there.filter(|_| !args.force) {
        return Err(new_bundle::exists(path));
    }
    if let Some(file) = &args.flight.until_file
        && file.symlink_metadata().is_ok()
    {
        let message = format!("{} of --until-file is there already", file.display());
        return Err(Failure::new(USAGE, message).hint("remove it; it counts when it appears"));
    }
    let before = Duration::from_secs_f64(before);
    let until = args.flight.until.clone();
    let window_ns = until.as_ref().map_or(0, |until| until.longest_window_ns());
    if Duration::from_nanos(window_ns) > before {
        let message = "the condition looks back further than --flight keeps";
        return Err(Failure::new(USAGE, message).hint("a longer --flight, or a shorter `for`"));
    }
    let flight = Flight {
        before,
        after: Duration::from_secs_f64(args.flight.after),
        until,
        until_file: args.flight.until_file.clone(),
        outputs,
        pause: args.flight.pause.map_or(before, Duration::from_secs_f64),
        max_bytes: args.max_size.unwrap_or(MAX_BYTES),
    };
    Ok(Some(flight))
}

/// `vm1.nest`, `vm1-2.nest`, …
fn numbered(output: &Path, number: u32) -> PathBuf {
    if number == 1 {
        return output.to_owned();
    }
    let mut name = OsString::from(output.file_stem().unwrap_or_default());
    name.push(format!("-{number}"));
    if let Some(extension) = output.extension() {
        name.push(".");
        name.push(extension);
    }
    output.with_file_name(name)
}

/// Waits for the signal; without one, for ever.
pub(super) async fn asked(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Says what was written. Bundles before the last one were announced when they were closed.
pub(super) fn report(summary: &Summary, bundles: &[PathBuf]) -> Result<(), Failure> {
    for notice in &summary.notices {
        say(format_args!("note: {}", notice.message));
    }
    let (watched, ended) = (summary.duration.as_secs_f64(), &summary.end_reason);
    match (&summary.failed, bundles.last()) {
        (Some(message), _) => return Err(Failure::new(FAILURE, message.clone())),
        (None, None) => say(format_args!(
            "watched for {watched:.1} s, and wrote nothing (ended: {ended})"
        )),
        (None, Some(last)) => {
            let n = bundles.len();
            let bundles = if n == 1 { "bundle" } else { "bundles" };
            let last = last.display();
            say(format_args!(
                "wrote {n} {bundles}, {last} last (ended: {ended})"
            ));
            say(format_args!("next: nestrace analyze {last}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_are_numbered_from_the_second_on() {
        for (output, number, expected) in [
            ("a/vm1.nest", 1, "a/vm1.nest"),
            ("a/vm1.nest", 2, "a/vm1-2.nest"),
            ("vm1.x.nest", 12, "vm1.x-12.nest"),
            ("vm1", 3, "vm1-3"),
        ] {
            assert_eq!(numbered(Path::new(output), number), Path::new(expected));
        }
    }
}
