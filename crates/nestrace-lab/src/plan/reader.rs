//! Reads the text of a plan.

use std::ops::Range;

use nestrace_report::lab::Metric;
use toml::de::DeTable;

use super::axes::{Axis, GuestFs};
use super::cells::{self, Addition, Filter, Values};
use super::combination::Combination;
use super::devices;
use super::error::{PlanError, suggestion};
use super::oltp::OWN_BYTES;
use super::section::{Placed, Section};
use super::workload::{Action, FioJobs, Scale, Script, Upgrade, Workload};
use super::{GuestSize, Plan, PlannedCell};
use super::{file_io, library};
use super::{guest_section, host_section};
use crate::stack::GuestFsKind;

const KEYS: [&str; 21] = [
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
    "axes",
    "workload",
    "exclude",
    "include",
    "record",
    host_section::TABLE,
    guest_section::TABLE,
];
const WORKLOAD_KEYS: [&str; 10] = [
    "name",
    "use",
    "fio",
    "command",
    "prepare",
    "block_size",
    "data_size",
    "seconds",
    "about",
    "upgrade",
];
/// Less than a personality's file or a record is nothing to work on.
const LEAST_DATA: u64 = 1 << 20;
/// What O_DIRECT reads and writes of a disk at least.
const SECTOR: u64 = 512;
const ONLY_FIO: &str = "upgrade is for jobs of fio, which lay out files";
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
        let message = "a guest of yours is this machine's, and the host inside another one (in_guest): not both";
        return Err(top.error(&place, message));
    }
    if own_guest.is_some() && !host.devices.is_empty() {
        let place = top.place(host_section::TABLE).unwrap_or(0..0);
        let message = "a running guest sees all of a device, however large: with [guest] the lab makes its own";
        return Err(top.error(&place, message));
    }
    let values = axes(&top)?;
    let scale = scale(&top)?;
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
    let workloads = workloads(&top, scale, image_bytes)?;
    let names: Vec<&str> = workloads
        .iter()
        .map(|workload| workload.name.as_str())
        .collect();
    let excludes = filters(&top, "exclude", &names)?;
    let includes = includes(&top, &names)?;
    let (cells, excluded) = cells::make(&top, &values, &excludes, includes, &workloads)?;
    for (workload, (section, place)) in workloads.iter().zip(top.sections("workload")?) {
        let is_there = |cell: &PlannedCell| cell.workload.name == workload.name;
        if workload.upgrade.is_some() && !cells.iter().any(is_there) {
            let message = "upgrade is of ext3, and no combination has it for guest_fs";
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
    let word = |key| -> Result<Option<String>, PlanError> {
        Ok(top.string(key)?.map(|(text, _)| text.to_owned()))
    };
    let seconds = top.number("record_seconds", 1..=600)?;
    let recorded = match top.boolean("record")? {
        Some(false) => {
            if let Some(place) = top.place("record_seconds") {
                let message = "record_seconds says nothing: record = false records nothing";
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
        own_guest,
        devices: host.devices,
        host_in_guest: host.is_in_guest,
        cells,
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
        return Err(top.error(&(0..0), "a plan has a name: name = \"mine\""));
    };
    plain_name(top, name, &span)
}

/// Names become names of files.
fn plain_name(section: &Section<'_>, name: &str, span: &Range<usize>) -> Result<String, PlanError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 60 || !name.chars().all(is_plain) {
        let message = "a name has letters, digits, - and _, 60 at most";
        return Err(section.error(span, message));
    }
    Ok(name.to_owned())
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

fn scale(top: &Section<'_>) -> Result<Scale, PlanError> {
    let data = data_size(top)?;
    Ok(Scale {
        seconds: top.number("seconds", 1..=86_400)?.unwrap_or(10) as u32,
        warm_up_seconds: top.number("warm_up_seconds", 0..=600)?.unwrap_or(2) as u32,
        data_bytes: data.map_or(128 << 20, |(bytes, _)| bytes),
    })
}

fn data_size(section: &Section<'_>) -> Result<Option<Placed<u64>>, PlanError> {
    match section.size("data_size")? {
        Some((bytes, span)) if bytes < LEAST_DATA => {
            Err(section.error(&span, "data_size has to be at least 1M"))
        }
        found => Ok(found),
    }
}

fn workloads(
    top: &Section<'_>,
    scale: Scale,
    image_bytes: u64,
) -> Result<Vec<Workload>, PlanError> {
    let mut workloads: Vec<Workload> = Vec::new();
    for (section, place) in top.sections("workload")? {
        let workload = workload(&section, &place, scale, image_bytes)?;
        if workloads.iter().any(|known| known.name == workload.name) {
            let message = format!("the workload \"{}\" is there twice", workload.name);
            return Err(section.error(&place, message));
        }
        workloads.push(workload);
    }
    if workloads.is_empty() {
        let message = "a plan has a workload: [[workload]] with a name";
        return Err(top.error(&(0..0), message));
    }
    Ok(workloads)
}

fn workload(
    section: &Section<'_>,
    place: &Range<usize>,
    scale: Scale,
    image_bytes: u64,
) -> Result<Workload, PlanError> {
    section.only(&WORKLOAD_KEYS)?;
    let Some((name, span)) = section.string("name")? else {
        return Err(section.error(place, "a workload has a name"));
    };
    let name = plain_name(section, name, &span)?;
    let mut scale = scale;
    let is_command = section.place("command").is_some();
    if let (Some(seconds), false) = (section.number("seconds", 1..=86_400)?, is_command) {
        scale.seconds = seconds as u32;
    }
    if let Some((bytes, span)) = data_size(section)? {
        if bytes.saturating_mul(2) > image_bytes {
            return Err(section.error(&span, "data_size has to be at most half of image_size"));
        }
        scale.data_bytes = bytes;
    }
    let fio = section.string("fio")?;
    if let Some((options, span)) = &fio
        && options.trim().is_empty()
    {
        return Err(section.error(span, "fio is empty: it has options of fio"));
    }
    if let Some((measure, span)) = section.string("command")? {
        if measure.trim().is_empty() {
            return Err(section.error(&span, "command is empty: there is nothing to measure"));
        }
        if fio.is_some() || section.string("use")?.is_some() {
            return Err(section.error(&span, "a workload has command, or use and fio, not both"));
        }
        if let Some((_, span)) = section.string("upgrade")? {
            return Err(section.error(&span, ONLY_FIO));
        }
        unused(
            section,
            &["block_size", "data_size"],
            "a command of your own",
        )?;
        let prepare = section.string("prepare")?.map_or("", |(text, _)| text);
        return command(section, name, measure, prepare, scale);
    }
    unused(section, &["prepare"], "anything but a command of your own")?;
    let about = section.string("about")?;
    let (used, used_at) = section.string("use")?.unwrap_or((&name, span));
    let block_size = block_size(section, used, &scale)?;
    let mut workload = match library::named(used, scale, block_size) {
        Some(workload) => workload,
        None if fio.is_some() && used == name => own_fio(scale),
        _ => {
            let hint = suggestion(used, &library::NAMES);
            let message = format!(
                "there is no workload \"{used}\"{hint}; a workload of your own has fio or command"
            );
            return Err(section.error(&used_at, message));
        }
    };
    unused(section, unused_keys(used, &workload.action), used)?;
    if let (Some((options, span)), Action::Fio(jobs)) = (fio, &mut workload.action) {
        if options.contains(['\n', '`', '$', ';', '|', '&', '<', '>']) {
            return Err(section.error(&span, "fio has options of fio and nothing for a shell"));
        }
        jobs.options = options.to_owned();
        if !workload.note.is_empty() {
            workload.note.push_str(&format!("; with {options}"));
        }
    }
    if let Some((about, _)) = &about {
        workload.note = (*about).to_owned();
    }
    if matches!(workload.action, Action::Oltp(_)) && image_bytes < scale.data_bytes * 2 + OWN_BYTES
    {
        let message = "image_size has to be twice data_size and 96M for a database: it has table spaces and a log";
        return Err(section.error(&used_at, message));
    }
    workload.upgrade = upgrade(section, &workload.action)?;
    if let (Some(upgrade), None) = (workload.upgrade, about) {
        workload.note.push_str(match upgrade {
            Upgrade::OldFiles => "; on files of an ext3 that was then upgraded to ext4 in place",
            Upgrade::NewFiles => "; on files made after an ext3 was upgraded to ext4 in place",
        });
    }
    workload.name = name;
    Ok(workload)
}

/// Keys that say nothing of a workload.
fn unused_keys(used: &str, action: &Action) -> &'static [&'static str] {
    match action {
        Action::Fio(jobs) if jobs.is_timed && library::has_block_size(used) => &[],
        Action::Fio(jobs) if jobs.is_timed => &["block_size"],
        Action::Fio(_) => &["seconds"],
        Action::FileIo(_) => &["fio"],
        Action::Oltp(_) => &["block_size", "fio"],
        Action::Script(_) => &["block_size", "fio", "seconds"],
    }
}

/// Refuses keys that would change nothing.
fn unused(section: &Section<'_>, keys: &[&str], of: &str) -> Result<(), PlanError> {
    let found = keys.iter().find_map(|key| Some((key, section.place(key)?)));
    match found {
        Some((key, place)) => Err(section.error(&place, format!("{key} says nothing of {of}"))),
        None => Ok(()),
    }
}

/// In fio's words; of a workload of the library, such that it can be done.
fn block_size<'t>(
    section: &Section<'t>,
    used: &str,
    scale: &Scale,
) -> Result<Option<&'t str>, PlanError> {
    let Some((word, span)) = section.string("block_size")? else {
        return Ok(None);
    };
    let Some(bytes) = file_io::bytes(word) else {
        return Err(section.error(&span, "block_size has to be like 4096, 8k or 1m"));
    };
    if library::is_direct(used) && bytes % SECTOR != 0 {
        let message = format!("block_size has to be a multiple of 512: {used} has O_DIRECT");
        return Err(section.error(&span, message));
    }
    if bytes > scale.data_bytes {
        let message =
            "block_size has to be at most data_size: there would be nothing to read or write";
        return Err(section.error(&span, message));
    }
    Ok(Some(word))
}

