//! What is set on QEMU's disks, and what QEMU does by itself: throttles and jobs.

use std::collections::{BTreeMap, BTreeSet};

use nestrace_trace::manifest::{Disk, Job, Limit, LimitPlace, MAX_PATH_BYTES};
use serde_json::{Value, json};

use super::answers::{
    BlockDevice, BlockInfo, BlockJobRow, Graph, GraphNode, ImageInfo, Iotune, JobRow,
    ThrottleLimits,
};
use super::disk_row::{is_of, is_row_of};
use super::{Qmp, QmpError};
use crate::guest::block_node::{self, Storage};

/// Throttle groups that are asked for.
const MAX_GROUPS: usize = 64;
/// Jobs that are looked at.
const MAX_JOBS: usize = 64;
/// Bytes of an id or a word of QEMU's; its own ids are shorter.
const MAX_NAME: usize = 256;

/// QEMU's answers.
#[derive(Clone, Debug, Default)]
pub struct SetNow {
    /// Throttle groups that nodes of the drives name, with their limits.
    groups: BTreeMap<String, Iotune>,
    /// `query-jobs`, with what else is known of each.
    pub jobs: Vec<JobNow>,
}

/// A job.
#[derive(Clone, Debug, Default)]
pub struct JobNow {
    /// As `query-jobs` has it.
    pub row: JobRow,
    /// Bytes a second that it may copy; 0 for no limit.
    speed: Option<u64>,
    /// What is known of its nodes; `None` where that was not asked.
    nodes: Option<JobNodes>,
}

/// The nodes that a job works on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct JobNodes {
    /// Drives or devices above them.
    drives: Vec<String>,
    /// File of its target, or where else it is.
    target: Option<String>,
}

/// Asks for the throttle groups of these drives, and for jobs; of those whose id is `known` not for their nodes. What an old
/// QEMU does not know is left out.
pub(super) fn ask_about<'a>(
    qmp: &mut Qmp,
    blocks: impl Iterator<Item = &'a BlockInfo>,
    known: &BTreeSet<String>,
) -> SetNow {
    let names: BTreeSet<String> = blocks.flat_map(groups_of).take(MAX_GROUPS).collect();
    let mut groups = BTreeMap::new();
    for name in names {
        let question = json!({ "path": format!("/objects/{name}"), "property": "limits" });
        if let Ok(limits) = qmp.ask::<ThrottleLimits>("qom-get", &question) {
            groups.insert(name, limits.into());
        }
    }
    let rows = qmp.ask("query-jobs", &Value::Null).unwrap_or_default();
    SetNow {
        groups,
        jobs: jobs(qmp, rows, known),
    }
}

/// What QEMU says now, over a connection of its own: drives with their limits, and jobs.
///
/// # Errors
///
/// As [`Qmp::execute`].
pub fn look(mut qmp: Qmp, known: &BTreeSet<String>) -> Result<(Vec<BlockInfo>, SetNow), QmpError> {
    let blocks: Vec<BlockInfo> = qmp.ask("query-block", &Value::Null)?;
    let set = ask_about(&mut qmp, blocks.iter(), known);
    Ok((blocks, set))
}

/// The same of jobs alone.
///
/// # Errors
///
/// As [`Qmp::execute`].
pub fn look_at_jobs(mut qmp: Qmp, known: &BTreeSet<String>) -> Result<SetNow, QmpError> {
    // QEMU has this command since 3.0.
    let rows = qmp.ask("query-jobs", &Value::Null)?;
    Ok(SetNow {
        groups: BTreeMap::new(),
        jobs: jobs(&mut qmp, rows, known),
    })
}

fn jobs(qmp: &mut Qmp, mut rows: Vec<JobRow>, known: &BTreeSet<String>) -> Vec<JobNow> {
    let nothing = Value::Null;
    rows.truncate(MAX_JOBS);
    if rows.is_empty() {
        return Vec::new();
    }
    let block_jobs: Vec<BlockJobRow> = qmp.ask("query-block-jobs", &nothing).unwrap_or_default();
    let speed = |id: &str| {
        let row = block_jobs.iter().find(|row| row.device == id);
        row.map(|row| row.speed)
    };
    let mut jobs: Vec<JobNow> = rows
        .into_iter()
        .map(|row| JobNow {
            speed: speed(&row.id),
            row,
            nodes: None,
        })
        .collect();
    let mut fresh = jobs
        .iter_mut()
        .filter(|job| !known.contains(&job.row.id))
        .peekable();
    if fresh.peek().is_some()
        && let Ok(graph) = qmp.ask::<Graph>("x-debug-query-block-graph", &nothing)
    {
        let flat = json!({ "flat": true });
        let files: Vec<BlockDevice> = qmp
            .ask("query-named-block-nodes", &flat)
            .unwrap_or_default();
        for job in fresh {
            job.nodes = Some(nodes_of(&job.row.id, &graph, &files));
        }
    }
    jobs
}

