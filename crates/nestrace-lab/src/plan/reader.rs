//! Reads the text of a plan.

use std::collections::BTreeSet;
use std::ops::Range;

use nestrace_rig::stack::GuestFsKind;
use toml::de::DeTable;

use super::axes::{Axis, GuestFs};
use super::cells::{self, Addition, Filter, Values};
use super::combination::Combination;
use super::devices;
use super::error::{PlanError, suggestion};
use super::section::{Placed, Section};
use super::workload_section::{self, plain_name};
use super::{GuestSize, Plan, PlannedCell};
use super::{guest_section, host_section, programs};

const KEYS: [&str; 22] = [
    "name",
    "about",
    "experiment",
    "repetitions",
    "seed",
    "seconds",
    "warm_up_seconds",
    "record_seconds",
    "image_size",
    "data_size",
    "memory",
    "vcpus",
    "kernel",
    "agent",
    programs::KEY,
    "axes",
    workload_section::TABLE,
    "exclude",
    "include",
    "record",
    host_section::TABLE,
    guest_section::TABLE,
];
/// mkfs.xfs refuses less since 5.19, mkfs.btrfs and mkfs.jfs need less.
const SMALLEST_XFS: u64 = 300 << 20;
const SMALLEST: u64 = 128 << 20;
/// A host's ext4 holds no larger file.
const LARGEST: u64 = 16 << 40;
/// A kernel unpacks the guest's programs and the agent into memory, and panics where they do not fit.
const LEAST_MEMORY: u64 = 512 << 20;

pub(super) fn read(text: &str) -> Result<Plan, PlanError> {
    let document = DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        PlanError::at(text, &span, error.message().replace('\n', ", "))
    })?;
    let top = Section::new(text, document.get_ref());
    top.only(&KEYS)?;
    let name = name(&top)?;
    let host = host_section::read(&top)?;
    let own_guest = guest_section::read(&top)?;
    if own_guest.is_some() && host.is_in_guest {
        let place = top.place(host_section::TABLE).unwrap_or(0..0);
        let message = "[guest] and in_guest exclude each other: your guest runs on this machine, not on a host inside a guest";
        return Err(top.error(&place, message));
    }
    if own_guest.is_some() && !host.devices.is_empty() {
        let place = top.place(host_section::TABLE).unwrap_or(0..0);
        let message = "[guest] and devices exclude each other: a running guest would see the whole device, so the lab makes its own devices";
        return Err(top.error(&place, message));
    }
    let mut values = axes(&top)?;
    host.set_disk(&top, &mut values)?;
    let scale = workload_section::scale(&top)?;
    let (image_bytes, image_place) = top.size("image_size")?.unwrap_or((512 << 20, 0..0));
    if image_bytes < SMALLEST {
        return Err(top.error(&image_place, "image_size has to be at least 128M"));
    }
    if image_bytes > LARGEST {
        return Err(top.error(&image_place, "image_size has to be at most 16T"));
    }
    if scale.data_bytes.saturating_mul(2) > image_bytes {
        let place = top
            .place("data_size")
            .unwrap_or_else(|| image_place.clone());
        let message = format!(
            "data_size has to be at most half of image_size, which is {}M",
            image_bytes >> 20
        );
        return Err(top.error(&place, message));
    }
    let workloads = workload_section::read(&top, scale, image_bytes)?;
    let names: Vec<&str> = workloads
        .iter()
        .map(|workload| workload.name.as_str())
        .collect();
    let excludes = filters(&top, "exclude", &names)?;
    let mut includes = includes(&top, &names)?;
    for (addition, _) in &mut includes {
        host.set_disk(&top, &mut addition.values)?;
    }
    let (cells, excluded) = cells::make(&top, &values, &excludes, includes, &workloads)?;
    for (workload, (section, place)) in workloads.iter().zip(top.sections(workload_section::TABLE)?)
    {
        let is_there = |cell: &PlannedCell| cell.workload.name == workload.name;
        if workload.upgrade.is_some() && !cells.iter().any(is_there) {
            let message = "upgrade needs ext3 as guest_fs, and no combination has it";
            return Err(section.error(&section.place("upgrade").unwrap_or(place), message));
        }
    }
    cells::check_left(&top, &cells, &excludes, &excluded)?;
    let has_xfs = cells
        .iter()
        .any(|cell| cell.combination.guest_fs == GuestFs::Fs(GuestFsKind::Xfs));
    if has_xfs && image_bytes < SMALLEST_XFS {
        let message = "image_size has to be at least 300M for xfs";
        return Err(top.error(&image_place, message));
    }
    let has_too_large = cells
        .iter()
        .find(|cell| image_bytes > cell.combination.largest_image_bytes());
    if let Some(cell) = has_too_large {
        let host = cell.combination.host.word();
        let message =
            format!("image_size has to be less than 2T on {host}: its files cannot be larger");
        return Err(top.error(&image_place, message));
    }
    let word = |key| -> Result<Option<String>, PlanError> {
        Ok(top.string(key)?.map(|(text, _)| text.to_owned()))
    };
    let seconds = top.number("record_seconds", 1..=600)?;
    let recorded = match top.boolean("record")? {
        Some(false) => {
            if let Some(place) = top.place("record_seconds") {
                let message = "record_seconds has no effect with record = false";
                return Err(top.error(&place, message));
            }
            0
        }
        _ => seconds.unwrap_or(2) as u32,
    };
    let plan = Plan {
        name,
        about: word("about")?.unwrap_or_default(),
        experiment: experiment(&top)?,
        repetitions: top.number("repetitions", 1..=100)?.unwrap_or(3) as u32,
        seed: top.number("seed", 0..=i64::MAX as u64)?.unwrap_or(1),
        record_seconds: recorded,
        image_bytes,
        guest: GuestSize {
            memory_mib: memory_mib(&top)?,
            vcpus: top.number("vcpus", 1..=64)?.unwrap_or(2) as u32,
            kernel: kernel(&top)?,
            has_agent: top.boolean("agent")?.unwrap_or(true),
        },
        programs: programs::read(&top)?,
        own_guest,
        devices: host.devices,
        host_in_guest: host.is_in_guest,
        cells,
        only: BTreeSet::new(),
        excluded,
    };
    devices::check(&top, &plan)?;
    if plan.own_guest.is_some() {
        guest_section::check(&top, &plan.cells)?;
    }
    Ok(plan)
}

