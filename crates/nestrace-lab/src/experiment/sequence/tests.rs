//! A whole run over a folder of results, with something in place of guests.

use std::path::{Path, PathBuf};

use nestrace_report::lab::{Cell, CellRun, Machine, RUN_SCHEMA, RunHeader};
use nestrace_rig::external_tool::ToolError;

use super::super::bench::Reach;
use super::super::read_results;
use super::super::results_folder::ResultsFolder;
use super::*;
use crate::plan::Schedule;

/// Three cells (the bare device is one) that share a guest, each with two repetitions and a recording.
const PLAN: &str = "name = 'p'\nrepetitions = 2\nrecord_seconds = 1\n\
                    [axes]\nhost_fs = ['ext4', 'xfs']\n\
                    [[workload]]\nname = 'randwrite'\n";

/// A bench that fails or crashes where the test says so, and keeps what it was asked for.
struct Told<'p> {
    plan: &'p Plan,
    asked: Vec<(String, Kind)>,
    /// Cell and kind → what the failure affects.
    fails: Vec<(&'p str, Kind, Reach)>,
    /// Ends the run as a crash would, after so many steps.
    crashes_after: usize,
}

impl<'p> Told<'p> {
    fn new(plan: &'p Plan) -> Self {
        Self {
            plan,
            asked: Vec::new(),
            fails: Vec::new(),
            crashes_after: usize::MAX,
        }
    }
}

impl Bench for Told<'_> {
    fn run(&mut self, step: &Step, bundle: Option<&Path>) -> Result<CellRun, StepError> {
        let id = self.plan.cells[step.cell].id.as_str();
        self.asked.push((id.to_owned(), step.kind));
        if let Some(bundle) = bundle {
            // As the recorder does: what is there has to be nothing.
            std::fs::create_dir(bundle).unwrap();
        }
        assert!(self.asked.len() <= self.crashes_after, "crash");
        let fails = self
            .fails
            .iter()
            .find(|(cell, kind, _)| *cell == id && *kind == step.kind);
        match fails {
            Some((.., reach)) => Err(StepError {
                error: LabError::NoResult {
                    workload: String::from("randwrite"),
                    said: String::from("it hangs"),
                },
                reach: *reach,
            }),
            None => Ok(CellRun {
                value: self.asked.len() as f64,
                ..CellRun::default()
            }),
        }
    }

    fn accelerator(&self) -> Option<&'static str> {
        Some("tcg")
    }
}

/// A plan, its order, and a folder for its results.
struct Rig {
    plan: Plan,
    schedule: Schedule,
    root: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let plan = Plan::read(PLAN).unwrap();
        let schedule = plan.schedule();
        assert_eq!((schedule.batches.len(), schedule.steps.len()), (1, 9));
        Self {
            plan,
            schedule,
            root: tempfile::tempdir().unwrap(),
        }
    }

    /// As another start of the program.
    fn start(&self, bench: &mut Told<'_>) -> Result<Outcome, LabError> {
        let folder = ResultsFolder::open(self.root.path(), PLAN).unwrap();
        let mut ledger = Ledger::open(&self.plan, folder).unwrap();
        if !ledger.goes_on_with(&Machine::default()).unwrap() {
            let cells = self.plan.cells.iter().map(|cell| cell.id.clone());
            let header = RunHeader {
                schema: RUN_SCHEMA.to_owned(),
                cells: cells.collect(),
                ..RunHeader::default()
            };
            ledger.write_header(header).unwrap();
        }
        run(
            &self.plan,
            &self.schedule.steps,
            &mut ledger,
            bench,
            &mut |_| {},
        )
    }

    fn crash_after(&self, steps: usize) {
        let mut bench = Told::new(&self.plan);
        bench.crashes_after = steps;
        let run = std::panic::AssertUnwindSafe(|| self.start(&mut bench));
        assert!(std::panic::catch_unwind(run).is_err());
    }

    fn cells(&self) -> Vec<Cell> {
        read_results(self.root.path()).unwrap().1
    }

    fn cell(&self, id: &str) -> Cell {
        let mut cells = self.cells().into_iter();
        cells.find(|cell| cell.id == id).unwrap()
    }

    fn bundle(&self, id: &str) -> PathBuf {
        self.root.path().join(format!("{id}.nest"))
    }

    fn named(&self, steps: &[Step]) -> Vec<(String, Kind)> {
        let name = |step: &Step| (self.plan.cells[step.cell].id.clone(), step.kind);
        steps.iter().map(name).collect()
    }
}

