//! Images by the names that command lines, monitors and headers have for them: what QEMU has open is meant, whatever a
//! name is relative to. QEMU runs without a guest, stopped.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use xtask::case::{Case, Report};

use super::Scenario;
use super::context::LiveContext;
use super::stopped_qemu::{Stopped, UP};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "image-names",
    about: "images by relative, cut and replaced names, by sets of descriptors, and without a name",
    run,
    alone: false,
};

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let case = |name: &str| format!("image-names/{name}");
    report.case(&case("backing-in-header"), |case| {
        backing_in_header(ctx, case)
    })?;
    report.case(&case("backing-by-option"), |case| {
        backing_by_option(ctx, case)
    })?;
    report.case(&case("snapshot"), |case| snapshot(ctx, case))?;
    report.case(&case("descriptor-sets"), |case| descriptor_sets(ctx, case))?;
    report.case(&case("cut-json"), |case| cut_json(ctx, case))?;
    report.case(&case("q35"), |case| q35(ctx, case))?;
    report.case(&case("unnamed-unlocked"), |case| unnamed(ctx, case))?;
    Ok(())
}

fn hold(
    case: &mut Case,
    what: &str,
    found: &[(String, Vec<String>)],
    expected: &[(&str, Vec<String>)],
) {
    let same = found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(found, expected)| found.0 == expected.0 && found.1 == expected.1);
    case.holds(what, same, &format!("{found:?}, expected {expected:?}"));
}

fn backing_in_header(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let mut stopped = Stopped::new(ctx)?;
    stopped.sh(
        "mkdir sub && cd sub && qemu-img create -q -f qcow2 base.qcow2 32M && \
         qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 vm.qcow2",
    )?;
    let expected = vec![stopped.path("sub/vm.qcow2"), stopped.path("sub/base.qcow2")];
    for with_qmp in [true, false] {
        stopped.start("-drive file=sub/vm.qcow2,if=virtio", with_qmp)?;
        let found = stopped.images(1)?;
        let what = format!("relative in the header, QMP: {with_qmp}");
        hold(case, &what, &found, &[("virtio0", expected.clone())]);
    }
    // Renamed since: the descriptor has the new name.
    stopped.start("-drive file=sub/vm.qcow2,if=virtio", true)?;
    stopped.images(1)?;
    stopped.sh("rm sub/base.qcow2 && truncate -s 1M sub/base.qcow2")?;
    let found = stopped.images(1)?;
    hold(
        case,
        "deleted, and another file in its place",
        &found,
        &[("virtio0", expected)],
    );
    Ok(())
}

fn backing_by_option(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let mut stopped = Stopped::new(ctx)?;
    stopped.sh(
        "mkdir other && qemu-img create -q -f qcow2 base.qcow2 32M && \
         qemu-img create -q -f raw other/base.qcow2 8M && \
         qemu-img create -q -f qcow2 -u -b x -F qcow2 other/top.qcow2 32M",
    )?;
    let expected = vec![stopped.path("other/top.qcow2"), stopped.path("base.qcow2")];
    let arguments = "-blockdev file,filename=other/top.qcow2,node-name=a \
        -blockdev file,filename=base.qcow2,node-name=b \
        -blockdev qcow2,file=b,node-name=c,read-only=on \
        -blockdev qcow2,file=a,backing=c,node-name=d -device virtio-blk-pci,drive=d,id=disk";
    for with_qmp in [true, false] {
        stopped.start(arguments, with_qmp)?;
        let found = stopped.images(1)?;
        let what = format!("another file of that name beside the overlay, QMP: {with_qmp}");
        hold(case, &what, &found, &[("disk", expected.clone())]);
    }
    Ok(())
}

fn snapshot(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let mut stopped = Stopped::new(ctx)?;
    stopped.sh("qemu-img create -q -f qcow2 a.qcow2 16M")?;
    stopped.start("-hda a.qcow2 -snapshot", true)?;
    let found = stopped.images(1)?;
    let image = stopped.path("a.qcow2");
    let below = found.first().and_then(|(_, images)| images.get(1));
    case.holds(
        "what lies behind a temporary overlay",
        below == Some(&image),
        &format!("{found:?}, expected {image}"),
    );
    Ok(())
}

