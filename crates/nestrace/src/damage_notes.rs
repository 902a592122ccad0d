//! Says on stderr what is damaged in an input, at a length that a person reads.

use std::collections::BTreeMap;

use nestrace_trace::{Diagnostic, Manifest, manifest::Notice};

use crate::exit::note;

/// Says what is damaged in the host's stream, or in that of this guest.
pub fn say_stream(guest: Option<&str>, diagnostics: &[Diagnostic]) {
    let place = guest.map_or_else(String::new, |guest| format!("from inside {guest}"));
    let mut notes = DamageNotes::default();
    for diagnostic in diagnostics {
        notes.say(&place, diagnostic);
    }
    notes.say_rest();
}

/// The word of [`guest_stream_damaged`].
pub use nestrace_analyzer::GUEST_STREAM_DAMAGED;

/// What a new bundle says of a guest's stream that was cut in the old one.
pub fn guest_stream_damaged(guest: &str) -> Notice {
    Notice {
        what: GUEST_STREAM_DAMAGED.to_owned(),
        message: format!("what was recorded inside {guest} is damaged or was not closed"),
        ..Notice::default()
    }
}

/// Whether a bundle says that of a guest's stream; without names it may be any guest's.
pub fn tells_of_damage_inside(manifest: &Manifest, guest: &str) -> bool {
    let told = guest_stream_damaged(guest).message;
    let without_names = GUEST_STREAM_DAMAGED.replace('_', " ");
    let mut notices = manifest.notices.iter();
    notices.any(|notice| {
        notice.what == GUEST_STREAM_DAMAGED && [&told, &without_names].contains(&&notice.message)
    })
}

/// How many are spelled out for one file or stream.
const SPELLED_OUT: u64 = 3;

/// A file with thousands of damaged places gets a few lines and a sum.
#[derive(Default)]
pub struct DamageNotes {
    by_place: BTreeMap<String, Damage>,
}

#[derive(Default)]
struct Damage {
    notes: u64,
    rows_lost: u64,
}

impl DamageNotes {
    /// Takes one diagnostic about `place` (a file, a guest's side; empty where there is only one).
    pub fn say(&mut self, place: &str, diagnostic: &Diagnostic) {
        let damage = self.by_place.entry(place.to_owned()).or_default();
        damage.notes += 1;
        damage.rows_lost += diagnostic.rows_lost.unwrap_or(0);
        if damage.notes <= SPELLED_OUT {
            note(format_args!("{}{diagnostic}", before(place)));
        }
    }

    /// Says how much was not spelled out.
    pub fn say_rest(self) {
        for (place, Damage { notes, rows_lost }) in self.by_place {
            if notes > SPELLED_OUT {
                note(format_args!(
                    "{}{} more places like these; {rows_lost} events lost in all {notes}",
                    before(&place),
                    notes - SPELLED_OUT,
                ));
            }
        }
    }
}

fn before(place: &str) -> String {
    if place.is_empty() {
        String::new()
    } else {
        format!("{place}: ")
    }
}
