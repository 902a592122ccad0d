//! `nestrace repair`: a clean bundle from a damaged one.
//!
//! Every whole batch is kept with its bytes, every index is made anew, and what is lost is written into
//! the manifest, so that the new bundle's analysis says what the old one's did. The damaged bundle is
//! only read, and the new one appears as a whole or not at all.

mod damaged;

use std::{
    io::{self, BufWriter, Write},
    path::Path,
};

use nestrace_analyzer::units::{count, of};
use nestrace_output::address_secret::new_shift;
use nestrace_trace::{
    Damage, Diagnostic, ImageMap, Manifest,
    address::Shift,
    bundle::{HOST_STREAM, IMAGE_MAPS, index_of},
    manifest::{Loss, Notice, State},
    redact, repair,
    salvage::{self, Glimpse},
};

use crate::{
    bundle::Stream,
    cli::RepairArgs,
    damage::DamageNotes,
    damage_notes::guest_stream_damaged,
    exit::{DONE, FAILURE, Failure, INPUT, hold, note, noted, say},
    new_bundle::{self, NewBundle, not_written},
};
use damaged::Damaged;

/// Repairs.
pub fn run(args: &RepairArgs) -> Result<u8, Failure> {
    let mut damaged = Damaged::open(&args.input)?;
    new_bundle::refuse_input(&args.output, &args.input, "the damaged bundle")?;
    let new = NewBundle::begin(&args.output, args.force)?;
    let manifest = fill(&mut damaged, &new, args.redact)?;
    new.appear(&manifest)?;
    let output = args.output.display();
    say(format_args!("wrote {output}"));
    say(format_args!("next: nestrace analyze {output}"));
    Ok(DONE)
}

/// Writes everything but the manifest, which is returned.
fn fill(damaged: &mut Damaged, new: &NewBundle, redacted: bool) -> Result<Manifest, Failure> {
    let given = damaged.manifest.clone();
    // Streams are named after guests: a stream without a manifest gets its guest's name from its file.
    let known = damaged.plan();
    let (files, names) = (file_names(&known, false), file_names(&known, redacted));
    let mut kept = Vec::new();
    let mut host_shift = None;
    for (file, name) in files.iter().zip(&names) {
        // Of a recording that hides its addresses already they are shifted again.
        let shift = redacted.then(new_shift).transpose()?;
        if file == HOST_STREAM {
            host_shift = shift;
        }
        kept.push(keep(damaged, file, name, new, shift.as_ref())?);
    }
    if kept.iter().all(|stream| stream.rows == 0) && given.is_none() {
        return Err(damaged.nothing());
    }
    if let Some(maps) = damaged.image_maps() {
        write_maps(maps, new, redacted)?;
    }
    damaged.notes.iter().for_each(note);
    let mut manifest = match given {
        Some(_) => known,
        None => {
            let glimpses: Vec<Glimpse> = kept.iter().map(|kept| kept.glimpse.clone()).collect();
            salvage::manifest(&glimpses)
        }
    };
    damaged.describe(&mut manifest, &kept);
    account(&mut manifest, &kept);
    if redacted {
        manifest = redact::manifest(&manifest);
        if let Some(shift) = &host_shift {
            redact::addresses(&mut manifest, shift);
        }
        hold(
            "names of processes, files, guests and machines, serial numbers, addresses and times of day were taken out",
        );
    }
    Ok(manifest)
}

/// What the files of the new bundle are called, the host's first and then those of the guests' sides.
fn file_names(manifest: &Manifest, redacted: bool) -> Vec<String> {
    let files = |manifest: &Manifest| {
        let sides = manifest.guest_sides.iter().map(|side| side.file.clone());
        [HOST_STREAM.to_owned()].into_iter().chain(sides).collect()
    };
    if redacted {
        files(&redact::manifest(manifest))
    } else {
        files(manifest)
    }
}

/// What became of one stream.
struct Kept {
    glimpse: Glimpse,
    rows: u64,
    damage: Damage,
    /// Why nothing of it can be read.
    unreadable: Option<String>,
}

/// Writes what is whole of a stream to the file `name` of the new bundle.
fn keep(
    damaged: &mut Damaged,
    file: &str,
    name: &str,
    new: &NewBundle,
    redacted: Option<&Shift>,
) -> Result<Kept, Failure> {
    let mut kept = Kept {
        glimpse: Glimpse::new(file),
        rows: 0,
        damage: Damage::default(),
        unreadable: None,
    };
    match damaged.take_stream(file) {
        Ok(mut stream) => {
            kept.rows = match redacted {
                Some(shift) => copy_redacted(&mut stream, name, new, (&mut kept.glimpse, shift))?,
                None => copy(&mut stream, name, new, &mut kept.glimpse)?,
            };
            kept.damage = Damage::of(stream.diagnostics());
            say_kept(file, &kept, stream.diagnostics());
        }
        Err(why) => {
            // A closed stream without events says that nothing is known.
            let mut empty = new.new_stream(name)?;
            empty.finish().map_err(|error| not_written(&error))?;
            hold(format_args!("{file}: nothing can be kept: {why}"));
            kept.damage.cut = true;
            kept.damage.rows_lost = damaged.events_by_index(file).unwrap_or(0);
            kept.unreadable = Some(why);
        }
    }
    Ok(kept)
}

