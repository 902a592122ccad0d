//! A capture of blktrace: one file for each processor, merged by time.

use std::path::PathBuf;

use nestrace_analyzer::LEFT_OUT;
use nestrace_blktrace::Outline;
use nestrace_trace::{
    Damage, Source,
    manifest::{GuestDisk, GuestSide, IMPORTED, Loss},
};

use super::Target;
use crate::capture::{self, CaptureFiles};
use crate::exit::{Failure, note, noted};

/// Imports the captures of these base names, as `blktrace -o BASENAME` and `blkparse -i` have them.
pub fn import(basenames: &[PathBuf], target: &mut Target) -> Result<(), Failure> {
    let mut files = Vec::new();
    for basename in basenames {
        files.extend(capture::files_of(basename, &mut noted)?);
    }
    let (outline, damage) = look(&files)?;
    let mut side = side_of(&outline, basenames);
    if outline.wall_clock.is_none() {
        note("the capture has no wall clock; only the I/O can show the offset of the clocks");
    }
    target.write_host()?;
    let mut writing = target.begin(&mut side)?;
    for event in capture::open_all(files)?.capture {
        writing.push(event)?;
    }
    note_missing(&outline, target);
    target.note_damage(damage);
    begin_at_first_io(&mut side, &outline);
    target.end(writing, side)
}

/// Writes down what is not in the capture, or not taken from it.
fn note_missing(outline: &Outline, target: &mut Target) {
    if outline.lost > 0 {
        note(format_args!(
            "{} records are missing by their numbers",
            outline.lost
        ));
        target.manifest.losses.push(Loss {
            source: Source::Block.name().to_owned(),
            guest: Some(target.guest.clone()),
            events: outline.lost,
        });
    }
    if outline.ignored > 0 {
        target.manifest.losses.push(Loss {
            source: LEFT_OUT.to_owned(),
            guest: Some(target.guest.clone()),
            events: outline.ignored,
        });
    }
}

/// It is not known how long blktrace waited for the first I/O: rates and depths are of the time since, as those
/// of `nestrace analyze BASENAME` are. (What was written before are names of threads.)
fn begin_at_first_io(side: &mut GuestSide, outline: &Outline) {
    let Some(first_ns) = outline.first_ns else {
        return;
    };
    let later_ns = first_ns.saturating_sub(side.start_mono_ns);
    side.start_mono_ns = first_ns;
    if side.start_unix_ns > 0 {
        side.start_unix_ns = side.start_unix_ns.saturating_add(later_ns);
    }
}

/// Reads everything once, because the guest's side is needed before its first event. Reports all damage.
fn look(files: &[PathBuf]) -> Result<(Outline, Damage), Failure> {
    let mut first: CaptureFiles = capture::open_all(files.to_vec())?;
    first.capture.by_ref().for_each(drop);
    if first.capture.outline().n_events == 0 {
        return Err(first.no_events().into());
    }
    first.note_damage(&mut noted);
    Ok((first.capture.outline().clone(), first.damage()))
}

fn side_of(outline: &Outline, basenames: &[PathBuf]) -> GuestSide {
    let first_ns = outline.first_ns.unwrap_or(0);
    let (clock_ns, unix_ns) = outline.wall_clock.unwrap_or((first_ns, 0));
    let start_mono_ns = clock_ns.min(first_ns);
    let start_unix_ns = unix_ns.saturating_sub(clock_ns - start_mono_ns);
    let base = basenames.first().and_then(|path| path.file_name());
    let base = base.unwrap_or_default().to_string_lossy();
    let only = basenames.len() == 1 && outline.devices.len() == 1;
    let disk = |dev: &u32| GuestDisk {
        name: if only {
            base.chars().filter(|c| !c.is_control()).take(64).collect()
        } else {
            format!("{}:{}", dev >> 20, dev & 0xf_ffff)
        },
        dev: *dev,
        ..GuestDisk::default()
    };
    GuestSide {
        backend: "blktrace".to_owned(),
        backend_reason: "a capture that blktrace made".to_owned(),
        agent_version: IMPORTED.to_owned(),
        start_unix_ns,
        start_mono_ns,
        live_mono_ns: first_ns,
        end_mono_ns: outline.last_ns,
        disks: outline.devices.iter().map(disk).collect(),
        ..GuestSide::default()
    }
}
