//! Calls of the guests' programs: who waits, for which file, and where the time goes.

use maud::{Markup, html};
use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{CallRow, GuestCalls};

use super::MAX_LINES;
use super::page::{list, more, note, section, table};
use crate::text::calls::{COLUMNS, WHAT_ASYNC, cells, guests, is_async, programs, remarks, title};

pub(super) fn calls(analysis: &Analysis) -> Markup {
    html! {
        @for (place, (guest, calls)) in guests(analysis).take(MAX_LINES).enumerate() {
            (of_guest(analysis, guest, calls, place))
        }
    }
}

fn of_guest(analysis: &Analysis, guest: &GuestCalls, calls: &[CallRow], place: usize) -> Markup {
    let programs = programs(calls, &guest.guest, MAX_LINES);
    let mut head = vec!["program", "file", "call"];
    head.extend(COLUMNS);
    let mut lines = Vec::new();
    for program in &programs {
        for (file, rows) in program.by_file() {
            for row in rows {
                let (call, cells) = cells(row);
                let mut line = vec![program.name.to_owned(), file.clone(), call];
                line.extend(cells);
                lines.push(line);
            }
        }
    }
    let has_async = || {
        programs
            .iter()
            .flat_map(|it| &it.rows)
            .any(|row| is_async(row))
    };
    let n_rows = calls.iter().filter(|row| row.guest == guest.guest).count();
    let body = html! {
        (list(programs.iter().map(|program| format!("{}.", program.sentence()))))
        (table(&head, &lines))
        (more(n_rows, MAX_LINES))
        @if has_async() { (note(WHAT_ASYNC)) }
        @for remark in remarks(guest) { (note(&remark)) }
    };
    section(&format!("calls-{place}"), &title(analysis, guest), &body)
}
