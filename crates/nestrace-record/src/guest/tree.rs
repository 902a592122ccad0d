//! `nestrace guests` as text: from each guest down to the devices that carry its disks.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use nestrace_trace::manifest::{Device, Disk, Guest, Image, Job, Limit, Mount, Relation, Topology};
use nestrace_trace::printable;

/// Column at which the agent's state stands.
const AGENT_COLUMN: usize = 58;

/// A line and what hangs below it.
#[derive(Debug, Default)]
struct Node {
    text: String,
    children: Vec<Self>,
}

/// Draws the topology. Pure; the text ends with a newline unless there is no guest.
#[must_use]
pub fn render(topology: &Topology) -> String {
    let mut out = String::new();
    for guest in &topology.guests {
        let _ = writeln!(out, "{}", printable(&guest_line(guest)));
        let mut children: Vec<Node> = guest
            .disks
            .iter()
            .map(|disk| disk_node(topology, guest, disk))
            .collect();
        if children.is_empty() {
            children.push(Node {
                text: "no disks".to_owned(),
                children: Vec::new(),
            });
        }
        let of_no_disk = |job: &&Job| job.disk.is_none();
        children.extend(guest.jobs.iter().filter(of_no_disk).map(job_node));
        children.extend(guest.limits.iter().map(limit_node));
        draw(&mut out, &children, "");
    }
    for line in shared(topology) {
        let _ = writeln!(out, "{}", printable(&line));
    }
    out
}

fn draw(out: &mut String, nodes: &[Node], indent: &str) {
    for (index, node) in nodes.iter().enumerate() {
        let last = index + 1 == nodes.len();
        let _ = writeln!(
            out,
            "{indent}{}{}",
            if last { "└─ " } else { "├─ " },
            printable(&node.text)
        );
        draw(
            out,
            &node.children,
            &format!("{indent}{}", if last { "   " } else { "│  " }),
        );
    }
}

fn guest_line(guest: &Guest) -> String {
    let mut facts = vec![format!("pid {}", guest.pid)];
    if guest.qemu_version.is_empty() {
        facts.push(guest.executable.clone());
    } else {
        facts.push(format!("qemu {}", guest.qemu_version));
    }
    facts.extend(Some(guest.accel.clone()).filter(|a| !a.is_empty()));
    let text = format!("{}  ({})", guest.name, facts.join(", "));
    let agent = if guest.agent.is_some() {
        "channel"
    } else {
        "none"
    };
    format!("{text:<AGENT_COLUMN$}  agent: {agent}")
        .trim_end()
        .to_owned()
}

fn limit_node(limit: &Limit) -> Node {
    Node {
        text: format!("limit: {}, {}", limit.words(), limit.place()),
        children: Vec::new(),
    }
}

fn job_node(job: &Job) -> Node {
    let mut words = vec![format!("job {}: {} {}", job.id, job.kind, job.status)];
    words.extend(job.target.as_ref().map(|target| format!("to {target}")));
    if job.total_bytes > 0 {
        let (done, total) = (size_text(job.done_bytes), size_text(job.total_bytes));
        words.push(format!("{done} of {total}"));
    }
    words.push(match job.speed {
        Some(0) => "no limit of bandwidth".to_owned(),
        Some(speed) => format!("{speed} bytes a second at most"),
        None => "limit of bandwidth unknown".to_owned(),
    });
    Node {
        text: words.join(", "),
        children: Vec::new(),
    }
}

fn disk_node(topology: &Topology, guest: &Guest, disk: &Disk) -> Node {
    let mut words = vec![disk.name.clone(), disk.bus.clone(), disk.format.clone()];
    words.extend(disk.cache.as_ref().map(|cache| format!("cache={cache}")));
    words.extend(disk.aio.as_ref().map(|aio| format!("aio={aio}")));
    words.extend(
        disk.iothread
            .as_ref()
            .map(|thread| format!("iothread={thread}")),
    );
    words.extend(disk.read_only.then(|| "read-only".to_owned()));
    words.retain(|word| !word.is_empty());
    let mut node = Node {
        text: words.join("  "),
        children: Vec::new(),
    };
    if let Some(reason) = &disk.not_followed {
        node.children.push(Node {
            text: format!("not followed: {reason}"),
            children: Vec::new(),
        });
    }
    node.children.extend(disk.limits.iter().map(limit_node));
    let own = guest.jobs.iter();
    let own = own.filter(|job| job.disk.as_ref() == Some(&disk.name));
    node.children.extend(own.map(job_node));
    node.children.extend(images(topology, disk));
    node
}

/// Images of a disk beside each other, those that lie on the same file system as the one before
/// without repeating what is below.
fn images(topology: &Topology, disk: &Disk) -> Vec<Node> {
    let images = &disk.images;
    let mut nodes = Vec::new();
    for (index, (image, relation)) in images.iter().zip(disk.relations()).enumerate() {
        let role = match relation {
            None => "",
            Some(Relation::DataFileOf(_)) => "with its data in ",
            Some(Relation::ExtentOf(_)) => "with an extent in ",
            Some(Relation::MemberOf(_)) => "and a copy in ",
            Some(_) => "backed by ",
        };
        let mut node = Node {
            text: format!("{role}{}", image_text(image)),
            children: Vec::new(),
        };
        let next = images.get(index + 1);
        if next.is_some_and(|next| same_place(image, next)) {
            node.text.push_str("  …");
        } else {
            node.children = beneath_image(topology, image, &mut Vec::new());
        }
        nodes.push(node);
    }
    nodes
}

fn same_place(a: &Image, b: &Image) -> bool {
    a.mount.is_some() && a.mount == b.mount && a.dev == b.dev
}

