//! Disks whose data lies in more than one file, or in a part of one: what each file is comes from QEMU's block graph.

use std::time::Duration;

use anyhow::Context;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::guest::GuestSpec;
use nestrace_rig::stack::HostFsKind;
use serde_json::{Value, json};
use xtask::case::{Case, Report};

use super::Scenario;
use super::analysis::{entry, number};
use super::context::LiveContext;
use super::measure::Watched;
use super::with_agents::chains::{self, Subject};
use super::with_agents::recording::{boot_with, device_in_guest, measure};
use super::{random_load, topology};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "block-graph",
    about: "data files, extents, copies and parts of files: each is followed, none is taken for a backing file",
    run,
    alone: false,
};

/// qcow2's own choice.
const CLUSTER: u64 = 64 << 10;

/// A disk of the guest.
struct Disk {
    id: &'static str,
    /// Makes its files, in their folder.
    files: &'static str,
    /// QEMU's node of it. `IMAGE:name` stands for a node of that file.
    node: &'static str,
    /// Its files, and what each is.
    images: &'static [(&'static str, &'static str)],
    /// Whether the image allocates clusters meanwhile, and writes tables for them.
    allocates: bool,
    /// Where the guest writes, in MiB.
    from_mib: u32,
}

const DISKS: [Disk; 7] = [
    Disk {
        id: "datafile",
        files: "qemu-img create -q -f qcow2 -o data_file=$PWD/datafile.data datafile.qcow2 32M",
        node: r#"{"driver": "qcow2", "file": "IMAGE:datafile.qcow2"}"#,
        images: &[("datafile.qcow2", "own"), ("datafile.data", "data_file")],
        allocates: true,
        from_mib: 0,
    },
    Disk {
        id: "backed",
        files: "head -c 32M /dev/urandom > base.raw && \
            qemu-img create -q -f qcow2 -b base.raw -F raw -o data_file=$PWD/backed.data backed.qcow2",
        node: r#"{"driver": "qcow2", "file": "IMAGE:backed.qcow2"}"#,
        images: &[
            ("backed.qcow2", "own"),
            ("backed.data", "data_file"),
            ("base.raw", "backing"),
        ],
        allocates: true,
        from_mib: 0,
    },
    Disk {
        id: "slice",
        files: "truncate -s 40M slice.raw",
        node: r#"{"driver": "raw", "offset": 1048576, "size": 33554432, "file": "IMAGE:slice.raw"}"#,
        images: &[("slice.raw", "own")],
        allocates: false,
        from_mib: 0,
    },
    Disk {
        id: "archive",
        files: "qemu-img create -q -f qcow2 -o preallocation=metadata member.qcow2 32M && \
            truncate -s 1M archive.ova && cat member.qcow2 >> archive.ova",
        node: r#"{"driver": "qcow2", "file": {"driver": "raw", "offset": 1048576, "file": "IMAGE:archive.ova"}}"#,
        images: &[("archive.ova", "own")],
        allocates: false,
        from_mib: 0,
    },
    Disk {
        id: "part",
        files: "qemu-img create -q -f qcow2 part.qcow2 40M",
        node: r#"{"driver": "raw", "offset": 4194304, "size": 33554432,
            "file": {"driver": "qcow2", "file": "IMAGE:part.qcow2"}}"#,
        images: &[("part.qcow2", "own")],
        allocates: true,
        from_mib: 0,
    },
    Disk {
        id: "copies",
        files: "truncate -s 32M copy1.raw copy2.raw",
        node: r#"{"driver": "quorum", "vote-threshold": 2, "children": [
            {"driver": "raw", "file": "IMAGE:copy1.raw"}, {"driver": "raw", "file": "IMAGE:copy2.raw"}]}"#,
        images: &[("copy1.raw", "own"), ("copy2.raw", "member")],
        allocates: false,
        from_mib: 0,
    },
    Disk {
        id: "extents",
        files: "qemu-img create -q -f vmdk -o subformat=twoGbMaxExtentFlat extents.vmdk 2080M",
        node: r#"{"driver": "vmdk", "file": "IMAGE:extents.vmdk"}"#,
        images: &[
            ("extents.vmdk", "own"),
            ("extents-f001.vmdk", "extent"),
            ("extents-f002.vmdk", "extent"),
        ],
        // Across the border of two extents.
        allocates: false,
        from_mib: 2045,
    },
];

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let host = ctx.host_fs(HostFsKind::Ext4, true, "")?;
    let mut extra_arguments = Vec::new();
    for disk in &DISKS {
        let make = Tool::new("sh").args(["-c", disk.files]);
        make.current_dir(host.path()).run()?;
        let node: Value = serde_json::from_str(disk.node).context("read a node")?;
        let mut node = with_files(&node, &host.path().display().to_string());
        node["node-name"] = format!("{}-node", disk.id).into();
        let device = format!("virtio-blk-pci,id={0},serial={0},drive={0}-node", disk.id);
        extra_arguments.extend(["-blockdev".to_owned(), node.to_string()]);
        extra_arguments.extend(["-device".to_owned(), device]);
    }
    let guest = boot_with(ctx, "block-graph", |spec| GuestSpec {
        modules: vec!["virtio_blk".to_owned()],
        extra_arguments,
        ..spec
    })?;
    let devices = DISKS
        .iter()
        .map(|disk| device_in_guest(&guest, disk.id))
        .collect::<anyhow::Result<Vec<_>>>()?;
    guest.start_agent("--backend ebpf")?;
    let ids: Vec<String> = DISKS.iter().map(|disk| disk.id.to_owned()).collect();
    let watched: Vec<Watched<'_>> = ids
        .iter()
        .map(|disk| Watched {
            guest: &guest,
            disk,
            host: &host,
        })
        .collect();
    let disks = DISKS.iter().zip(&devices);
    let disks = disks.map(|(disk, device)| (device.as_str(), disk.from_mib));
    let work = random_load::script(disks, 8);
    let measured = measure(ctx, &watched, || {
        guest.run_ok(&work, Duration::from_secs(120))?;
        Ok(())
    })?;
    let recorded = topology::recorded(&measured.bundle)?;
    for ((disk, device), counts) in DISKS.iter().zip(&devices).zip(&measured.truth) {
        report.case(&format!("block-graph/{}", disk.id), |case| {
            let found = topology::disk(&recorded, guest.name(), disk.id)?;
            case.equal(
                "files of the manifest",
                paths(&found["images"]),
                names(disk),
            );
            let images = of_disk(&measured.analysis["images"], disk.id);
            images_hold(case, disk, &images);
            let amplified = entry(&measured.analysis, "amplification", &[("disk", disk.id)])?;
            let tables = number(amplified, "/by_class/image_metadata")?;
            case.equal("tables are written", tables >= CLUSTER, disk.allocates);
            let backing_chain = of_disk(&measured.analysis["findings"], disk.id)
                .iter()
                .any(|finding| finding["id"] == "backing-chain");
            let has_backing = disk
                .images
                .iter()
                .any(|(_, relation)| *relation == "backing");
            case.holds(
                "backing-chain is of backing files alone",
                has_backing || !backing_chain,
                disk.id,
            );
            let subject = Subject {
                guest: &guest,
                disk: disk.id,
                device,
                linked: chains::LINKED,
            };
            chains::disk(case, &measured.analysis, &subject, counts)
        })?;
    }
    report.case("block-graph/whole", |case| {
        measured.is_whole(case)?;
        chains::clock(case, &measured.analysis, guest.name())
    })?;
    ctx.discard(&measured.bundle);
    Ok(())
}

