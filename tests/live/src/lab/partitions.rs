//! A whole run on partitions that a user names: what lies beside them on the same disk stays, and so does its queue.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::recorder::{analyze, nestrace};
use xtask::case::Case;

use super::{name, read, rows};

/// Of each partition, and what lies before, between and behind them.
const PARTITION: u64 = 1 << 30;
const GAP: u64 = 1 << 20;
const SECTOR: u64 = 512;
/// What the plan sets on the host, and what no disk has by default.
const READ_AHEAD: &str = "264";

/// A disk with three partitions; the plan does not name the last one. This kernel may not read partition tables, so
/// the partitions are added as partprobe does it.
struct Disk {
    file: PathBuf,
    device: String,
}

impl Disk {
    fn new(folder: &Path) -> anyhow::Result<Self> {
        let file = folder.join("disk");
        let pattern = b"what a user would miss".repeat(1000);
        std::fs::write(&file, pattern).context("write a disk's file")?;
        let sized = File::options().write(true).open(&file);
        sized
            .and_then(|file| file.set_len(begin(3)))
            .context("make a disk's file")?;
        let attach = Tool::new("losetup").args(["--find", "--show", "--partscan"]);
        let device = attach.arg(&file).run()?.trim().to_owned();
        let disk = Self { file, device };
        for number in 0..3 {
            Tool::new("addpart")
                .arg(&disk.device)
                .arg((number + 1).to_string())
                .arg((begin(number) / SECTOR).to_string())
                .arg((PARTITION / SECTOR).to_string())
                .run()?;
        }
        Tool::new("mke2fs")
            .arg("-qF")
            .arg(disk.partition(2))
            .run()?;
        Ok(disk)
    }

    fn partition(&self, number: u64) -> String {
        format!("{}p{}", self.device, number + 1)
    }

    /// What is not the lab's: the beginning of the disk, and the head of the last partition.
    fn others(&self) -> anyhow::Result<Vec<u8>> {
        Tool::new("sync").arg(&self.device).run()?;
        Tool::new("sync").arg(self.partition(2)).run()?;
        let mut bytes = vec![0; GAP as usize];
        let mut file = File::open(&self.file).context("open a disk's file")?;
        file.read_exact(&mut bytes).context("read a disk's file")?;
        let mut last = File::open(self.partition(2)).context("open a partition")?;
        let mut head = vec![0; 8 << 20];
        last.read_exact(&mut head).context("read a partition")?;
        bytes.extend(head);
        Ok(bytes)
    }

    fn read_ahead(&self) -> anyhow::Result<String> {
        let disk = self.device.trim_start_matches("/dev/");
        let path = format!("/sys/block/{disk}/queue/read_ahead_kb");
        let text = std::fs::read_to_string(path).context("read the read-ahead")?;
        Ok(text.trim().to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let detach = Tool::new("losetup").arg("--detach").arg(&self.device);
        if let Err(error) = detach.for_clean_up().run() {
            eprintln!("xtask: {error}");
        }
    }
}

/// Where a partition begins.
fn begin(number: u64) -> u64 {
    GAP + number * (PARTITION + GAP)
}

pub fn run(case: &mut Case, program: &Path, folder: &Path) -> anyhow::Result<()> {
    let disk = Disk::new(folder)?;
    let (one, other) = (disk.partition(0), disk.partition(1));
    let plan = folder.join("partitions.toml");
    let text = format!(
        "name = 'partitions'\nrepetitions = 1\nseconds = 2\nwarm_up_seconds = 0\nrecord_seconds = 1\n\
         image_size = '256M'\ndata_size = '4M'\n[host]\ndevices = ['{one}', '{other}']\n[axes]\nhost_fs = 'xfs'\n\
         host_read_ahead_kib = '{READ_AHEAD}'\n[[workload]]\nname = 'randwrite'\n"
    );
    std::fs::write(&plan, text).context("write a plan")?;
    let results = folder.join("partitions");
    let (others, read_ahead) = (disk.others()?, disk.read_ahead()?);
    let mut arguments = vec!["lab", "run", name(&plan)?, "-o", name(&results)?];
    for device in [&one, &other] {
        arguments.extend(["--i-know-this-erases", device]);
    }
    let end = nestrace(program, &arguments)?;
    case.equal("exit", end.code.unwrap_or(-1), 0);
    case.holds("told", end.code == Some(0), &end.stderr);
    for row in rows(&results)? {
        let id = row["id"].as_str().unwrap_or_default();
        case.equal(id, row["failures"].to_string().as_str(), "[]");
        case.equal(id, row["value"]["n"].as_u64().unwrap_or(0), 1);
        let beneath = read(&results.join(format!("{id}.json")))?["device"].take();
        let beneath = beneath.as_str().unwrap_or_default().to_owned();
        case.holds(id, [&one, &other].contains(&&beneath), &beneath);
        // What the guest wrote was followed to the disk of the partition.
        let analysis = analyze(program, &results.join(format!("{id}.nest")))?;
        let whole = disk.device.trim_start_matches("/dev/");
        let devices = analysis["devices"].as_array().into_iter().flatten();
        let n_requests = devices
            .filter(|device| device["side"] == "host" && device["name"] == whole)
            .filter_map(|device| device["latency_ns"]["d2c"]["n"].as_u64())
            .sum::<u64>();
        case.holds(
            id,
            n_requests > 10,
            &format!("{n_requests} requests of {whole}"),
        );
        let linked = analysis["chains"][0]["fraction"].as_f64().unwrap_or(0.0);
        case.holds(id, linked > 0.99, &format!("{linked} linked"));
        case.figure(format!("{id}: {n_requests} requests on {beneath}"));
    }
    case.equal("what is beside them", disk.others()? == others, true);
    case.equal("read-ahead afterwards", disk.read_ahead()?, read_ahead);
    for device in [&one, &other] {
        let left = Tool::new("wipefs").arg("--noheadings").arg(device).run()?;
        case.holds("afterwards", left.trim().is_empty(), &left);
    }
    Ok(())
}