fn descriptor_sets(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let mut stopped = Stopped::new(ctx)?;
    stopped.sh("truncate -s 10M f1.raw; truncate -s 20M f2.raw; truncate -s 30M f3.raw")?;
    // As numbers that QEMU takes for other files afterwards.
    let numbers = [9, 10, 11];
    let mut arguments = String::from("-nodefaults");
    for (set, fd) in (1..).zip(numbers) {
        arguments += &format!(
            " -add-fd fd={fd},set={set} -blockdev file,filename=/dev/fdset/{set},node-name=n{set} \
             -device virtio-blk-pci,drive=n{set},id=disk{set} {fd}<>f{set}.raw"
        );
    }
    let expected: Vec<(String, String)> = (1..=3)
        .map(|set| (format!("disk{set}"), stopped.path(&format!("f{set}.raw"))))
        .collect();
    stopped.start(&arguments, true)?;
    let found = stopped.images(3)?;
    let named: Vec<(&str, Vec<String>)> = expected
        .iter()
        .map(|(disk, path)| (disk.as_str(), vec![path.clone()]))
        .collect();
    hold(case, "with QMP", &found, &named);
    // Without QMP the disks cannot be assigned: three disks, and none has a wrong file.
    stopped.start(&arguments, false)?;
    let deadline = Instant::now() + UP;
    let mut found = stopped.disks()?;
    while found.len() < 3 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(200));
        found = stopped.disks()?;
    }
    let wrong = found.len() != 3 || found.iter().any(|(_, images)| !images.is_empty());
    case.holds("without QMP", !wrong, &format!("{found:?}"));
    Ok(())
}

fn cut_json(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let mut stopped = Stopped::new(ctx)?;
    let deep = ["a", "b", "c", "d"]
        .map(|letter| letter.repeat(80))
        .join("/");
    stopped.sh(&format!("mkdir -p {deep}"))?;
    let mut arguments = String::from("-nodefaults");
    let mut expected = Vec::new();
    for index in 0..10 {
        let image = format!("{deep}/s{index}.qcow2");
        let backing = if index > 0 {
            "-u -b other -F qcow2"
        } else {
            ""
        };
        stopped.sh(&format!(
            "qemu-img create -q -f qcow2 {backing} {image} 32M"
        ))?;
        let image = stopped.path(&image);
        let storage =
            json!({"driver": "file", "filename": image, "node-name": format!("st{index}")});
        let below = (index > 0).then(|| format!("f{}", index - 1));
        let format = json!({"driver": "qcow2", "node-name": format!("f{index}"),
            "read-only": index < 9, "file": format!("st{index}"), "backing": below});
        arguments += &format!(" -blockdev '{storage}' -blockdev '{format}'");
        expected.insert(0, image);
    }
    arguments += " -device virtio-blk-pci,drive=f9,id=disk";
    stopped.start(&arguments, true)?;
    let found = stopped.images(1)?;
    hold(
        case,
        "names of 4,095 characters",
        &found,
        &[("disk", expected)],
    );
    Ok(())
}

fn q35(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let mut stopped = Stopped::new(ctx)?;
    stopped.sh("truncate -s 8M a.raw b.raw")?;
    for machine in [
        "-machine vmport=off,type=q35",
        "-machine q35,vmport=off",
        "-M pc -M vmport=off,type=q35",
    ] {
        let arguments =
            format!("{machine} -drive file=a.raw,format=raw -drive file=b.raw,format=raw");
        stopped.start(&arguments, true)?;
        let found = stopped.images(2)?;
        let expected = [
            ("ide0-hd0", vec![stopped.path("a.raw")]),
            ("ide1-hd0", vec![stopped.path("b.raw")]),
        ];
        hold(case, machine, &found, &expected);
    }
    Ok(())
}

/// Everything from a file of options, QEMU's locks off, and no monitor: as Incus has it.
fn unnamed(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let mut stopped = Stopped::new(ctx)?;
    stopped.sh("truncate -s 64M root.img")?;
    let options = "[drive \"d\"]\nfile = \"root.img\"\nformat = \"raw\"\nif = \"virtio\"\ncache = \"none\"\nfile.locking = \"off\"\n";
    std::fs::write(stopped.path("options"), options).context("write options")?;
    stopped.start("-nodefaults -readconfig options", false)?;
    let found = stopped.images(1)?;
    let image = stopped.path("root.img");
    hold(
        case,
        "an image without a name",
        &found,
        &[("disk0", vec![image])],
    );
    Ok(())
}