/// A node with `IMAGE:name` replaced by a node of that file in the folder.
fn with_files(node: &Value, folder: &str) -> Value {
    match node {
        Value::String(text) => match text.strip_prefix("IMAGE:") {
            Some(name) => json!({
                "driver": "file", "filename": format!("{folder}/{name}"), "aio": "threads",
                "cache": {"direct": true},
            }),
            None => node.clone(),
        },
        Value::Array(nodes) => nodes.iter().map(|node| with_files(node, folder)).collect(),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| (key.clone(), with_files(value, folder)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

fn of_disk<'v>(entries: &'v Value, disk: &str) -> Vec<&'v Value> {
    let entries = entries.as_array().into_iter().flatten();
    entries.filter(|entry| entry["disk"] == disk).collect()
}

fn names(disk: &Disk) -> String {
    let names: Vec<&str> = disk.images.iter().map(|(name, _)| *name).collect();
    names.join(" ")
}

fn paths(images: &Value) -> String {
    let images = images.as_array().into_iter().flatten();
    let name = |image: &Value| {
        let path = image["path"].as_str().unwrap_or_default().to_owned();
        path.rsplit('/').next().unwrap_or_default().to_owned()
    };
    images.map(name).collect::<Vec<String>>().join(" ")
}

/// Each file is what it should be, and what holds the guest's data was written.
fn images_hold(case: &mut Case, disk: &Disk, images: &[&Value]) {
    let relations: Vec<&str> = images
        .iter()
        .map(|image| image["relation"].as_str().unwrap_or("none"))
        .collect();
    let expected: Vec<&str> = disk.images.iter().map(|(_, relation)| *relation).collect();
    case.equal("relations", relations.join(" "), expected.join(" "));
    let holds_all = disk.images.len() == 1;
    for (image, (name, relation)) in images.iter().zip(disk.images) {
        let written = image["file_io"]["bytes"]["write"].as_u64().unwrap_or(0);
        let holds_data = holds_all || matches!(*relation, "data_file" | "extent" | "member");
        if holds_data {
            case.holds(
                &format!("{name} was written"),
                written > 1 << 20,
                &written.to_string(),
            );
        }
        if *relation == "backing" {
            case.equal(&format!("bytes written to {name}"), written, 0);
        }
    }
}
