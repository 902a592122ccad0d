//! A guest with the disks of a batch, and one run of a workload in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nestrace_modelled_disk::lateness::GOAL_NS;
use nestrace_report::lab::{CellRun, DiskLateness};
use nestrace_rig::external_tool::last_lines;
use nestrace_rig::interrupt;
use nestrace_rig::modelled_disk::ModelledDiskSpec;
use nestrace_rig::named_device::NamedDevice;

use super::LabError;
use super::base::{Attached, Base, BaseError};
use super::boot::{BootParts, boot};
use super::counters::Snapshot;
use super::failure::{self, FailedScript};
use super::fio_result::FioResult;
use super::lab_guest::LabGuest;
use super::own_guest::{self, OwnGuestWithDisks};
use super::real_tool_result;
use super::recorder::Recording;
use super::results_folder::not_own;
use super::scripts::{measure_script, prepare_script, unmount_script};
use super::sysbench_result::SysbenchResult;
use super::work_folder;
use crate::plan::oltp;
use crate::plan::workload::{Action, OUTPUT, RESULT, Workload};
use crate::plan::{Batch, OwnGuest, Plan, PlannedCell};

/// mkfs and mount under translation, on a loaded machine, besides what the workload's layout takes.
const PREPARE_PATIENCE: Duration = Duration::from_secs(420);
/// A look at what a script has said.
const LOOK_PATIENCE: Duration = Duration::from_secs(20);

/// What stages are made from.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) guests: Guests,
    /// Whether recordings are made inside guests too.
    pub(super) has_agent: bool,
    /// Devices that the user named; empty where each is a loop device.
    pub(super) devices: Vec<Arc<NamedDevice>>,
    /// What modelled disks have in common.
    pub(super) modelled: ModelledDiskSpec,
}

/// Where guests come from.
#[derive(Debug)]
pub(super) enum Guests {
    /// The lab boots them.
    Booted(Box<BootParts>),
    /// One of the user's runs.
    Own(OwnGuest),
}

/// A guest and what lies under its disks.
#[derive(Debug)]
pub(super) struct Stage {
    // The guest goes first, then its disks.
    guest: LabGuest,
    accelerator: &'static str,
    /// The images of a guest of the user's.
    images: BTreeMap<usize, PathBuf>,
    bases: Vec<Base>,
    /// Disks that the guest does not have, because they or what lies under them could not be made, or because QEMU
    /// refuses them.
    missing: Vec<(Vec<usize>, Arc<LabError>)>,
    agent_runs: bool,
    has_agent: bool,
}

impl Stage {
    /// Makes the disks of a batch and boots a guest with them.
    pub(super) fn build(
        plan: &Plan,
        batch: &Batch,
        parts: &Parts,
        work: &Path,
    ) -> Result<Self, LabError> {
        work_folder::check(work).map_err(|source| not_own(work, source))?;
        let needs = batch.bases(plan.image_bytes);
        let mut bases = Vec::new();
        let mut missing: Vec<(Vec<usize>, Arc<LabError>)> = Vec::new();
        let mut disks = Vec::new();
        for (place, need) in needs.iter().enumerate() {
            let base = match Base::create(need, parts.devices.get(place), &parts.modelled, work) {
                Ok(base) => base,
                Err(error) => {
                    interrupt::check()?;
                    missing.push((need.disks.clone(), Arc::new(error.into())));
                    continue;
                }
            };
            for (number, made) in base.disks(batch, plan.image_bytes) {
                match made {
                    Ok(attached) => disks.push((number, attached)),
                    Err(error) => {
                        interrupt::check()?;
                        missing.push((vec![number], Arc::new(error.into())));
                    }
                }
            }
            bases.push(base);
        }
        if let (true, Some((_, error))) = (bases.is_empty(), missing.first()) {
            return Err(Arc::clone(error).into());
        }
        disks.sort_by_key(|(number, _)| *number);
        let mut images = BTreeMap::new();
        let (guest, accelerator) = match &parts.guests {
            Guests::Booted(boot_parts) => {
                let booted = boot(plan, boot_parts, disks)?;
                let refused = booted.refused.into_iter();
                missing.extend(refused.map(|(number, error)| (vec![number], Arc::new(error))));
                let guest = LabGuest::Booted(Box::new(booted.guest));
                (guest, booted.accelerator)
            }
            Guests::Own(own) => {
                let mut guest = OwnGuestWithDisks::of(own)?;
                for (number, attached) in disks {
                    let Attached::Disk(disk) = attached else {
                        continue;
                    };
                    match guest.attach(&disk) {
                        Ok(()) => {
                            images.insert(number, disk.image);
                        }
                        Err(error) => {
                            interrupt::check()?;
                            missing.push((vec![number], Arc::new(error.into())));
                        }
                    }
                }
                (LabGuest::Own(guest), own_guest::accelerator(own)?)
            }
        };
        Ok(Self {
            guest,
            accelerator,
            images,
            bases,
            missing,
            agent_runs: false,
            has_agent: parts.has_agent,
        })
    }

