//! What `nestrace guests` and a recording's manifest say of guests, disks and images.

use std::path::Path;

use anyhow::Context;
use nestrace_rig::recorder;
use nestrace_rig::stack::{Bus, DiskStack};
use serde_json::Value;
use xtask::case::Case;

use super::context::LiveContext;

/// `nestrace guests --json`.
pub fn guests(ctx: &LiveContext) -> anyhow::Result<Value> {
    let end = recorder::nestrace(&ctx.nestrace, &["guests", "--json"]).context("start nestrace")?;
    anyhow::ensure!(end.code == Some(0), "list guests: {}", end.stderr);
    serde_json::from_str(&end.stdout).context("read the list of guests")
}

/// The topology in a recording's manifest.
pub fn recorded(bundle: &Path) -> anyhow::Result<Value> {
    let path = bundle.join("manifest.json");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut manifest: Value = serde_json::from_str(&text).context("read the manifest")?;
    Ok(manifest["topology"].take())
}

/// A guest by name.
pub fn guest<'a>(topology: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    named(&topology["guests"], name).with_context(|| format!("find the guest {name}"))
}

/// A disk of a guest by name.
pub fn disk<'a>(topology: &'a Value, guest_name: &str, name: &str) -> anyhow::Result<&'a Value> {
    let disks = &guest(topology, guest_name)?["disks"];
    named(disks, name).with_context(|| format!("find the disk {name} in {disks}"))
}

fn named<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    list.as_array()?.iter().find(|entry| entry["name"] == name)
}

/// What a disk should look like.
pub struct Facts<'a> {
    /// Guest's name.
    pub guest: &'a str,
    /// Disk's name.
    pub disk: &'a str,
    /// Path of its image, as QEMU sees it.
    pub image: &'a str,
    /// How it is attached.
    pub stack: DiskStack,
    /// The device right under the image.
    pub device: &'a str,
}

/// A disk with one image on one device.
pub fn disk_is(case: &mut Case, topology: &Value, facts: &Facts<'_>) -> anyhow::Result<()> {
    let disk = disk(topology, facts.guest, facts.disk)?;
    let bus = match facts.stack.bus {
        Bus::Virtio => "virtio-blk",
        Bus::VirtioScsi => "virtio-scsi",
        Bus::Ide => "ide",
    };
    let image = &disk["images"][0];
    let pairs = [
        ("bus", &disk["bus"], bus),
        ("format", &disk["format"], facts.stack.format.word()),
        ("cache", &disk["cache"], facts.stack.cache.word()),
        ("aio", &disk["aio"], facts.stack.aio.word()),
        ("image", &image["path"], facts.image),
        ("device", &image["devices"][0], facts.device),
    ];
    for (what, actual, expected) in pairs {
        let name = format!("{}: {what}", facts.disk);
        case.holds(
            &name,
            *actual == expected,
            &format!("{actual}, expected {expected}"),
        );
    }
    let direct = Value::from(facts.stack.cache.is_direct());
    case.holds(
        &format!("{}: O_DIRECT", facts.disk),
        image["direct"] == direct,
        &image["direct"].to_string(),
    );
    Ok(())
}

/// Every disk's BlockBackend was identified, with a proof.
pub fn backends_of(
    case: &mut Case,
    topology: &Value,
    guest_name: &str,
    n_disks: usize,
) -> anyhow::Result<()> {
    let backends = &guest(topology, guest_name)?["backends"];
    let proved = |index: usize| {
        let mut all = backends.as_array().into_iter().flatten();
        all.any(|backend| backend["disk"] == index && backend["proof"] != "")
    };
    let n_proved = (0..n_disks).filter(|index| proved(*index)).count();
    case.holds(
        "backends that were identified",
        n_proved == n_disks,
        &backends.to_string(),
    );
    Ok(())
}