fn upgrade(section: &Section<'_>, action: &Action) -> Result<Option<Upgrade>, PlanError> {
    match section.string("upgrade")? {
        None => Ok(None),
        Some((_, span)) if !matches!(action, Action::Fio(_)) => Err(section.error(&span, ONLY_FIO)),
        Some(("old", _)) => Ok(Some(Upgrade::OldFiles)),
        Some(("new", _)) => Ok(Some(Upgrade::NewFiles)),
        Some((_, span)) => {
            let message = "upgrade has to be \"old\" or \"new\": which files of an upgraded ext3 are measured";
            Err(section.error(&span, message))
        }
    }
}

/// fio with the user's options alone.
fn own_fio(scale: Scale) -> Workload {
    let jobs = FioJobs {
        jobs: vec![(String::from("own"), format!("--size={}", scale.data_bytes))],
        is_timed: true,
        ..FioJobs::default()
    };
    Workload {
        name: String::new(),
        note: String::new(),
        metric: Metric::OperationsPerSecond,
        scale,
        action: Action::Fio(jobs),
        upgrade: None,
    }
}

/// Seconds of a command of the user's, where the plan does not say.
const COMMAND_SECONDS: u32 = 10;

fn command(
    section: &Section<'_>,
    name: String,
    measure: &str,
    prepare: &str,
    scale: Scale,
) -> Result<Workload, PlanError> {
    let seconds = section.number("seconds", 1..=86_400)?;
    let script = Script {
        prepare: prepare.to_owned(),
        measure: measure.to_owned(),
        seconds: seconds.map_or(COMMAND_SECONDS, |seconds| seconds as u32),
        ..Script::default()
    };
    let about = section.string("about")?;
    Ok(Workload {
        name,
        note: about.map_or_else(
            || format!("the time of `{measure}`"),
            |(text, _)| text.to_owned(),
        ),
        metric: Metric::Seconds,
        scale,
        action: Action::Script(script),
        upgrade: None,
    })
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
            let message = "an exclude names axes or workloads: this one leaves everything out";
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