    /// Why a disk is not there, if it is not.
    pub(super) fn objection(&self, disk: usize) -> Option<LabError> {
        let mut missing = self.missing.iter();
        let (_, error) = missing.find(|(disks, _)| disks.contains(&disk))?;
        Some(Arc::clone(error).into())
    }

    /// `kvm` or `tcg`.
    pub(super) fn accelerator(&self) -> &'static str {
        self.accelerator
    }

    /// One run: a new file system, the workload, its counters; with a recorder, recorded for `seconds`.
    pub(super) fn run(
        &mut self,
        cell: &PlannedCell,
        disk: usize,
        recording: Option<(&Path, &Path, u32)>,
    ) -> Result<CellRun, LabError> {
        let recorded_seconds = recording.map_or(0, |(.., seconds)| seconds);
        let most_seconds = cell.workload.most_seconds() + recorded_seconds * 2;
        let patience = Duration::from_secs(u64::from(most_seconds));
        if let Some(base) = self.bases.iter().find(|base| base.carries(disk)) {
            base.pace(false)?;
        }
        self.guest
            .run_ok(&prepare_script(cell, disk), PREPARE_PATIENCE + patience)
            .map_err(|error| self.with_last_words(error))?;
        if recording.is_some() && self.has_agent && !self.agent_runs {
            self.guest.start_agent()?;
            self.agent_runs = true;
        }
        let base = self.bases.iter().find(|base| base.carries(disk));
        settle(base);
        if let Some(base) = base {
            base.pace(true)?;
        }
        let recorder = match recording {
            Some((nestrace, bundle, _)) => {
                let name = self.guest.name();
                let patience = self.guest.patience();
                Some(Recording::start(
                    nestrace,
                    name,
                    bundle,
                    self.has_agent,
                    patience,
                )?)
            }
            None => None,
        };
        let device = base.map_or("", Base::device);
        lateness(base)?;
        let before = Snapshot::of_host(device);
        let seconds = recording.map(|(.., seconds)| seconds);
        let stdout = self
            .guest
            .run_ok(&measure_script(cell, disk, seconds), patience)
            .map_err(|error| self.with_last_words(error))?;
        let after = Snapshot::of_host(device);
        let modelled = lateness(base)?;
        if let Some(recorder) = recorder {
            recorder.stop()?;
        }
        if let Some(base) = base {
            base.pace(false)?;
        }
        self.guest.run_ok(&unmount_script(), PREPARE_PATIENCE)?;
        let mut run = result(&cell.workload, &stdout)?;
        run.host = after.since(&before);
        run.modelled = modelled;
        run.disk = recording
            .zip(self.images.get(&disk))
            .and_then(|((_, bundle, _), image)| own_guest::recorded_disk(bundle, image));
        Ok(run)
    }

    /// Of a script that was killed: what the workload had said until then.
    fn with_last_words(&self, error: LabError) -> LabError {
        let killed = failure::script_of(&error).filter(FailedScript::was_killed);
        let Some(said) = killed.map(|script| script.said.to_owned()) else {
            return error;
        };
        let look = self.guest.run_ok(&last_words_script(), LOOK_PATIENCE);
        let log = format!("{}\n{said}", look.unwrap_or_default().trim_end());
        failure::with_log(error, log)
    }
}

/// Shell that tells what a workload that was killed has said, and what runs still: a server may be the one that hangs.
fn last_words_script() -> String {
    format!(
        "for said in {OUTPUT} {RESULT} {}; do [ ! -s $said ] || {{ echo \"$said:\"; tail -n 20 $said; }}; done\n\
         echo 'still running:'; ps -o pid,stat,time,args | grep -vF '[' | tail -n 20",
        oltp::LOG
    )
}

