//! QEMU under unknown names: it is recognized by what it is, wherever its program lies.

use std::path::Path;

use anyhow::Context;
use nestrace_rig::recorder;
use serde_json::Value;
use xtask::case::{Case, Report};

use super::context::LiveContext;
use super::stopped_qemu::Stopped;
use super::{Scenario, nameless_qemu, topology};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "recognition",
    about: "QEMU under other names, without symbols, behind wrappers and in an image of its own",
    run,
    alone: false,
};

/// A way to start QEMU.
struct Way {
    name: &'static str,
    /// Its program exports its functions.
    has_symbols: bool,
    /// They are probed: of what the kernel started, which is the loader where that is asked, and of no other program.
    is_probed: bool,
    /// What a shell runs in the folder, where `hypervisor` is the program within `tree` and `"$@"` are its arguments.
    line: &'static str,
}

const WAYS: [Way; 5] = [
    Way {
        name: "other-name",
        has_symbols: true,
        is_probed: true,
        line: r#"exec tree/usr/bin/hypervisor "$@""#,
    },
    Way {
        name: "other-name-without-symbols",
        has_symbols: false,
        is_probed: false,
        line: r#"exec tree/usr/bin/hypervisor "$@""#,
    },
    Way {
        name: "loader",
        has_symbols: true,
        is_probed: false,
        // QEMU looks for its modules and its firmware beside what the kernel started, which is the loader.
        line: r#"export QEMU_MODULE_DIR=/usr/lib/x86_64-linux-gnu/qemu
            exec /lib64/ld-linux-x86-64.so.2 tree/usr/bin/hypervisor "$@" -L /usr/share/qemu -L /usr/share/seabios"#,
    },
    Way {
        name: "child-of-a-wrapper",
        has_symbols: true,
        is_probed: true,
        line: r#"tree/usr/bin/hypervisor "$@" & wait"#,
    },
    // As AppImages do: the program lies on a file system that only its own mount namespace has.
    Way {
        name: "own-mount",
        has_symbols: true,
        is_probed: true,
        line: r#"exec unshare --mount --propagation private sh -c '
            mount -t tmpfs none mnt && cp -a tree/. mnt && exec mnt/usr/bin/hypervisor "$@"' sh "$@""#,
    },
];

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    for way in &WAYS {
        let case = format!("recognition/{}", way.name);
        if ctx.wants(&case) {
            report.case(&case, |case| is_found(ctx, case, way))?;
        }
    }
    Ok(())
}

fn is_found(ctx: &LiveContext, case: &mut Case, way: &Way) -> anyhow::Result<()> {
    let mut stopped = Stopped::new(ctx)?;
    stopped.sh("mkdir tree mnt && truncate -s 8M disk.img")?;
    let tree = stopped.path("tree");
    match way.has_symbols {
        true => stopped.sh(
            "mkdir -p tree/usr/bin && cp $(command -v qemu-system-x86_64) tree/usr/bin/hypervisor && \
             ln -s /usr/lib /usr/share tree/usr/",
        )?,
        false => {
            let qemu = nameless_qemu::copy(Path::new(&tree))?;
            std::fs::rename(&qemu, qemu.with_file_name("hypervisor")).context("rename QEMU")?;
        }
    }
    // Options that other programs have too, and an image without an option.
    let arguments = format!(
        "-name guest={} -m 64 -display none -net none -vga none -S disk.img",
        stopped.name()
    );
    stopped.run(&format!("set -- {arguments}; {}", way.line))?;
    let image = stopped.path("disk.img");
    let found = stopped.images(1)?;
    let images: Vec<&str> = found
        .iter()
        .flat_map(|(_, images)| images)
        .map(String::as_str)
        .collect();
    case.equal("images", images.join(" "), image.clone());
    is_recorded(ctx, case, way, &stopped)
}

fn is_recorded(
    ctx: &LiveContext,
    case: &mut Case,
    way: &Way,
    stopped: &Stopped<'_>,
) -> anyhow::Result<()> {
    let bundle = stopped.path("recorded.nest");
    let arguments = [
        "record",
        "--guest",
        stopped.name(),
        "--duration",
        "1",
        "-o",
        &bundle,
    ];
    let end = recorder::nestrace(&ctx.nestrace, &arguments)?;
    case.equal("exit of the recording", end.code.unwrap_or(-1), 0);
    let recorded = topology::recorded(Path::new(&bundle))?;
    let disks = topology::guest(&recorded, stopped.name())?["disks"].clone();
    let path = disks[0]["images"][0]["path"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    case.equal("the image that is recorded", path, stopped.path("disk.img"));
    let manifest = std::fs::read_to_string(Path::new(&bundle).join("manifest.json"));
    let manifest: Value = serde_json::from_str(&manifest.context("read the manifest")?)?;
    let probes = manifest["probes"].as_array().into_iter().flatten();
    let of_qemu = probes.filter(|probe| probe["source"] == "qemu").count();
    let expected = match way.is_probed {
        true => nameless_qemu::NAMES.len(),
        false => 0,
    };
    case.equal("functions of QEMU that are attached", of_qemu, expected);
    Ok(())
}
