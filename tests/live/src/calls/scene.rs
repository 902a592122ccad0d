//! A guest with a disk for each file system, and one recording of all the programs in it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::stack::{DiskStack, GuestFsKind, HostFsKind};
use nestrace_stamp::CallLine;
use nestrace_trace::{Event, Manifest};
use tempfile::TempDir;
use xtask::guest_programs;

use super::script::Script;
use crate::context::LiveContext;
use crate::direct_io_link::stream_events;
use crate::measure::{Measured, Watched};
use crate::stage::manifest;
use crate::with_agents::counts::DiskCounts;
use crate::with_agents::recording::{device_in_guest, measure};

/// The program under its own name.
const WRITER: &str = "/opt/call-writer";
/// The same under another: processes are called after their file.
const STREAMER: &str = "/opt/streamer";
/// mkfs.xfs wants 300 MB.
const IMAGE_BYTES: u64 = 320 << 20;
/// File numbers of one run: stamps of an earlier one may still lie on the disk.
const NUMBERS_OF_A_RUN: u64 = 16;

/// A disk of the guest with a file system.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// Its id; the mount point is `/mnt/ID`.
    pub id: &'static str,
    kind: GuestFsKind,
    /// No commit and no write-back comes by itself.
    options: &'static str,
    /// A program streams beside one that syncs.
    pub streams: bool,
}

/// A guest's kernel and its disks.
#[derive(Clone, Copy, Debug)]
pub struct Guests {
    /// What its cases are called after.
    pub prefix: &'static str,
    /// Series of its kernel; `None`: the usual one.
    kernel: Option<&'static str>,
    /// fio runs on the first.
    pub disks: &'static [Disk],
}

/// All of them. Only without delayed allocation has a commit data of files that it was not asked for.
pub const GUESTS: [Guests; 2] = [
    Guests {
        prefix: "calls",
        kernel: None,
        disks: &[
            EXT4, XFS, BTRFS, JOURNAL, EXT3, JFS, F2FS, ORDERED, WRITEBACK,
        ],
    },
    Guests {
        prefix: "calls/6.12",
        kernel: Some("6.12"),
        disks: &[EXT4, XFS, BTRFS, JOURNAL, CHECKPOINTS],
    },
];

const EXT4: Disk = disk("ext4", GuestFsKind::Ext4, "commit=600", false);
const XFS: Disk = disk("xfs", GuestFsKind::Xfs, "rw", false);
const BTRFS: Disk = disk("btrfs", GuestFsKind::Btrfs, "commit=600", false);
const JOURNAL: Disk = disk(
    "journal",
    GuestFsKind::Ext4,
    "data=journal,commit=600",
    false,
);
const EXT3: Disk = disk("ext3", GuestFsKind::Ext3, "commit=600", false);
const JFS: Disk = disk("jfs", GuestFsKind::Jfs, "rw", false);
const F2FS: Disk = disk(
    "f2fs",
    GuestFsKind::F2fs,
    "background_gc=off,nodiscard",
    false,
);
/// Every sync makes a checkpoint.
const CHECKPOINTS: Disk = disk(
    "checkpoints",
    GuestFsKind::F2fs,
    "background_gc=off,nodiscard,fastboot",
    false,
);
const ORDERED: Disk = disk(
    "ordered",
    GuestFsKind::Ext4,
    "data=ordered,nodelalloc,commit=600",
    true,
);
const WRITEBACK: Disk = disk(
    "writeback",
    GuestFsKind::Ext4,
    "data=writeback,nodelalloc,commit=600",
    true,
);

const fn disk(id: &'static str, kind: GuestFsKind, options: &'static str, streams: bool) -> Disk {
    Disk {
        id,
        kind,
        options,
        streams,
    }
}

impl Disk {
    /// Data that is written again goes to another place, in a journal too.
    pub fn moves(&self) -> bool {
        matches!(self.kind, GuestFsKind::Btrfs | GuestFsKind::F2fs) || self.journals_data()
    }

    /// Its journal has the data too, and O_DIRECT goes through the page cache.
    pub fn journals_data(&self) -> bool {
        self.id == "journal"
    }

    /// It has one of jbd2.
    pub fn has_jbd2(&self) -> bool {
        matches!(self.kind, GuestFsKind::Ext3 | GuestFsKind::Ext4)
    }

    /// Events say which sync waits for a journal or log that another thread writes. JFS has none: a sync that another one's
    /// log serves has that time as its own.
    pub fn journal_is_known(&self) -> bool {
        self.kind != GuestFsKind::Jfs
    }

    /// Events show the file of an msync. JFS and f2fs have none for their syncs.
    pub fn msync_is_known(&self) -> bool {
        !matches!(self.kind, GuestFsKind::Jfs | GuestFsKind::F2fs)
    }

    /// Where a super block lies that every commit writes last, in bytes (`BTRFS_SUPER_INFO_OFFSET`).
    pub fn super_block(&self) -> Option<u64> {
        (self.kind == GuestFsKind::Btrfs).then_some(64 << 10)
    }