/// How far a modelled disk was from its model since this was asked last.
fn lateness(base: Option<&Base>) -> Result<Option<DiskLateness>, LabError> {
    let Some(disk) = base.and_then(Base::modelled) else {
        return Ok(None);
    };
    let report = disk.report(true).map_err(BaseError::from)?;
    Ok(Some(DiskLateness {
        n: report.n,
        late: report.late,
        goal_ns: GOAL_NS,
        mean_ns: report.mean_ns,
        p50_ns: report.p50_ns,
        p99_ns: report.p99_ns,
        max_ns: report.max_ns,
        kept_up: report.kept_up(),
    }))
}

/// Nothing of the preparation is left to be written, or in the host's page cache.
fn settle(base: Option<&Base>) {
    if let Some(base) = base {
        // What cannot be written back fails the measurement itself.
        let _ = base.sync();
    }
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "3");
}

fn result(workload: &Workload, stdout: &str) -> Result<CellRun, LabError> {
    let no_result = |said: String| LabError::NoResult {
        workload: workload.name.clone(),
        said,
    };
    let garbled = || no_result(last_lines(stdout, 6));
    let (_, rest) = stdout.split_once("@before").ok_or_else(garbled)?;
    let (before, rest) = rest.split_once("@after").ok_or_else(garbled)?;
    let (after, result) = rest.split_once("@result").ok_or_else(garbled)?;
    let (before, after) = (Snapshot::parse(before), Snapshot::parse(after));
    let mut run = CellRun {
        guest: after.since(&before),
        elapsed_s: after.uptime_s - before.uptime_s,
        ..CellRun::default()
    };
    match &workload.action {
        Action::Fio(_) => {
            let fio = FioResult::parse(result).map_err(no_result)?;
            run.value = fio.value(workload.metric);
            run.elapsed_s = fio.elapsed_s;
            run.latency = fio.latency;
        }
        Action::FileIo(_) | Action::Oltp(_) => {
            let nothing = || no_result(without_figures("sysbench", result));
            let sysbench = SysbenchResult::parse(result).ok_or_else(nothing)?;
            run.value = sysbench.per_second;
            run.elapsed_s = sysbench.elapsed_s;
            run.latency = BTreeMap::from([(sysbench.what.to_owned(), sysbench.latency)]);
        }
        Action::RealTool(tool) => {
            let nothing = || no_result(without_figures(tool.program, result));
            run.value = real_tool_result::parse(result, tool.figures).ok_or_else(nothing)?;
        }
        Action::Script(script) if script.operations > 0 => {
            run.value = script.operations as f64 / run.elapsed_s.max(0.01);
        }
        Action::Script(_) => run.value = run.elapsed_s.max(0.01),
    }
    Ok(run)
}

/// What is said where a program left no result, but something else.
fn without_figures(program: &str, text: &str) -> String {
    match last_lines(text, 1).trim() {
        "" => format!("{program} left nothing"),
        line => format!("{program} printed no figures, but: {line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripts::tests::cell;
    use super::*;

    #[test]
    fn a_command_is_measured_by_the_guests_clock() {
        let workload = cell("name='a'\n[[workload]]\nname='x'\ncommand='true'").workload;
        let stdout = "@before\nuptime 10.00 1\nctxt 1\n@after\nuptime 12.50 1\nctxt 5\n@result\n";
        let run = result(&workload, stdout).unwrap();
        assert_eq!((run.value, run.guest.context_switches), (2.5, 4));
        assert!(result(&workload, "@before").is_err());
    }

    #[test]
    fn a_workload_without_a_result_is_told_without_the_counters() {
        let stdout = "@before\nuptime 10.00 1\n@after\nctxt 3812\nuptime 12.50 1\n@result\n";
        for (workload, expected) in [
            (
                "name='x'\nfio='--rw=read'",
                "read the result of x: fio left no JSON",
            ),
            ("name='sysbench-rndrd'", "sysbench left nothing"),
        ] {
            let workload = cell(&format!("name='a'\n[[workload]]\n{workload}")).workload;
            let error = result(&workload, stdout).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("ctxt"), "{error}");
        }
    }
}