#[test]
fn a_run_that_crashed_goes_on_with_what_is_missing_and_nothing_else() {
    for done in 0..9 {
        let rig = Rig::new();
        // The step after the last finished one had begun.
        rig.crash_after(done);
        let kept: Vec<CellRun> = rig.cells().into_iter().flat_map(|cell| cell.runs).collect();
        let mut bench = Told::new(&rig.plan);
        let outcome = rig.start(&mut bench).unwrap();
        assert_eq!(
            bench.asked,
            rig.named(&rig.schedule.steps[done..]),
            "{done}"
        );
        assert_eq!((outcome.n_cells, outcome.n_failed), (3, 0));
        let cells = rig.cells();
        for cell in &cells {
            assert_eq!(cell.runs.len(), 2, "{done}: {}", cell.id);
            assert!(cell.recorded.is_some() && rig.bundle(&cell.id).is_dir());
        }
        let runs: Vec<CellRun> = cells.into_iter().flat_map(|cell| cell.runs).collect();
        assert!(kept.iter().all(|run| runs.contains(run)), "{done}");
        // Nothing is left to be done.
        let mut bench = Told::new(&rig.plan);
        rig.start(&mut bench).unwrap();
        assert!(bench.asked.is_empty());
    }
}

#[test]
fn a_recording_that_a_crash_left_half_written_is_made_again() {
    let rig = Rig::new();
    // In the middle of the first recording.
    rig.crash_after(6);
    let [.., first, _, _] = rig.schedule.steps.as_slice() else {
        panic!("nine steps");
    };
    let id = rig.plan.cells[first.cell].id.clone();
    assert_eq!(first.kind, Kind::Recorded);
    // No manifest: no recorder would take it for a bundle that it may replace.
    let left = rig.bundle(&id).join("host.arrows");
    std::fs::write(&left, "ARRO").unwrap();
    assert_eq!(rig.cell(&id).recording, None);
    let mut bench = Told::new(&rig.plan);
    rig.start(&mut bench).unwrap();
    assert_eq!(bench.asked[0], (id.clone(), Kind::Recorded));
    assert!(!left.exists() && rig.bundle(&id).is_dir());
    assert_eq!(rig.cell(&id).recording, Some(format!("{id}.nest")));
}

#[test]
fn a_recording_that_somebody_removed_is_made_again() {
    let rig = Rig::new();
    rig.start(&mut Told::new(&rig.plan)).unwrap();
    std::fs::remove_dir(rig.bundle("ext4-on-xfs")).unwrap();
    let mut bench = Told::new(&rig.plan);
    rig.start(&mut bench).unwrap();
    let again = (String::from("ext4-on-xfs"), Kind::Recorded);
    assert_eq!(bench.asked, [again]);
}

#[test]
fn a_failure_is_its_cells_and_is_tried_again_by_the_next_start() {
    let rig = Rig::new();
    let mut bench = Told::new(&rig.plan);
    bench.fails = vec![("ext4-on-xfs", Kind::Timed(2), Reach::Cell)];
    let outcome = rig.start(&mut bench).unwrap();
    assert_eq!((outcome.n_cells, outcome.n_failed), (3, 1));
    assert!(!outcome.is_failure());
    // Its recording is not tried any more, the others' are made.
    assert_eq!(bench.asked.len(), 8);
    let cell = rig.cell("ext4-on-xfs");
    assert_eq!((cell.runs.len(), cell.recorded.is_some()), (1, false));
    let [failure] = cell.failures.as_slice() else {
        panic!("{:?}", cell.failures);
    };
    assert_eq!(failure.repetition, 2);
    assert!(failure.message.contains("it hangs"), "{failure:?}");
    let mut bench = Told::new(&rig.plan);
    let outcome = rig.start(&mut bench).unwrap();
    assert_eq!((bench.asked.len(), outcome.n_failed), (2, 0));
    assert!(rig.cell("ext4-on-xfs").failures.is_empty());
}

