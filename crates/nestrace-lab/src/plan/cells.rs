//! The product of the axes, what is left out of it, and what each cell is compared with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nestrace_report::lab::Excluded;

use super::PlannedCell;
use super::axes::{Axis, DEFAULT};
use super::combination::Combination;
use super::error::PlanError;
use super::section::{Placed, Section};
use super::workload::Workload;

/// Words of axes; an axis that is not there has its default.
pub(super) type Values = BTreeMap<Axis, Vec<Placed<String>>>;

/// Combinations that a plan has besides the product of its axes.
#[derive(Clone, Debug)]
pub(super) struct Addition {
    /// Their words.
    pub(super) values: Values,
    /// Under these workloads; `None` for all.
    pub(super) workloads: Option<Vec<String>>,
}

/// Combinations that a plan leaves out.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    /// All of these axes have one of their words.
    pub(super) values: Values,
    /// Under these workloads; `None` for all.
    pub(super) workloads: Option<Vec<String>>,
    /// Why.
    pub(super) reason: String,
}

impl Filter {
    fn fits(&self, combination: &Combination, workload: &str) -> bool {
        let has = |(axis, words): (&Axis, &Vec<Placed<String>>)| {
            let own = combination.word(*axis);
            words.iter().any(|(word, _)| *word == own)
        };
        self.values.iter().all(has)
            && self
                .workloads
                .as_ref()
                .is_none_or(|names| names.iter().any(|name| name == workload))
    }
}

/// More would take weeks.
const MAX_COMBINATIONS: usize = 20_000;

/// Bytes of a cell's name: files have it with an ending, and a file system takes 255.
const LONGEST_NAME: usize = 200;

/// The cells of a plan, and what was left out.
pub(super) fn make(
    top: &Section<'_>,
    values: &Values,
    excludes: &[Placed<Filter>],
    includes: Vec<Placed<Addition>>,
    workloads: &[Workload],
) -> Result<(Vec<PlannedCell>, Vec<Excluded>), PlanError> {
    let mut excluded = Vec::new();
    let possible = possible(top, values, &mut excluded)?;
    check_excludes(top, values, excludes, workloads)?;
    let mut wanted: Vec<(Combination, &Workload)> = Vec::new();
    for workload in workloads {
        for combination in &possible {
            if let Some(objection) = workload.objection(combination.guest_fs) {
                excluded.push(Excluded {
                    what: named(combination, workload),
                    reason: objection.to_owned(),
                });
                continue;
            }
            let mut filters = excludes.iter().map(|(filter, _)| filter);
            match filters.find(|filter| filter.fits(combination, &workload.name)) {
                Some(filter) => excluded.push(Excluded {
                    what: named(combination, workload),
                    reason: filter.reason.clone(),
                }),
                None => wanted.push((combination.clone(), workload)),
            }
        }
    }
    for (addition, place) in &includes {
        let is_meant = |workload: &&Workload| {
            let names = addition.workloads.as_ref();
            names.is_none_or(|names| names.contains(&workload.name))
        };
        let (mut used, mut refused) = (BTreeSet::new(), BTreeMap::new());
        for (combination, words) in product(top, &addition.values)? {
            let (with, without) = had(&combination, words);
            used.extend(with);
            refused.extend(without.into_iter().map(|name| (name, NO_IMAGE)));
            if let Some(objection) = combination.objection() {
                return Err(top.error(place, format!("{combination}: {objection}")));
            }
            for workload in workloads.iter().filter(is_meant) {
                match workload.objection(combination.guest_fs) {
                    None => wanted.push((combination.clone(), workload)),
                    Some(objection) => excluded.push(Excluded {
                        what: named(&combination, workload),
                        reason: objection.to_owned(),
                    }),
                }
            }
        }
        check_used(top, &addition.values, &used, &refused)?;
    }
    let cells = with_baselines(wanted);
    // What others are compared with is there all the same.
    let is_planned = |one: &Excluded| {
        let mut cells = cells.iter();
        cells.any(|cell| one.what == named(&cell.combination, &cell.workload))
    };
    excluded.retain(|one| !is_planned(one));
    let additions = includes.iter().map(|(addition, _)| &addition.values);
    check_names(top, &cells, [values].into_iter().chain(additions))?;
    Ok((cells, excluded))
}