/// What a job works on: its main node is below the drive, its target is not.
fn nodes_of(id: &str, graph: &Graph, files: &[BlockDevice]) -> JobNodes {
    let mut parents: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for edge in &graph.edges {
        parents.entry(edge.child).or_default().push(edge.parent);
    }
    let is_job = |node: &&GraphNode| node.kind == "block-job" && node.name == id;
    let Some(job) = graph.nodes.iter().find(is_job) else {
        return JobNodes::default();
    };
    let child = |name: &str| {
        let mut edges = graph.edges.iter();
        let edge = edges.find(|edge| edge.parent == job.id && edge.name == name);
        edge.map(|edge| edge.child)
    };
    let mut open: Vec<u64> = child("main node").into_iter().collect();
    let mut seen: BTreeSet<u64> = open.iter().copied().collect();
    while let Some(node) = open.pop() {
        let above = parents.get(&node).into_iter().flatten();
        open.extend(above.copied().filter(|node| seen.insert(*node)));
    }
    let drives = graph.nodes.iter().filter(|node| {
        node.kind == "block-backend" && !node.name.is_empty() && seen.contains(&node.id)
    });
    let target = child("target").and_then(|target| {
        let node = graph.nodes.iter().find(|node| node.id == target)?;
        let is_node = |it: &&BlockDevice| it.node_name.as_deref() == Some(node.name.as_str());
        let file = &files.iter().find(is_node)?.file;
        match block_node::node_of_name(file).storage {
            Storage::Path(path) if !path.is_empty() => Some(path),
            Storage::Elsewhere(place) => Some(place),
            _ => None,
        }
    });
    JobNodes {
        drives: drives.map(|node| node.name.clone()).collect(),
        target,
    }
}

/// The throttle groups that nodes of a drive name.
fn groups_of(block: &BlockInfo) -> Vec<String> {
    let mut names = Vec::new();
    let Some(inserted) = &block.inserted else {
        return names;
    };
    in_file_name(&inserted.file, &mut names);
    let mut image = inserted.image.as_ref();
    while let Some(ImageInfo {
        filename,
        backing_image,
        ..
    }) = image
    {
        in_file_name(filename, &mut names);
        image = backing_image.as_deref();
    }
    names.sort();
    names.dedup();
    names
}

fn in_file_name(name: &str, names: &mut Vec<String>) {
    let json = name.strip_prefix("json:");
    if let Some(node) = json.and_then(|json| serde_json::from_str(json).ok()) {
        in_node(&node, names);
    }
}

fn in_node(node: &Value, names: &mut Vec<String>) {
    let Value::Object(keys) = node else {
        return;
    };
    if let Some(Value::String(name)) = keys.get("throttle-group") {
        names.push(name.clone());
    }
    keys.values().for_each(|value| in_node(value, names));
}

impl SetNow {
    /// QEMU's limits of a disk: those of its drive, and those of throttle nodes above its image.
    pub(crate) fn limits_of(&self, block: &BlockInfo) -> Vec<Limit> {
        let Some(inserted) = &block.inserted else {
            return Vec::new();
        };
        let tune = &inserted.iotune;
        let is_own = |group: &&str| *group == block.device || Some(*group) == block.qdev_id();
        let group = tune.group.as_deref().filter(|group| !is_own(group));
        let mut limits = match group {
            Some(group) => tune.limits(LimitPlace::ThrottleGroup, group),
            None => tune.limits(LimitPlace::Iotune, ""),
        };
        for name in groups_of(block) {
            if let Some(tune) = self.groups.get(&name) {
                limits.extend(tune.limits(LimitPlace::ThrottleGroup, &name));
            }
        }
        limits
    }

    /// QEMU's limits of a disk; `None` where QEMU does not list it.
    pub(crate) fn limits_of_disk(&self, disk: &Disk, blocks: &[BlockInfo]) -> Option<Vec<Limit>> {
        let row = blocks.iter().find(|row| is_row_of(disk, row));
        row.map(|block| self.limits_of(block))
    }

    /// Its jobs, as the manifest has them.
    pub(crate) fn jobs(&self, disks: &[Disk], at_mono_ns: u64) -> Vec<Job> {
        let jobs = self.jobs.iter().map(|job| job.of_disks(disks, at_mono_ns));
        jobs.collect()
    }
}