fn image_text(image: &Image) -> String {
    let mut facts = vec![size_text(image.size)];
    if !image.is_block_device && image.allocated < image.size {
        facts.push(format!("{} allocated", size_text(image.allocated)));
    }
    facts.extend(Some(image.format.clone()).filter(|f| !f.is_empty()));
    facts.extend(image.is_block_device.then(|| "block device".to_owned()));
    facts.extend((image.direct == Some(true)).then(|| "O_DIRECT".to_owned()));
    facts.extend((image.nocow == Some(true)).then(|| "NOCOW".to_owned()));
    facts.extend((image.start > 0).then(|| format!("from byte {}", image.start)));
    format!("{}  ({})", image.path, facts.join(", "))
}

/// What lies under an image. `above` holds the devices on the way here, so that a cycle ends.
fn beneath_image(topology: &Topology, image: &Image, above: &mut Vec<String>) -> Vec<Node> {
    let devices: Vec<Node> = image
        .devices
        .iter()
        .map(|name| device_node(topology, name, above))
        .collect();
    match &image.mount {
        Some(mount) => {
            let server = mount.server().map(|server| Node {
                text: server.to_string(),
                children: Vec::new(),
            });
            vec![Node {
                text: mount_text(mount),
                children: devices.into_iter().chain(server).collect(),
            }]
        }
        None => devices,
    }
}

/// Options that say something about performance or durability; the rest would only hide these.
fn mount_text(mount: &Mount) -> String {
    let telling = |option: &&str| {
        matches!(
            *option,
            "rw" | "ro"
                | "sync"
                | "dirsync"
                | "noatime"
                | "strictatime"
                | "lazytime"
                | "discard"
                | "nobarrier"
                | "nodatacow"
                | "nodatasum"
                | "nodelalloc"
                | "dax"
        ) || [
            "data=",
            "barrier=",
            "commit=",
            "compress",
            "logbufs=",
            "logbsize=",
            "discard=",
            "journal_async",
        ]
        .iter()
        .any(|prefix| option.starts_with(prefix))
    };
    let mut seen: Vec<&str> = Vec::new();
    for option in mount.options.split(',').filter(telling) {
        if !seen.contains(&option) {
            seen.push(option);
        }
    }
    format!(
        "{} on {} ({})",
        mount.fs_type,
        mount.mount_point,
        seen.join(",")
    )
}

fn device_node(topology: &Topology, name: &str, above: &mut Vec<String>) -> Node {
    let Some(device) = topology.devices.iter().find(|d| d.name == name) else {
        return Node {
            text: name.to_owned(),
            children: Vec::new(),
        };
    };
    let mut node = Node {
        text: device_text(device),
        children: Vec::new(),
    };
    if above.iter().any(|seen| seen == name) {
        node.text.push_str("  (again: this is a cycle)");
        return node;
    }
    above.push(name.to_owned());
    node.children = match &device.loop_file {
        Some(image) => {
            let text = if image.size > 0 {
                image_text(&Image {
                    format: String::new(),
                    ..image.clone()
                })
            } else {
                image.path.clone()
            };
            vec![Node {
                text,
                children: beneath_image(topology, image, above),
            }]
        }
        None => device
            .beneath
            .iter()
            .map(|name| device_node(topology, name, above))
            .collect(),
    };
    above.pop();
    node
}

fn device_text(device: &Device) -> String {
    let mut facts: Vec<String> = Vec::new();
    facts.extend(device.server.as_ref().map(ToString::to_string));
    if !matches!(device.kind.as_str(), "disk" | "loop" | "") {
        let words = [&device.kind, &device.driver, &device.mapped_name];
        let words = words.into_iter().filter(|word| !word.is_empty());
        facts.push(words.map(String::as_str).collect::<Vec<_>>().join(" "));
    }
    facts.extend((!device.scheduler.is_empty()).then(|| device.scheduler.clone()));
    if device.read_ahead_kb > 0 {
        facts.push(format!("read-ahead {} KiB", device.read_ahead_kb));
    }
    if device.nr_requests > 0 {
        facts.push(format!("{} requests", device.nr_requests));
    }
    if !device.write_cache.is_empty() && device.kind != "partition" {
        facts.push(device.write_cache.clone());
    }
    facts.extend(device.rotational.then(|| "rotational".to_owned()));
    if facts.is_empty() {
        device.name.clone()
    } else {
        format!("{}  ({})", device.name, facts.join(", "))
    }
}

/// Devices that carry disks of more than one guest: a neighbour's noise is heard there.
fn shared(topology: &Topology) -> Vec<String> {
    let mut lines = Vec::new();
    for device in &topology.devices {
        let guests: Vec<&str> = topology
            .guests
            .iter()
            .filter(|guest| {
                guest
                    .disks
                    .iter()
                    .flat_map(|d| &d.images)
                    .any(|image| lies_on(topology, image, &device.name))
            })
            .map(|guest| guest.name.as_str())
            .collect();
        if guests.len() > 1 {
            lines.push(format!(
                "{} is shared by {}",
                device.name,
                guests.join(", ")
            ));
        }
    }
    lines
}

fn lies_on(topology: &Topology, image: &Image, wanted: &str) -> bool {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&str> = image.devices.iter().map(String::as_str).collect();
    while let Some(name) = open.pop() {
        if name == wanted {
            return true;
        }
        if seen.insert(name) {
            let device = topology.devices.iter().find(|d| d.name == name);
            open.extend(
                device
                    .into_iter()
                    .flat_map(|d| &d.beneath)
                    .map(String::as_str),
            );
        }
    }
    false
}

/// `8.0 GiB`; whole bytes below 1 KiB.
fn size_text(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests;