/// Refuses words that no combination has.
fn check_used(
    top: &Section<'_>,
    values: &Values,
    used: &BTreeSet<Word>,
    refused: &BTreeMap<Word, &'static str>,
) -> Result<(), PlanError> {
    for (axis, words) in values {
        for (word, span) in words {
            let name = (*axis, word.clone());
            if let Some(reason) = refused.get(&name).filter(|_| !used.contains(&name)) {
                let message = format!("{axis} \"{word}\" cannot be in any combination: {reason}");
                return Err(top.error(span, message));
            }
        }
    }
    Ok(())
}

/// Words of a combination that it has, and those that the bare device knows nothing of.
fn had(combination: &Combination, words: Vec<Word>) -> (Vec<Word>, Vec<Word>) {
    let usual = Combination::default();
    words.into_iter().partition(|(axis, word)| {
        !combination.is_bare() || !OF_IMAGE.contains(axis) || usual.word(*axis) == *word
    })
}

const NO_IMAGE: &str = "the bare device has no image and no host file system";

/// The text for a cell that is left out.
fn named(combination: &Combination, workload: &Workload) -> String {
    format!("{combination}, {}", workload.name)
}

/// Refuses an exclude that would leave nothing out, whatever the others do.
fn check_excludes(
    top: &Section<'_>,
    values: &Values,
    excludes: &[Placed<Filter>],
    workloads: &[Workload],
) -> Result<(), PlanError> {
    let all = product(top, values)?;
    for (filter, place) in excludes {
        let fits = |combination| {
            let mut workloads = workloads.iter();
            workloads.any(|workload| filter.fits(combination, &workload.name))
        };
        if !all.iter().any(|(combination, _)| fits(combination)) {
            let message = "this exclude fits no combination of the axes";
            return Err(top.error(place, message));
        }
    }
    Ok(())
}

/// Refuses a plan without any cell left.
pub(super) fn check_left(
    top: &Section<'_>,
    cells: &[PlannedCell],
    excludes: &[Placed<Filter>],
    excluded: &[Excluded],
) -> Result<(), PlanError> {
    if !cells.is_empty() {
        return Ok(());
    }
    let why = excluded.last().map_or(String::new(), |last| {
        format!("; left out: {} ({})", last.what, last.reason)
    });
    let place = excludes.last().map(|(_, place)| place.clone());
    let place = place.or_else(|| top.place("axes")).unwrap_or(0..0);
    Err(top.error(&place, format!("no combination is left{why}")))
}

/// Refuses names that no file can have. Where: at the longest word of such a cell.
fn check_names<'v>(
    top: &Section<'_>,
    cells: &[PlannedCell],
    values: impl Iterator<Item = &'v Values>,
) -> Result<(), PlanError> {
    let Some(cell) = cells.iter().find(|cell| cell.id.len() > LONGEST_NAME) else {
        return Ok(());
    };
    let words = values.flatten().flat_map(|(axis, words)| {
        let own = cell.combination.word(*axis);
        words.iter().filter(move |(word, _)| *word == own)
    });
    let longest = words.max_by_key(|(word, _)| word.len());
    let message = format!(
        "a cell's name would have {} bytes: the limit is {LONGEST_NAME}, because files are named after it",
        cell.id.len()
    );
    let place = longest.map_or(0..0, |(_, span)| span.clone());
    Err(top.error(&place, message))
}

/// The combinations of the axes that can be. A value that can be in none of them is a mistake.
fn possible(
    top: &Section<'_>,
    values: &Values,
    excluded: &mut Vec<Excluded>,
) -> Result<Vec<Combination>, PlanError> {
    let mut possible = Vec::new();
    let mut used: BTreeSet<Word> = BTreeSet::new();
    let mut refused: BTreeMap<Word, &'static str> = BTreeMap::new();
    for (combination, words) in product(top, values)? {
        // The bare device has no image: its axes are all one.
        let objection = if combination.is_bare() {
            combination.baseline().objection()
        } else {
            combination.objection()
        };
        let (with, without) = had(&combination, words);
        refused.extend(without.into_iter().map(|name| (name, NO_IMAGE)));
        match objection {
            Some(reason) => {
                refused.extend(with.into_iter().map(|name| (name, reason)));
                excluded.push(Excluded {
                    what: combination.to_string(),
                    reason: reason.to_owned(),
                });
            }
            None => {
                used.extend(with);
                possible.push(combination);
            }
        }
    }
    check_used(top, values, &used, &refused)?;
    Ok(possible)
}