fn copy(
    stream: &mut Stream,
    name: &str,
    new: &NewBundle,
    glimpse: &mut Glimpse,
) -> Result<u64, Failure> {
    let (file, index) = (new.new_file(name)?, new.new_file(&index_of(name))?);
    repair::copy_whole(stream, file, index, |batch| glimpse.look(batch))
        .map(|copied| copied.rows)
        .map_err(|error| not_written(&error))
}

/// Without names, the batches have other bytes; they have the same events at the same places.
fn copy_redacted(
    stream: &mut Stream,
    name: &str,
    new: &NewBundle,
    (glimpse, shift): (&mut Glimpse, &Shift),
) -> Result<u64, Failure> {
    let mut writer = new.new_stream(name)?;
    let mut batch = nestrace_trace::Batch::default();
    while stream.read_into(&mut batch) {
        glimpse.look(&batch);
        for mut event in batch.events() {
            redact::event(&mut event);
            shift.event(&mut event);
            writer.push(&event).map_err(|error| not_written(&error))?;
        }
        writer.flush_batch().map_err(|error| not_written(&error))?;
    }
    let written = writer.finish().map_err(|error| not_written(&error))?;
    Ok(written.rows)
}

/// What was kept and what was lost of a stream, in words.
fn say_kept(file: &str, kept: &Kept, diagnostics: &[Diagnostic]) {
    let mut notes = DamageNotes::default();
    diagnostics
        .iter()
        .for_each(|note| notes.note(&mut noted, file, note));
    notes.note_rest(&mut noted);
    let rows = of(kept.rows, "event", "events");
    let lost = match (kept.damage.rows_lost, kept.damage.cut) {
        (0, false) => String::from("nothing is missing"),
        (0, true) => String::from("how many are missing is not known"),
        (lost, _) => format!("{} lost", count(lost)),
    };
    hold(format_args!("{file}: {rows} kept, {lost}"));
}

fn write_maps(mut maps: Vec<ImageMap>, new: &NewBundle, redacted: bool) -> Result<(), Failure> {
    for map in maps.iter_mut().filter(|_| redacted) {
        if let Some(partial) = &mut map.partial {
            "something is missing (the reason was removed)".clone_into(partial);
        }
    }
    let mut file = BufWriter::new(new.new_file(IMAGE_MAPS)?);
    serde_json::to_writer(&mut file, &maps)
        .map_err(io::Error::from)
        // What is still held when it is dropped would be lost without a word.
        .and_then(|()| file.flush())
        .map_err(|error| Failure::new(FAILURE, format!("write {IMAGE_MAPS}: {error}")))
}

/// Writes into the manifest what the analysis of the damaged bundle finds out by itself.
fn account(manifest: &mut Manifest, kept: &[Kept]) {
    let mut cut = manifest.state == State::Recording;
    for stream in kept {
        let sides = &manifest.guest_sides;
        let side = sides.iter().find(|side| side.file == stream.glimpse.file);
        let guest = side.map(|side| side.guest.clone());
        // Where the disk was full, what could not be written is counted; what was written and is lost is not.
        let damage = Damage {
            cut: stream.damage.cut && !manifest.disk_was_full(guest.as_deref()),
            ..stream.damage
        };
        if damage.rows_lost > 0 {
            manifest.losses.push(Loss {
                source: "damaged".to_owned(),
                guest: guest.clone(),
                events: damage.rows_lost,
            });
        }
        match guest {
            None => cut |= damage.cut,
            Some(guest) if damage.cut => manifest.notices.push(guest_stream_damaged(&guest)),
            Some(_) => {}
        }
        if stream.unreadable.is_some() && stream.glimpse.file == HOST_STREAM {
            manifest.notices.push(Notice {
                what: "host_stream_missing".to_owned(),
                message: "what was recorded on the host cannot be read".to_owned(),
                ..Notice::default()
            });
        }
    }
    if cut {
        manifest.state = State::Repaired;
    }
}

/// Nothing of the bundle can be read.
fn nothing_in(path: &Path, why: &str) -> Failure {
    Failure::new(INPUT, format!("{}: {why}", path.display()))
        .hint("a bundle is a directory NAME.nest with host.arrows and manifest.json")
}
