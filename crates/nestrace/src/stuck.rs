//! `nestrace stuck`: what each guest's disks wait for now.

use std::thread;
use std::time::{Duration, Instant};

use nestrace_record::{guest::Selection, roles::finder::in_flight_apart};
use nestrace_stuck::{
    judge::{Answer, judge},
    text,
};

use crate::{
    cli::StuckArgs,
    exit::{self, DONE, FAILURE, Failure, MISSING, print, say},
    guests,
};

/// Time between the two samples of a look.
const INTERVAL: Duration = Duration::from_secs(2);
/// With `--watch`, a look begins so long after the one before it, or at once where that took longer.
const PAUSE: Duration = Duration::from_secs(5);

/// Looks once, or again and again, and prints a sentence for each guest; 4 where no guest could be seen.
pub fn run(args: &StuckArgs) -> Result<u8, Failure> {
    let selection = if args.guest.is_empty() {
        Selection::All
    } else {
        Selection::Named(args.guest.clone())
    };
    let mut notes = Vec::new();
    loop {
        let begin = Instant::now();
        let facts =
            in_flight_apart(&selection, INTERVAL).map_err(|error| guests::failure(&error))?;
        let answer = judge(facts);
        // In a row of looks each is said once.
        for note in &answer.notes {
            if !notes.contains(note) {
                exit::note(note);
            }
        }
        notes.clone_from(&answer.notes);
        check_rights(&answer)?;
        show(&answer, args)?;
        if !args.watch {
            return Ok(DONE);
        }
        thread::sleep((begin + PAUSE).saturating_duration_since(Instant::now()));
    }
}

fn show(answer: &Answer, args: &StuckArgs) -> Result<(), Failure> {
    if args.json {
        // One line for each look, or one document.
        let json = match args.watch {
            true => serde_json::to_string(answer),
            false => serde_json::to_string_pretty(answer),
        };
        let json = json.map_err(|error| Failure::caused(FAILURE, &error))?;
        return print(&format!("{json}\n"));
    }
    if answer.guests.is_empty() {
        say("no QEMU guest is running");
        return Ok(());
    }
    let time = match args.watch {
        true => format!("{}\n", chrono::Local::now().format("%H:%M:%S")),
        false => String::new(),
    };
    print(&format!("{time}{}", text::render(answer)))
}

/// A user sees nothing of another user's guests.
fn check_rights(answer: &Answer) -> Result<(), Failure> {
    let is_hidden = answer.guests.iter().all(|guest| guest.facts.is_hidden);
    if answer.guests.is_empty() || !is_hidden {
        return Ok(());
    }
    Err(Failure::new(
        MISSING,
        "the guests belong to other users: this user can see neither their threads nor their files \
         (CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH)",
    )
    .hint("sudo nestrace stuck"))
}