/// A word of an axis.
type Word = (Axis, String);
type Named = (Combination, Vec<Word>);

fn product(top: &Section<'_>, values: &Values) -> Result<Vec<Named>, PlanError> {
    let mut product: Vec<Named> = vec![(Combination::default(), Vec::new())];
    for (axis, words) in values {
        if product.len() * words.len() > MAX_COMBINATIONS {
            let message = format!("more than {MAX_COMBINATIONS} combinations");
            return Err(top.error(
                &words.first().map_or(0..0, |(_, span)| span.clone()),
                message,
            ));
        }
        let mut longer = Vec::with_capacity(product.len() * words.len());
        for (combination, named) in &product {
            for (word, span) in words {
                let (mut combination, mut named) = (combination.clone(), named.clone());
                let set = combination.set(*axis, word);
                set.map_err(|unknown| top.error(span, unknown.to_string()))?;
                named.push((*axis, word.clone()));
                longer.push((combination, named));
            }
        }
        product = longer;
    }
    Ok(product)
}

/// Adds what each is compared with, once, and gives everything its name.
fn with_baselines(wanted: Vec<(Combination, &Workload)>) -> Vec<PlannedCell> {
    let varying = varying(wanted.iter().map(|(combination, _)| combination));
    let has_workloads = wanted
        .iter()
        .any(|(_, workload)| workload.name != wanted[0].1.name);
    let mut cells: Vec<PlannedCell> = Vec::new();
    let mut places: BTreeMap<(Combination, &str), usize> = BTreeMap::new();
    for (combination, workload) in &wanted {
        let base = combination.baseline();
        for combination in [&base, combination] {
            let combination = if combination.is_bare() {
                &base
            } else {
                combination
            };
            let key = (combination.clone(), workload.name.as_str());
            if places.contains_key(&key) {
                continue;
            }
            let baseline = places.get(&(base.clone(), workload.name.as_str())).copied();
            let name = has_workloads.then_some(workload.name.as_str());
            let id = unique(&cells, id(combination, &varying, name));
            places.insert(key, cells.len());
            cells.push(PlannedCell {
                id,
                combination: combination.clone(),
                workload: (*workload).clone(),
                baseline,
            });
        }
    }
    cells
}

/// Axes of the image and of what it lies on, which a bare device has not.
const OF_IMAGE: [Axis; 4] = [
    Axis::Format,
    Axis::Preallocation,
    Axis::Placement,
    Axis::HostMountOptions,
];

/// The axes that tell cells apart, besides the two file systems.
fn varying<'c>(combinations: impl Iterator<Item = &'c Combination>) -> Vec<Axis> {
    let wanted: Vec<&Combination> = combinations.collect();
    let bare: Vec<Combination> = wanted.iter().map(|one| one.baseline()).collect();
    let varies = |axis: &&Axis| {
        let nested = wanted.iter().filter(|one| !one.is_bare()).copied();
        let bare = bare.iter().filter(|_| !OF_IMAGE.contains(axis));
        let mut words = nested.chain(bare).map(|one| one.word(**axis));
        let first = words.next();
        words.any(|word| Some(word) != first)
    };
    Axis::ALL.iter().skip(2).filter(varies).copied().collect()
}

/// `ext4-on-xfs-qcow2-none-mailserver`.
fn id(combination: &Combination, varying: &[Axis], workload: Option<&str>) -> String {
    let mut id = format!("{}-on-{}", combination.guest_fs, combination.host.word());
    for axis in varying {
        if combination.is_bare() && OF_IMAGE.contains(axis) {
            continue;
        }
        let word = combination.word(*axis);
        // What is left as it is need not be said.
        if word.is_empty() || word == DEFAULT {
            continue;
        }
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '-'
            }
        };
        if *axis == Axis::Copy && combination.copy == 1 {
            continue;
        }
        id.push('-');
        match axis {
            Axis::Copy => id.push_str("copy-"),
            Axis::GuestScheduler | Axis::GuestMountOptions | Axis::GuestReadAhead => {
                id.push_str("guest-")
            }
            Axis::HostScheduler | Axis::HostMountOptions | Axis::HostReadAhead => {
                id.push_str("host-")
            }
            // Of a file, its name.
            Axis::HostDisk => {
                let name = Path::new(word.as_ref()).file_stem();
                id.extend(
                    name.unwrap_or_default()
                        .to_string_lossy()
                        .chars()
                        .map(plain),
                );
                continue;
            }
            _ => {}
        }
        id.extend(word.chars().map(plain));
    }
    if let Some(workload) = workload {
        id.push('-');
        id.push_str(workload);
    }
    id
}