    /// What part of the calls has to have exactly its bios. On JFS a thread of its own (`jfsIO`) writes the log now and
    /// then for a sync that waits, and metadata that is read lies in inodes with the numbers of files.
    pub fn right(&self) -> f64 {
        if self.kind == GuestFsKind::Jfs {
            0.97
        } else if self.kind == GuestFsKind::F2fs || self.journals_data() {
            // A bio of f2fs may have pages of several files and names that of the first. With `data=journal`, a synced
            // write now and then waits for a commit that no event ties to it. Both are its own time.
            0.99
        } else {
            0.999
        }
    }
}

/// The guest and the file system of its images.
pub struct Scene<'a> {
    ctx: &'a LiveContext,
    disks: &'static [Disk],
    /// The guest.
    pub guest: Guest,
    host: HostFs,
    folder: TempDir,
    run: Cell<u64>,
}

/// What is known of a disk beside the recording.
pub struct OfDisk {
    /// Which.
    pub disk: Disk,
    /// Its number in the guest's events.
    pub dev: u32,
    /// Its image.
    pub image: PathBuf,
    /// Number of its first file in the stamps.
    pub first: u64,
    /// What call-writer did.
    pub script: Script,
    /// XFS's thread that writes changed metadata back some time after it is in the log (xfsaild), which no call waits for.
    pub xfsaild: Option<u32>,
    /// Its log.
    pub log: Vec<CallLine>,
    /// What the streaming program did; empty without one.
    pub stream: Vec<CallLine>,
}

/// A recording and what is known beside it.
pub struct Seen {
    /// Counts and analysis.
    pub measured: Measured<DiskCounts>,
    /// The recording's own facts.
    pub manifest: Manifest,
    /// Events of the guest.
    pub events: Vec<Event>,
    /// Each disk.
    pub disks: Vec<OfDisk>,
    /// fio's results.
    pub fio: String,
    /// Of journals: `/proc/fs/jbd2/*/info` before and after, with the guest's time of each look.
    pub journals: String,
    /// What the kernel itself measured of each commit: lines of its tracepoint `jbd2_run_stats`.
    pub run_stats: String,
}

impl<'a> Scene<'a> {
    /// Boots the guest and mounts all file systems.
    pub fn boot(ctx: &'a LiveContext, guests: &Guests) -> anyhow::Result<Self> {
        let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
        let mut disks = Vec::new();
        for disk in guests.disks {
            disks.push(ctx.disk(&host, disk.id, DiskStack::RAW, IMAGE_BYTES, "off")?);
        }
        let program = guest_programs::call_writer()?;
        let files = [WRITER, STREAMER].map(|place| (place.to_owned(), program.clone()));
        let name = ctx.guest_name("calls");
        let spec = match guests.kernel {
            None => ctx.agent_guest_spec(&name)?,
            Some(series) => ctx.agent_guest_spec_of(&name, series)?,
        };
        let guest = Guest::boot(GuestSpec {
            disks,
            files: files.to_vec(),
            ..spec
        })?;
        ctx.progress.say(&format!("guest {name} is up"));
        for disk in guests.disks {
            guest.make_fs(disk.id, disk.kind)?;
            let folder = format!("/mnt/{}", disk.id);
            guest.mount(disk.id, disk.kind, &folder, disk.options)?;
        }
        let quiet = "echo 0 > /proc/sys/vm/dirty_writeback_centisecs; sync; \
                     echo 720000 > /proc/sys/fs/xfs/xfssyncd_centisecs || true";
        guest.run_ok(quiet, Duration::from_secs(60))?;
        guest.start_agent("--backend ebpf")?;
        let folder = tempfile::Builder::new()
            .prefix("nestrace-calls-")
            .tempdir()
            .context("make a folder for scripts")?;
        Ok(Self {
            ctx,
            disks: guests.disks,
            guest,
            host,
            folder,
            run: Cell::new(0),
        })
    }

    /// Programs stream on some of its disks.
    pub fn has_streams(&self) -> bool {
        self.disks.iter().any(|disk| disk.streams)
    }

    /// Records all programs once.
    pub fn record(&self) -> anyhow::Result<Seen> {
        let each = self.disks.iter().map(|disk| Watched {
            guest: &self.guest,
            disk: disk.id,
            host: &self.host,
        });
        let watched: Vec<_> = each.collect();
        let measured = measure(self.ctx, &watched, || {
            self.run.set(self.run.get() + 1);
            self.work()
        })?;
        let manifest = manifest(&measured.bundle)?;
        let side = manifest.guest_sides.first();
        let side = side.context("find the guest's side in the manifest")?;
        let events = stream_events(&measured.bundle, &side.file)?;
        let mut devs = BTreeMap::new();
        for disk in &side.disks {
            devs.insert(disk.name.clone(), disk.dev);
        }
        let mut disks = Vec::new();
        for (index, disk) in self.disks.iter().copied().enumerate() {
            let device = device_in_guest(&self.guest, disk.id)?;
            let first = self.first_number(index);
            let stream = if disk.streams {
                self.log(&format!("{}-stream", disk.id))?
            } else {
                Vec::new()
            };
            let spec = &self.guest.spec().disks;
            disks.push(OfDisk {
                disk,
                dev: *devs.get(&device).context("find the disk's number")?,
                image: spec.get(index).context("find the image")?.image.clone(),
                first,
                script: self.script(&disk, first),
                xfsaild: self.xfsaild(&disk, &device)?,
                log: self.log(disk.id)?,
                stream,
            });
        }
        Ok(Seen {
            events,
            disks,
            fio: self.text_of("/tmp/fio.json")?,
            journals: self.text_of("/tmp/journals")?,
            run_stats: self.text_of("/tmp/run_stats")?,
            manifest,
            measured,
        })
    }