#[test]
fn where_no_guest_comes_up_finished_cells_have_no_failure() {
    let rig = Rig::new();
    // The guest dies between the second and the third cell of the last block.
    let last = rig.named(&rig.schedule.steps[8..]);
    let mut bench = Told::new(&rig.plan);
    bench.fails = vec![(&last[0].0, Kind::Recorded, Reach::Batch)];
    let outcome = rig.start(&mut bench).unwrap();
    assert_eq!((bench.asked.len(), outcome.n_failed), (9, 1));
    // Recorded by halves: it would be read as a recording of the cell.
    assert!(!rig.bundle(&last[0].0).exists());
    let outcome = rig.start(&mut Told::new(&rig.plan)).unwrap();
    assert_eq!(outcome.n_failed, 0);
}

#[test]
fn where_no_guest_comes_up_at_all_every_cell_says_so_and_only_one_tried() {
    let rig = Rig::new();
    let first = rig.named(&rig.schedule.steps[..1]);
    let mut bench = Told::new(&rig.plan);
    bench.fails = vec![(&first[0].0, Kind::Timed(1), Reach::Batch)];
    let outcome = rig.start(&mut bench).unwrap();
    assert_eq!((bench.asked.len(), outcome.n_failed), (1, 3));
    assert!(outcome.is_failure());
    for cell in rig.cells() {
        assert_eq!(cell.failures.len(), 1, "{}", cell.id);
        assert_eq!(cell.failures[0].repetition, 1);
    }
}

#[test]
fn a_damaged_result_is_told_and_not_written_over() {
    let rig = Rig::new();
    rig.start(&mut Told::new(&rig.plan)).unwrap();
    let place = rig.root.path().join("ext4-on-xfs.json");
    std::fs::write(&place, "{").unwrap();
    let folder = ResultsFolder::open(rig.root.path(), PLAN).unwrap();
    let error = Ledger::open(&rig.plan, folder).unwrap_err();
    assert!(error.to_string().contains("ext4-on-xfs.json"), "{error}");
    assert_eq!(std::fs::read_to_string(place).unwrap(), "{");
}

#[test]
fn an_error_is_told_in_a_line() {
    let error = LabError::Base(super::super::BaseError::Tool(ToolError::Start {
        program: String::from("mkfs.xfs"),
        source: std::io::ErrorKind::NotFound.into(),
    }));
    let (message, log) = failure::told(&error);
    assert!(
        !message.contains('\n') && message.contains("mkfs.xfs"),
        "{message}"
    );
    assert!(log.contains("mkfs.xfs"));
}

#[test]
fn results_of_another_kernel_are_not_gone_on_with() {
    let lab = Rig::new();
    let folder = ResultsFolder::open(lab.root.path(), PLAN).unwrap();
    let mut ledger = Ledger::open(&lab.plan, folder).unwrap();
    let machine = |kernel: &str| Machine {
        host_kernel: kernel.to_owned(),
        ..Machine::default()
    };
    let is_there = |ledger: &Ledger, kernel: &str| ledger.goes_on_with(&machine(kernel));
    assert!(!is_there(&ledger, "6.1").unwrap());
    let header = RunHeader {
        schema: RUN_SCHEMA.to_owned(),
        machine: machine("6.1"),
        ..RunHeader::default()
    };
    ledger.write_header(header).unwrap();
    // Nothing was run yet: the header is made again.
    assert!(is_there(&ledger, "6.1").unwrap() && !is_there(&ledger, "6.12").unwrap());
    let step = lab.schedule.steps[0];
    ledger.note_run(&step, CellRun::default()).unwrap();
    assert!(is_there(&ledger, "6.1").unwrap());
    let error = is_there(&ledger, "6.12").unwrap_err().to_string();
    assert!(error.contains("6.1") && error.contains("6.12"), "{error}");
}
