//! The tables `[[workload]]` of a plan: what guests are made to do.

use std::ops::Range;

use nestrace_report::lab::Metric;

use super::error::{Place, PlanError, suggestion};
use super::file_io;
use super::library::{self, Choice};
use super::oltp::OWN_BYTES;
use super::real_tool::RealTool;
use super::section::{Placed, Section};
use super::workload::{Action, FioJobs, Scale, Script, Upgrade, Workload};

/// Their name.
pub(super) const TABLE: &str = "workload";
const WORKLOAD_KEYS: [&str; 12] = [
    "name",
    "use",
    "fio",
    "command",
    "prepare",
    "block_size",
    "data_size",
    "seconds",
    "most_seconds",
    "about",
    "upgrade",
    "threads",
];
/// Less than a personality's file or a record is nothing to work on.
const LEAST_DATA: u64 = 1 << 20;
/// What O_DIRECT reads and writes of a disk at least.
const SECTOR: u64 = 512;
const ONLY_FIO: &str = "upgrade is for jobs of fio, which lay out files";

/// What the plan says of all of them: how long and how much.
pub(super) fn scale(top: &Section<'_>) -> Result<Scale, PlanError> {
    let data = data_size(top)?;
    Ok(Scale {
        seconds: top.number("seconds", 1..=86_400)?.unwrap_or(10) as u32,
        warm_up_seconds: top.number("warm_up_seconds", 0..=600)?.unwrap_or(2) as u32,
        data_bytes: data.map_or(128 << 20, |(bytes, _)| bytes),
        most_seconds: None,
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

/// Reads them; each has a name of its own.
pub(super) fn read(
    top: &Section<'_>,
    scale: Scale,
    image_bytes: u64,
) -> Result<Vec<Workload>, PlanError> {
    let mut workloads: Vec<Workload> = Vec::new();
    for (section, place) in top.sections(TABLE)? {
        let mut workload = workload(&section, &place, scale, image_bytes)?;
        workload.places = places(&section);
        if workloads.iter().any(|known| known.name == workload.name) {
            let message = format!("the plan has the workload \"{}\" twice", workload.name);
            return Err(section.error(&place, message));
        }
        refuse_too_short(&section, &workload)?;
        workloads.push(workload);
    }
    if workloads.is_empty() {
        let message = "a plan needs a workload: [[workload]] with a name";
        return Err(top.error(&(0..0), message));
    }
    Ok(workloads)
}

/// Where a shell or fio may find something wrong.
fn places(section: &Section<'_>) -> Vec<(&'static str, Place)> {
    let keys = ["prepare", "command", "fio"].into_iter();
    let place = |key| Some((key, Place::of(section.text, section.place(key)?.start)));
    keys.filter_map(place).collect()
}

fn workload(
    section: &Section<'_>,
    place: &Range<usize>,
    scale: Scale,
    image_bytes: u64,
) -> Result<Workload, PlanError> {
    section.only(&WORKLOAD_KEYS)?;
    let Some((name, span)) = section.string("name")? else {
        return Err(section.error(place, "a workload needs a name"));
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
    let most_seconds = section.number("most_seconds", 1..=604_800)?;
    scale.most_seconds = most_seconds.map(|seconds| seconds as u32);
    let fio = section.string("fio")?;
    if let Some((options, span)) = &fio
        && options.trim().is_empty()
    {
        return Err(section.error(span, "fio is empty: it has to have options of fio"));
    }
    if let Some((measure, span)) = section.string("command")? {
        if measure.trim().is_empty() {
            return Err(section.error(&span, "command is empty: there is nothing to measure"));
        }
        if fio.is_some() || section.string("use")?.is_some() {
            return Err(section.error(&span, "a workload has either command, or use and fio"));
        }
        if let Some((_, span)) = section.string("upgrade")? {
            return Err(section.error(&span, ONLY_FIO));
        }
        unused(
            section,
            &["block_size", "data_size", "threads"],
            "a command of your own",
        )?;
        let prepare = section.string("prepare")?.map_or("", |(text, _)| text);
        return command(section, name, measure, prepare, scale);
    }
    unused(section, &["prepare"], "anything but a command of your own")?;
    let about = section.string("about")?;
    let (used, used_at) = section.string("use")?.unwrap_or((&name, span));
    let choice = Choice {
        block_size: block_size(section, used, &scale)?,
        threads: section.number("threads", 1..=512)?.map(|n| n as u32),
        image_bytes: Some(image_bytes),
    };
    let mut workload = match library::named(used, scale, choice) {
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
        if options.contains(['\n', '`', '$', ';', '|', '&', '<', '>', '#']) {
            return Err(section.error(&span, "fio has to have options of fio and no shell syntax"));
        }
        jobs.options = options.to_owned();
        // These are fio's.
        workload.model = None;
        if !workload.note.is_empty() {
            workload.note.push_str(&format!("; with {options}"));
        }
    }
    if let Some((about, _)) = &about {
        workload.note = (*about).to_owned();
        if let Some(model) = &mut workload.model {
            model.note = (*about).to_owned();
        }
    }
    if matches!(workload.action, Action::Oltp(_)) && image_bytes < scale.data_bytes * 2 + OWN_BYTES
    {
        let message = "image_size has to be twice data_size and 96M for a database: it has table spaces and a log";
        return Err(section.error(&used_at, message));
    }
    workload.upgrade = upgrade(section, &workload.action)?;
    if let (Some(upgrade), None) = (workload.upgrade, about) {
        let what = match upgrade {
            Upgrade::OldFiles => "; on files of an ext3 that was then upgraded to ext4 in place",
            Upgrade::NewFiles => "; on files made after an ext3 was upgraded to ext4 in place",
        };
        workload.note.push_str(what);
        if let Some(model) = &mut workload.model {
            model.note.push_str(what);
        }
    }
    // What makes its file when it is measured has none from before.
    let makes_its_file = |model: &RealTool| model.prepare.is_empty();
    if workload.upgrade == Some(Upgrade::OldFiles)
        && workload.model.as_ref().is_some_and(makes_its_file)
    {
        workload.model = None;
    }
    workload.name = name;
    Ok(workload)
}

/// A time after which every run would be stopped.
fn refuse_too_short(section: &Section<'_>, workload: &Workload) -> Result<(), PlanError> {
    let takes = workload.expected_seconds();
    match (workload.scale.most_seconds, section.place("most_seconds")) {
        (Some(most), Some(place)) if most <= takes => {
            let message = format!(
                "most_seconds has to be more than the {takes} s that \"{}\" takes by its plan",
                workload.name
            );
            Err(section.error(&place, message))
        }
        _ => Ok(()),
    }
}

/// Keys that say nothing of a workload.
fn unused_keys(used: &str, action: &Action) -> &'static [&'static str] {
    match action {
        Action::Fio(jobs) if jobs.is_timed && library::has_block_size(used) => &["threads"],
        Action::Fio(jobs) if jobs.is_timed => &["block_size", "threads"],
        Action::Fio(_) => &["seconds", "threads"],
        Action::FileIo(_) => &["fio", "threads"],
        Action::Oltp(_) => &["block_size", "fio"],
        // A plan is read before anybody looks for them.
        Action::Script(_) | Action::RealTool(_) => &["block_size", "fio", "seconds", "threads"],
    }
}

/// Refuses keys that would change nothing.
fn unused(section: &Section<'_>, keys: &[&str], of: &str) -> Result<(), PlanError> {
    let found = keys.iter().find_map(|key| Some((key, section.place(key)?)));
    match found {
        Some((key, place)) => Err(section.error(&place, format!("{key} has no effect on {of}"))),
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
        model: None,
        places: Vec::new(),
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
        model: None,
        places: Vec::new(),
    })
}

/// Names become names of files.
pub(super) fn plain_name(
    section: &Section<'_>,
    name: &str,
    span: &Range<usize>,
) -> Result<String, PlanError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 60 || !name.chars().all(is_plain) {
        let message = "a name has letters, digits, - and _, 60 at most";
        return Err(section.error(span, message));
    }
    Ok(name.to_owned())
}
