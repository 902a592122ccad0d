//! The text of `nestrace lab plan`, in 80 columns.

use std::path::Path;

use nestrace_lab::experiment::{CellStanding, Standing};
use nestrace_lab::plan::{Plan, PlannedCell};
use nestrace_report::lab::power;
use nestrace_report::table::wrap;
use nestrace_report::units;

use super::named_devices;

const WIDTH: usize = 80;
/// Combinations that are listed as left out.
const MAX_EXCLUDED: usize = 12;

/// What a plan would run; of a folder of results, what of it is finished there.
pub fn render(plan: &Plan, folder: Option<(&Path, &Standing)>) -> String {
    let mut lines = vec![plan.name.clone()];
    lines.extend(wrap(&plan.about, WIDTH, ""));
    let ids = plan.cells.iter().map(|cell| cell.id.chars().count());
    let width = ids.max().unwrap_or(0);
    let mut workload = None;
    for (number, cell) in plan.cells.iter().enumerate() {
        if workload.replace(&cell.workload.name) != Some(&cell.workload.name) {
            lines.extend([String::new(), cell.workload.name.clone()]);
        }
        let standing = folder.and_then(|(_, standing)| standing.cells.get(number));
        lines.extend(of_cell(plan, cell, width, standing));
    }
    lines.push(String::new());
    lines.push(String::from("* the baseline of the others"));
    if !plan.excluded.is_empty() {
        lines.extend([String::new(), String::from("Left out:")]);
    }
    for one in plan.excluded.iter().take(MAX_EXCLUDED) {
        lines.extend(hanging("  ", &format!("{}: {}", one.what, one.reason)));
    }
    if plan.excluded.len() > MAX_EXCLUDED {
        let more = plan.excluded.len() - MAX_EXCLUDED;
        lines.push(format!("  and {more} more"));
    }
    lines.push(String::new());
    lines.extend(takes(plan));
    if let Some(erases) = named_devices::erases(plan) {
        lines.extend(wrap(&erases, WIDTH, ""));
    }
    if let Some((folder, standing)) = folder {
        lines.push(String::new());
        lines.extend(wrap(&how_far(folder, standing), WIDTH, ""));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// `* ext4-on-bd-seqread  ext4 on bd (none, native, virtio)`: a star for what is no cell's equal but the measure
/// of others, its name, its stack or how far it is.
fn of_cell(
    plan: &Plan,
    cell: &PlannedCell,
    width: usize,
    standing: Option<&CellStanding>,
) -> Vec<String> {
    let mark = if cell.baseline.is_none() { '*' } else { ' ' };
    let about = match standing {
        Some(standing) => state(plan, cell, *standing),
        None => cell.combination.to_string(),
    };
    let line = format!("{mark} {:<width$}  {about}", cell.id);
    if line.chars().count() <= WIDTH {
        return vec![line];
    }
    let mut lines = vec![format!("{mark} {}", cell.id)];
    lines.extend(wrap(&about, WIDTH, "      "));
    lines
}

/// `finished`, `2 of 3 timed, not recorded, failed`.
fn state(plan: &Plan, planned: &PlannedCell, cell: CellStanding) -> String {
    let wanted = plan.record_seconds > 0 && planned.can_be_recorded();
    let all = plan.repetitions as usize;
    let whole = cell.n_timed >= all && (cell.is_recorded || !wanted);
    let mut parts = match (whole, cell.n_timed, cell.is_recorded) {
        (true, ..) => vec![String::from("finished")],
        (_, 0, false) => vec![String::from("open")],
        (_, n_timed, is_recorded) => {
            let recorded = match (wanted, is_recorded) {
                (true, true) => Some("recorded"),
                (true, false) => Some("not recorded"),
                (false, _) => None,
            };
            let timed = format!("{n_timed} of {all} timed");
            [timed]
                .into_iter()
                .chain(recorded.map(str::to_owned))
                .collect()
        }
    };
    if cell.has_failed {
        parts.push(String::from("failed"));
    }
    parts.join(", ")
}

fn how_far(folder: &Path, standing: &Standing) -> String {
    let folder = folder.display();
    let open = standing.n_all - standing.n_done;
    let runs = |n: usize| units::of(n as u64, "run", "runs");
    match (standing.n_done, open) {
        (0, _) => format!("Nothing of it is in {folder} yet."),
        (_, 0) => {
            format!(
                "All of it is finished in {folder}; nestrace lab report {folder} prints the results."
            )
        }
        (done, _) => format!(
            "{done} of {} are finished in {folder}; {open} would still run, about {} without boots. \
             nestrace lab run goes on there.",
            runs(standing.n_all),
            duration(standing.seconds_left)
        ),
    }
}

/// Lines; all but the first are indented further.
fn hanging(indent: &str, text: &str) -> Vec<String> {
    let inner = format!("{indent}  ");
    let mut lines = wrap(text, WIDTH, &inner);
    if let Some(first) = lines.first_mut() {
        *first = format!("{indent}{}", first.trim_start());
    }
    lines
}

/// What a plan takes, in a sentence.
pub fn takes(plan: &Plan) -> Vec<String> {
    let estimate = plan.estimate();
    let recorded = if plan.record_seconds > 0 {
        " and one that is recorded"
    } else {
        ""
    };
    let models: Vec<&str> = plan.modelled_disks().into_iter().collect();
    let disk = if models.is_empty() {
        String::new()
    } else {
        format!(", on modelled disks ({})", models.join(", "))
    };
    let cache = match estimate.cache_bytes {
        0 => String::new(),
        bytes => format!(
            "{} for the guests' data in the cache, unless it is there already, ",
            units::size(bytes)
        ),
    };
    let sentence = format!(
        "{} with {} of each{recorded}{disk}: {}, {}; about {} under translation, \
         {} of disk while it runs, {cache}{} of results, {} of memory",
        units::of(plan.cells.len() as u64, "cell", "cells"),
        units::of(u64::from(plan.repetitions), "repetition", "repetitions"),
        units::of(estimate.n_runs as u64, "run", "runs"),
        units::of(estimate.n_boots as u64, "boot", "boots"),
        duration(estimate.seconds),
        units::size(estimate.work_bytes),
        units::size(estimate.result_bytes),
        units::size(estimate.memory_bytes),
    );
    let mut lines = wrap(&sentence, WIDTH, "");
    lines.extend(wrap(&shows(plan), WIDTH, ""));
    lines
}

/// Standard deviation of repetitions as a share of their mean. On modelled disks it was 2 to 5 % for most workloads of
/// translated guests; on this machine's own disk repetitions were 17 to 40 % apart.
fn expected_deviation(plan: &Plan) -> f64 {
    let mut cells = plan.cells.iter();
    if cells.all(|cell| cell.combination.host_disk.model().is_some()) {
        0.04
    } else {
        0.15
    }
}

/// Which differences a plan can show, in a sentence.
fn shows(plan: &Plan) -> String {
    let deviation = expected_deviation(plan);
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let Some(difference) = power::smallest_difference(plan.repetitions, deviation) else {
        return String::from("With one repetition no difference is reported.");
    };
    format!(
        "If repetitions have a standard deviation of {}, a difference of {} is reported in {} of plans; \
         equal cells are called different in {}.",
        percent(deviation),
        percent(difference),
        percent(power::POWER),
        percent(power::false_alarm(plan.repetitions)),
    )
}

/// `2 h 05 min`, `3 min 20 s`.
pub fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestrace_lab::plan::shipped;

    #[test]
    fn what_a_plan_takes_fits_a_terminal() {
        let plan = Plan::read(shipped::text("fast12").unwrap()).unwrap();
        let lines = takes(&plan);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.chars().count() <= WIDTH));
    }

    #[test]
    fn durations_have_two_units() {
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(185), "3 min 05 s");
        assert_eq!(duration(7_500), "2 h 05 min");
    }

    #[test]
    fn every_plan_fits_a_terminal_and_names_each_cell() {
        for (name, text) in shipped::PLANS {
            let plan = Plan::read(text).unwrap();
            let halfway = Standing {
                cells: vec![
                    CellStanding {
                        n_timed: 1,
                        is_recorded: false,
                        has_failed: true,
                    };
                    plan.cells.len()
                ],
                n_done: 1,
                n_all: 2,
                seconds_left: 7,
            };
            let folder = (Path::new("results"), &halfway);
            for text in [render(&plan, None), render(&plan, Some(folder))] {
                for line in text.lines() {
                    assert!(line.chars().count() <= WIDTH, "{name}: {line}");
                }
                for cell in &plan.cells {
                    assert!(text.contains(&cell.id), "{name}: {}", cell.id);
                }
            }
        }
    }

    #[test]
    fn what_guests_get_has_its_room_in_the_cache() {
        let takes = |workload: &str| {
            let text = format!("name = 'p'\n[[workload]]\nname = '{workload}'\n");
            takes(&Plan::read(&text).unwrap()).join(" ")
        };
        let said = takes("randread");
        assert!(
            said.contains("640 MiB for the guests' data in the cache, unless it is there already"),
            "{said}"
        );
        let said = takes("unpack-tree");
        assert!(
            said.contains("769 MiB for the guests' data in the cache, unless it is there already"),
            "{said}"
        );
    }

    #[test]
    fn a_cell_is_finished_when_it_was_timed_and_recorded() {
        let plan = Plan::read(shipped::text("quick").unwrap()).unwrap();
        let all = plan.repetitions as usize;
        for (n_timed, is_recorded, has_failed, expected) in [
            (0, false, false, "open"),
            (0, false, true, "open, failed"),
            (all, true, false, "finished"),
            (all, false, false, "3 of 3 timed, not recorded"),
            (1, true, true, "1 of 3 timed, recorded, failed"),
        ] {
            let cell = CellStanding {
                n_timed,
                is_recorded,
                has_failed,
            };
            assert_eq!(state(&plan, &plan.cells[0], cell), expected);
        }
    }
}