fn unique(cells: &[PlannedCell], id: String) -> String {
    let taken = |id: &str| cells.iter().any(|cell| cell.id == id);
    if !taken(&id) {
        return id;
    }
    let numbered = |n: u32| format!("{id}-{n}");
    (2..)
        .map(numbered)
        .find(|id| !taken(id))
        .unwrap_or(id.clone())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nestrace_report::lab::RunHeader;

    use crate::plan::Plan;

    fn ids(text: &str) -> Vec<String> {
        let plan = Plan::read(text).unwrap();
        plan.cells.into_iter().map(|cell| cell.id).collect()
    }

    #[test]
    fn cells_on_the_bare_device_are_told_apart_by_what_varies_there() {
        for (axes, expected) in [
            (
                "host_fs = 'bd'\nbus = ['ide', 'virtio']",
                ["ext4-on-bd-ide", "ext4-on-bd-virtio"].as_slice(),
            ),
            (
                "host_fs = 'bd'\nguest_scheduler = ['default', 'bfq']\nguest_mount_options = ['', 'noatime']",
                &[
                    "ext4-on-bd",
                    "ext4-on-bd-guest-noatime",
                    "ext4-on-bd-guest-bfq",
                    "ext4-on-bd-guest-bfq-guest-noatime",
                ],
            ),
            (
                "host_fs = 'xfs'\n[[include]]\nhost_fs = 'bd'\ncache = 'writeback'\naio = 'threads'",
                &[
                    "ext4-on-bd-none-native",
                    "ext4-on-xfs-none-native",
                    "ext4-on-bd-writeback-threads",
                ],
            ),
            (
                "host_fs = 'xfs'\ncopy = [1, 2]",
                &[
                    "ext4-on-bd",
                    "ext4-on-xfs",
                    "ext4-on-bd-copy-2",
                    "ext4-on-xfs-copy-2",
                ],
            ),
            // A file is named without its folder, and each disk has its own bare device.
            (
                "host_fs = 'xfs'\nhost_disk = ['default', 'hdd-7200', '/tmp/my disk.toml']",
                &[
                    "ext4-on-bd",
                    "ext4-on-xfs",
                    "ext4-on-bd-hdd-7200",
                    "ext4-on-xfs-hdd-7200",
                    "ext4-on-bd-my-disk",
                    "ext4-on-xfs-my-disk",
                ],
            ),
            // What a folder is compared with has the host's options, in the guest.
            (
                "guest_fs = '9p'\nhost_fs = 'xfs'\nhost_mount_options = ['', 'noatime']",
                &[
                    "xfs-on-bd",
                    "9p-on-xfs",
                    "xfs-on-bd-guest-noatime",
                    "9p-on-xfs-host-noatime",
                ],
            ),
        ] {
            assert_eq!(
                ids(&format!(
                    "name = 'p'\n[axes]\n{axes}\n[[workload]]\nname = 'randwrite'\n"
                )),
                expected,
                "{axes}"
            );
        }
    }

    /// Finished results are gone on with by name.
    #[test]
    fn cells_have_the_names_that_they_had() {
        let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/lab");
        for run in [
            "control",
            "fast12",
            "fast12-gains",
            "fast12-remedies",
            "image-format-cache-bus",
            "raw-qcow2",
            "reiserfs-jfs",
        ] {
            let text = |file: &str| std::fs::read_to_string(lab.join(run).join(file)).unwrap();
            let header: RunHeader = serde_json::from_str(&text("run.json")).unwrap();
            assert_eq!(ids(&text("plan.toml")), header.cells, "{run}");
        }
    }
}
