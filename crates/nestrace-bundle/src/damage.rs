//! Notes about damaged inputs, short enough to read.

use std::collections::BTreeMap;

use nestrace_trace::Diagnostic;

use crate::Notes;

/// Notes the damage in the host's stream, or in this guest's.
pub fn note_stream(notes: &mut Notes<'_>, guest: Option<&str>, diagnostics: &[Diagnostic]) {
    let place = guest.map_or_else(String::new, |guest| format!("from inside {guest}"));
    let mut damage = DamageNotes::default();
    for diagnostic in diagnostics {
        damage.note(notes, &place, diagnostic);
    }
    damage.note_rest(notes);
}

/// How many are spelled out for one file or stream.
const SPELLED_OUT: u64 = 3;

/// A file with thousands of damaged places gets a few lines and a sum.
#[derive(Debug, Default)]
pub struct DamageNotes {
    by_place: BTreeMap<String, Damage>,
}

#[derive(Debug, Default)]
struct Damage {
    notes: u64,
    rows_lost: u64,
}

impl DamageNotes {
    /// Takes one diagnostic about `place` (a file, a guest's side; empty where there is only one).
    pub fn note(&mut self, notes: &mut Notes<'_>, place: &str, diagnostic: &Diagnostic) {
        let damage = self.by_place.entry(place.to_owned()).or_default();
        damage.notes += 1;
        damage.rows_lost += diagnostic.rows_lost.unwrap_or(0);
        if damage.notes <= SPELLED_OUT {
            notes(&format_args!("{}{diagnostic}", before(place)));
        }
    }

    /// Notes how many more there were.
    pub fn note_rest(self, each: &mut Notes<'_>) {
        for (place, Damage { notes, rows_lost }) in self.by_place {
            if notes > SPELLED_OUT {
                each(&format_args!(
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