    /// The thread of an XFS on this device, `vdb` or `/dev/vdb`.
    fn xfsaild(&self, disk: &Disk, device: &str) -> anyhow::Result<Option<u32>> {
        if disk.kind != GuestFsKind::Xfs {
            return Ok(None);
        }
        let name = device.rsplit('/').next().unwrap_or(device);
        // Its exit status is 2 where another process ends meanwhile.
        let script = format!("grep -slx 'xfsaild/{name}' /proc/[0-9]*/comm");
        let found = self.guest.run(&script, Duration::from_secs(10))?.stdout;
        let tid = found.split('/').nth(2).and_then(|tid| tid.parse().ok());
        Ok(Some(tid.context("find xfsaild")?))
    }

    fn first_number(&self, disk: usize) -> u64 {
        (self.run.get() * self.disks.len() as u64 + disk as u64) * NUMBERS_OF_A_RUN
    }

    fn files_of(&self, disk: &Disk) -> String {
        format!("/mnt/{}/{}", disk.id, self.run.get())
    }

    fn script(&self, disk: &Disk, first: u64) -> Script {
        let folder = self.files_of(disk);
        if disk.streams {
            Script::of_small_syncs(&folder, first)
        } else {
            Script::of_every_mode(&folder, first, disk.journals_data())
        }
    }

    fn put(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.folder.path().join(name);
        fs::write(&path, text).context("write a script")?;
        Ok(self.guest.put_file(&path, &format!("/tmp/{name}"))?)
    }

    fn text_of(&self, place: &str) -> anyhow::Result<String> {
        let path = self.folder.path().join("fetched");
        self.guest.get_file(place, &path)?;
        fs::read_to_string(&path).with_context(|| format!("read {place}"))
    }

    fn log(&self, name: &str) -> anyhow::Result<Vec<CallLine>> {
        let text = self.text_of(&format!("/tmp/{name}.log"))?;
        Ok(text.lines().map(str::parse).collect::<Result<_, _>>()?)
    }

    fn work(&self) -> anyhow::Result<()> {
        let mut script = String::from("set -e\nrm -f /tmp/*.log /tmp/journals\n");
        script += RUN_STATS_ON;
        script += JOURNALS;
        for (index, disk) in self.disks.iter().enumerate() {
            let (id, first) = (disk.id, self.first_number(index));
            let folder = self.files_of(disk);
            self.put(&format!("{id}.script"), &self.script(disk, first).text())?;
            script += &format!("mkdir {folder}; sync\n");
            if disk.streams {
                let stream = Script::of_a_stream(&folder, first + 1);
                self.put(&format!("{id}-stream.script"), &stream.text())?;
                script += &format!(
                    "{STREAMER} /tmp/{id}-stream.script /tmp/{id}-stream.log & streamer=$!\n\
                     {WRITER} /tmp/{id}.script /tmp/{id}.log\n\
                     wait $streamer\n"
                );
            } else {
                script += &format!("{WRITER} /tmp/{id}.script /tmp/{id}.log\n");
            }
        }
        let first = self.disks.first().context("find a disk for fio")?;
        script += &super::fio::command(&self.files_of(first));
        // The agent looks for names when the recording ends. Of f2fs it would read nodes that no call has read.
        script += "ls -lR /mnt > /dev/null\nsync\n";
        script += JOURNALS;
        script += RUN_STATS_OFF;
        self.guest.run_ok(&script, Duration::from_secs(240))?;
        Ok(())
    }
}

/// Notes the counts of every journal: the guest's time, the file, transactions, and the average commit in microseconds.
const JOURNALS: &str = "for info in /proc/fs/jbd2/*/info; do \
    echo \"$(cut -d' ' -f1 /proc/uptime) $info $(head -n 1 $info | cut -d' ' -f1) \
    $(grep 'average transaction commit' $info | tr -d -c 0-9)\" >> /tmp/journals; done\n";

/// Has the kernel note what it measures of each commit, and takes the notes.
const RUN_STATS_ON: &str = "T=/sys/kernel/tracing; \
    [ -e $T/trace ] || mount -t tracefs tracefs $T; \
    echo > $T/trace; echo 1 > $T/events/jbd2/jbd2_run_stats/enable\n";
const RUN_STATS_OFF: &str = "echo 0 > $T/events/jbd2/jbd2_run_stats/enable; \
    grep jbd2_run_stats: $T/trace > /tmp/run_stats\n";