/// The beginning of a text that QEMU sent.
fn bounded(text: &str, max_bytes: usize) -> String {
    let end = text.floor_char_boundary(max_bytes);
    text.get(..end).unwrap_or_default().to_owned()
}

impl JobNow {
    fn of_disks(&self, disks: &[Disk], at_mono_ns: u64) -> Job {
        let nodes = self.nodes.clone().unwrap_or_default();
        let mut of_it = disks.iter().filter(|disk| {
            let mut names = nodes.drives.iter().map(String::as_str);
            names.any(|name| {
                is_of(disk, Some(name), None, None) || is_of(disk, None, Some(name), None)
            })
        });
        // One that works on several disks at once belongs to none.
        let disk = of_it.next().filter(|_| of_it.next().is_none());
        Job {
            id: bounded(&self.row.id, MAX_NAME),
            kind: bounded(&self.row.kind, MAX_NAME),
            disk: disk.map(|disk| disk.name.clone()),
            target: nodes.target.map(|target| bounded(&target, MAX_PATH_BYTES)),
            status: bounded(&self.row.status, MAX_NAME),
            speed: self.speed,
            done_bytes: self.row.current_progress,
            total_bytes: self.row.total_progress,
            first_seen_mono_ns: at_mono_ns,
            last_seen_mono_ns: at_mono_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(value: Value) -> BlockInfo {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn limits_of_a_drive_and_of_its_groups() {
        let file = r#"json:{"driver":"raw","file":{"driver":"throttle","throttle-group":"gold","file":{"driver":"file"}}}"#;
        let set = SetNow {
            groups: BTreeMap::from([(
                "gold".to_owned(),
                Iotune {
                    bps_wr: 1_048_577,
                    ..Iotune::default()
                },
            )]),
            jobs: Vec::new(),
        };
        let shown = |limits: Vec<Limit>| -> Vec<String> {
            let text = |it: &Limit| format!("{} by {}", it.words(), it.place());
            limits.iter().map(text).collect()
        };
        let own = block(
            json!({ "device": "d0", "inserted": { "iops": 201, "group": "d0", "file": "a.raw" } }),
        );
        let own = shown(set.limits_of(&own));
        assert_eq!(
            own,
            ["201 requests a second by QEMU's throttle of the disk (iotune)"]
        );
        let shared = block(
            json!({ "device": "d0", "inserted": { "iops_rd": 7, "group": "tin", "file": file } }),
        );
        assert_eq!(
            shown(set.limits_of(&shared)),
            [
                "7 reads a second by QEMU's throttle group tin",
                "1048577 bytes written a second by QEMU's throttle group gold"
            ]
        );
        assert!(set.limits_of(&block(json!({ "device": "d0" }))).is_empty());
    }

    #[test]
    fn a_job_belongs_to_the_disk_above_its_main_node() {
        let graph: Graph = serde_json::from_value(json!({
            "nodes": [
                { "id": 1, "type": "block-backend", "name": "d0" },
                { "id": 2, "type": "block-backend", "name": "d1" },
                { "id": 3, "type": "block-driver", "name": "cbw" },
                { "id": 4, "type": "block-driver", "name": "#block1" },
                { "id": 5, "type": "block-driver", "name": "t" },
                { "id": 6, "type": "block-job", "name": "j" }
            ],
            "edges": [
                { "parent": 1, "child": 3, "name": "root" },
                { "parent": 3, "child": 4, "name": "file" },
                { "parent": 2, "child": 5, "name": "root" },
                { "parent": 6, "child": 3, "name": "main node" },
                { "parent": 6, "child": 5, "name": "target" }
            ]
        }))
        .unwrap();
        let files: Vec<BlockDevice> =
            serde_json::from_value(json!([{ "node-name": "t", "file": "/b.raw" }])).unwrap();
        let nodes = nodes_of("j", &graph, &files);
        assert_eq!(
            (nodes.drives.len(), nodes.target.as_deref()),
            (1, Some("/b.raw"))
        );
        assert_eq!(nodes_of("other", &graph, &files), JobNodes::default());
        let job = JobNow {
            row: JobRow {
                id: "j".to_owned(),
                kind: "backup".to_owned(),
                ..JobRow::default()
            },
            speed: Some(0),
            nodes: Some(nodes),
        };
        let disk = |name: &str| Disk {
            name: name.to_owned(),
            ..Disk::default()
        };
        let job = job.of_disks(&[disk("d1"), disk("d0")], 5);
        assert_eq!(
            (job.disk.as_deref(), job.first_seen_mono_ns),
            (Some("d0"), 5)
        );
    }
}