/// A part of a package's name. Which there are apt knows.
fn kernel(top: &Section<'_>) -> Result<String, PlanError> {
    let Some((series, span)) = top.string("kernel")? else {
        return Ok(String::from("6.1"));
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if series.is_empty() || !series.chars().all(is_plain) {
        let message = "kernel has to be a series of Debian's, such as \"6.1\"";
        return Err(top.error(&span, message));
    }
    Ok(series.to_owned())
}

fn memory_mib(top: &Section<'_>) -> Result<u32, PlanError> {
    match top.size("memory")? {
        None => Ok(768),
        Some((bytes, _)) if (LEAST_MEMORY..=1 << 40).contains(&bytes) => Ok((bytes >> 20) as u32),
        Some((_, span)) => Err(top.error(&span, "memory has to be from 512M to 1T")),
    }
}

fn name(top: &Section<'_>) -> Result<String, PlanError> {
    let Some((name, span)) = top.string("name")? else {
        return Err(top.error(&(0..0), "a plan needs a name: name = \"mine\""));
    };
    plain_name(top, name, &span)
}

fn experiment(top: &Section<'_>) -> Result<Option<String>, PlanError> {
    let Some((word, span)) = top.string("experiment")? else {
        return Ok(None);
    };
    if ["E1", "E2", "E3", "E4", "E5"].contains(&word) {
        return Ok(Some(word.to_owned()));
    }
    Err(top.error(&span, "experiment has to be E1, E2, E3, E4 or E5"))
}

fn axis_names() -> Vec<&'static str> {
    Axis::ALL.iter().map(|axis| axis.word()).collect()
}

fn axes(top: &Section<'_>) -> Result<Values, PlanError> {
    let Some(section) = top.section("axes")? else {
        return Ok(Values::new());
    };
    section.only(&axis_names())?;
    words_of_axes(&section)
}

/// Values of the axes that a table has.
fn words_of_axes(section: &Section<'_>) -> Result<Values, PlanError> {
    let mut values = Values::new();
    for &axis in Axis::ALL {
        let Some(words) = section.words(axis.word())? else {
            continue;
        };
        for (word, span) in &words {
            check(section, axis, word, span)?;
        }
        values.insert(axis, words);
    }
    Ok(values)
}

fn check(
    section: &Section<'_>,
    axis: Axis,
    word: &str,
    span: &Range<usize>,
) -> Result<(), PlanError> {
    let Err(unknown) = Combination::default().set(axis, word) else {
        return Ok(());
    };
    let hint = suggestion(word, &unknown.expected);
    let message = format!("{axis} has no value \"{word}\"{hint}");
    Err(section.error(span, message))
}

fn filters(
    top: &Section<'_>,
    key: &str,
    workloads: &[&str],
) -> Result<Vec<Placed<Filter>>, PlanError> {
    let mut known = axis_names();
    known.extend(["workload", "reason"]);
    let mut filters = Vec::new();
    for (section, place) in top.sections(key)? {
        section.only(&known)?;
        let reason = section
            .string("reason")?
            .map_or("the plan leaves it out", |(text, _)| text);
        let filter = Filter {
            values: words_of_axes(&section)?,
            workloads: names_of_workloads(&section, workloads)?,
            reason: reason.to_owned(),
        };
        if filter.values.is_empty() && filter.workloads.is_none() {
            let message =
                "an exclude has to name axes or workloads: this one leaves everything out";
            return Err(section.error(&place, message));
        }
        filters.push((filter, place));
    }
    Ok(filters)
}

fn includes(top: &Section<'_>, workloads: &[&str]) -> Result<Vec<Placed<Addition>>, PlanError> {
    let mut known = axis_names();
    known.push("workload");
    let mut additions = Vec::new();
    for (section, place) in top.sections("include")? {
        section.only(&known)?;
        let addition = Addition {
            values: words_of_axes(&section)?,
            workloads: names_of_workloads(&section, workloads)?,
        };
        additions.push((addition, place));
    }
    Ok(additions)
}

/// Workloads of the plan that a table is for; `None` for all.
fn names_of_workloads(
    section: &Section<'_>,
    workloads: &[&str],
) -> Result<Option<Vec<String>>, PlanError> {
    let names = section.words("workload")?;
    for (name, span) in names.iter().flatten() {
        if !workloads.contains(&name.as_str()) {
            let hint = suggestion(name, workloads);
            let message = format!("this plan has no workload \"{name}\"{hint}");
            return Err(section.error(span, message));
        }
    }
    Ok(names.map(|names| names.into_iter().map(|(name, _)| name).collect()))
}

#[cfg(test)]
mod tests;
