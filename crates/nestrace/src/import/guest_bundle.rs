//! What `nestrace-agent --output` wrote in the guest.
//!
//! What it tells of itself is bounded as if an agent had sent it: it ends up on somebody's terminal, and what is
//! missing in it has to be said there.

use std::{collections::BTreeMap, io::BufReader, path::Path};

use nestrace_output::address_secret::new_shift;
use nestrace_trace::{
    Damage, Source, StreamReader,
    bundle::HOST_STREAM,
    manifest::{GuestSide, Loss, Manifest, Notice, RefusedInput, State},
};
use nestrace_wire::{AgentHello, bound_probes, bound_refused, bound_text, files};

use super::{Target, bad, read_manifest};
use crate::{
    bundle::{events_by_index, is_file_name},
    damage::DamageNotes,
    damage_notes::GUEST_STREAM_DAMAGED,
    exit::{Failure, INPUT, note, noted},
    input_file,
};

/// Notices that are kept of a guest, as of one whose agent is heard.
const MAX_NOTICES: usize = 40;
/// What an agent's bundle lost, where it is not events of a [`Source`].
const OTHER_LOSSES: [&str; 3] = ["damaged", "disk_full", "guest_stream"];

/// Imports it.
pub fn import(bundle: &Path, target: &mut Target) -> Result<(), Failure> {
    let manifest = read_manifest(bundle)?;
    if manifest.guest_sides.is_empty() {
        return Err(bad(bundle, "it was not made by an agent in a guest"));
    }
    if !manifest
        .guest_sides
        .iter()
        .all(|side| is_file_name(&side.file))
    {
        return Err(bad(bundle, "its manifest names a file outside of it"));
    }
    if events_by_index(bundle, HOST_STREAM).is_some_and(|events| events > 0) {
        note(format_args!(
            "{}: what it recorded on its host is left out, and only its guest's part is imported",
            bundle.display()
        ));
    }
    target.write_host()?;
    let mut damage = Damage {
        rows_lost: 0,
        cut: manifest.state != State::Complete || tells_of_damage(&manifest),
    };
    for side in &manifest.guest_sides {
        let found = import_side(&bundle.join(&side.file), side, target)?;
        damage.rows_lost = damage.rows_lost.saturating_add(found.rows_lost);
        damage.cut |= found.cut && !manifest.disk_was_full(Some(&side.guest));
    }
    take_losses(&manifest.losses, target);
    take_notices(manifest.notices, target);
    target.note_damage(damage);
    Ok(())
}

/// `nestrace repair` found it damaged.
fn tells_of_damage(manifest: &Manifest) -> bool {
    let mut notices = manifest.notices.iter();
    notices.any(|notice| notice.what == GUEST_STREAM_DAMAGED)
}

/// What it lost by its own count, each source once.
fn take_losses(told: &[Loss], target: &mut Target) {
    let sources = Source::ALL.iter().map(|source| source.name());
    let mut events: BTreeMap<&str, u64> = sources.chain(OTHER_LOSSES).map(|it| (it, 0)).collect();
    let mut unknown = 0;
    for loss in told {
        match events.get_mut(loss.source.as_str()) {
            Some(events) => *events = events.saturating_add(loss.events),
            None => unknown += 1,
        }
    }
    let lost = events.into_iter().filter(|(_, events)| *events > 0);
    let guest = &target.guest;
    target
        .manifest
        .losses
        .extend(lost.map(|(source, events)| Loss {
            source: source.to_owned(),
            guest: Some(guest.clone()),
            events,
        }));
    refuse(target, "loss of a source that is not known", unknown);
}

/// What it says in words. Its times are the guest's, and its words could be taken for the host's.
fn take_notices(told: Vec<Notice>, target: &mut Target) {
    let told = told
        .into_iter()
        .filter(|notice| notice.what != GUEST_STREAM_DAMAGED);
    let mut too_many = 0;
    for (nth, mut notice) in told.enumerate() {
        if nth >= MAX_NOTICES {
            too_many += 1;
            continue;
        }
        bound_text(&mut notice.message);
        target.manifest.notices.push(Notice {
            what: "agent_says".to_owned(),
            message: format!("guest {}: its agent says: {}", target.guest, notice.message),
            ..Notice::default()
        });
    }
    refuse(target, "notice after too many others", too_many);
}

fn refuse(target: &mut Target, reason: &str, times: u64) {
    if let Some(side) = target.manifest.guest_sides.last_mut()
        && times > 0
    {
        side.refused.push(RefusedInput {
            reason: reason.to_owned(),
            times,
        });
    }
}

/// Imports one session; what is damaged in it.
fn import_side(path: &Path, told: &GuestSide, target: &mut Target) -> Result<Damage, Failure> {
    let mut side = bounded(told);
    let file = input_file::open(path).map_err(|error| bad(path, error))?;
    let mut index = path.to_owned().into_os_string();
    index.push(".idx");
    let index = input_file::open(Path::new(&index)).ok().map(BufReader::new);
    let mut reader = StreamReader::new(file, index).map_err(|error| {
        // Two bundles are on the line.
        Failure::caused(INPUT, &error).of(&path.display().to_string())
    })?;
    let mut writing = target.begin(&mut side)?;
    // An older agent did not hide them, and twice does no harm.
    writing.shift = Some(new_shift()?);
    for event in reader.events() {
        writing.push(event)?;
    }
    let mut notes = DamageNotes::default();
    for diagnostic in reader.diagnostics() {
        notes.note(&mut noted, &path.display().to_string(), diagnostic);
    }
    notes.note_rest(&mut noted);
    target.end(writing, side)?;
    Ok(Damage::of(reader.diagnostics()))
}

/// What the agent sent about the guest, without names of guests and files.
fn bounded(told: &GuestSide) -> GuestSide {
    let mut hello = AgentHello {
        agent_version: told.agent_version.clone(),
        backend: told.backend.clone(),
        backend_reason: told.backend_reason.clone(),
        machine: told.machine.clone(),
        memory: told.memory,
        unix_ns: told.start_unix_ns,
        mono_ns: told.start_mono_ns,
        disks: told.disks.clone(),
        mounts: told.mounts.clone(),
        clock_correction_ppm: told.clock_correction_ppm,
        ..AgentHello::default()
    };
    hello.bound();
    let mut side = GuestSide {
        live_mono_ns: told.live_mono_ns,
        end_mono_ns: told.end_mono_ns,
        probes: told.probes.clone(),
        probes_refused: told.probes_refused.clone(),
        files: told
            .files
            .iter()
            .cloned()
            .filter_map(files::bounded)
            .collect(),
        ..hello.guest_side("", "")
    };
    // An agent that is heard does not say since when a number is another disk's; this one has noted it.
    for (disk, told) in side.disks.iter_mut().zip(&told.disks) {
        (disk.since_mono_ns, disk.until_mono_ns) = (told.since_mono_ns, told.until_mono_ns);
    }
    bound_probes(&mut side.probes);
    bound_refused(&mut side.probes_refused);
    side
}
