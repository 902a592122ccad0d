//! Whole trees of hostile processes, made by a generator: names, arguments, descriptors, maps, threads, namespaces and ends that a
//! user of the host may give to his processes, in any combination.
//!
//! The seed is in the result's line. `NESTRACE_TREE_SEED` makes the same trees again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use nestrace_rig::child_process::ends_with_us;
use nix::sys::signal::Signal;

use super::processes::{Programs, USER, cost_of};
use super::programs::{MAX_MEMORY_KIB, PATIENCE, all_is_well};
use crate::stage::Stage;
use xtask::case::Case;

/// Trees, and processes of one; some of them have children of their own.
const TREES: u64 = 3;
const PROCESSES: u64 = 40;
/// Exit codes of a command that ended as it should: done, usage, input, missing, lost.
const ORDERLY: [i32; 6] = [0, 1, 2, 3, 4, 5];

/// What a process does before it waits, in words of `tree.c`.
const DEEDS: &[&str] = &[
    "fds",
    "pipes",
    "sockets",
    "maps",
    "threads",
    "undumpable",
    "comm",
    "namespace",
    "stop",
    "children",
    "orphans",
    "churn",
    "exec",
    "locked",
    "deleted",
    "fifo",
    "link",
    "listen",
    "deaf",
    "liar",
];
const NAMES: &[&str] = &[
    "qemu-system-x86_64",
    "qemu-system-x86_64",
    "qemu-kvm",
    "kvm",
    "ld-linux-x86-64.so.2",
    "bash",
    "qemu\n(x) R 1",
];
const WORDS: &[&str] = &[
    "-machine",
    "q35",
    "-name",
    "guest=,debug-threads=on",
    "-drive",
    "file=/dev/zero,if=virtio",
    "file=json:{\"driver\":",
    "-blockdev",
    "{\"driver\":\"raw\",\"file\":{\"driver\":\"file\",\"filename\":\"/proc/self/mem\"},\"node-name\":\"a\"}",
    "{\"driver\":\"qcow2\",\"file\":\"a\",\"backing\":\"a\",\"node-name\":\"a\"}",
    "-device",
    "virtio-blk-pci,drive=a",
    "virtio-scsi-pci,iothread-vq-mapping=[[[[[[[[",
    "-qmp",
    "-mon",
    "chardev=m",
    "-chardev",
    "-uuid",
    "-add-fd",
    "set=1,fd=3",
    "file=/dev/fdset/1",
    "-sandbox",
    "on",
    "",
    "=",
    ",,,,",
    "file.file.file.file.filename=x",
    "\u{fffd}\u{7f}",
    "-readconfig",
    "/dev/tty",
    "-object",
    "iothread,id=i",
    "-accel",
    "kvm",
    "vm.qcow2",
    "-snapshot",
    "--",
    "-incoming",
];

/// Trees of processes beside the honest guest.
pub fn random(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let actor = programs.compile("tree", include_str!("tree.c"), &["-pthread", "-rdynamic"])?;
    let seed = match std::env::var("NESTRACE_TREE_SEED") {
        Ok(seed) => seed.parse().context("read NESTRACE_TREE_SEED")?,
        Err(_) => SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(1, |time| u64::from(time.subsec_nanos()) | 1),
    };
    case.figure(format!("seed {seed}"));
    let mut random = Random(seed);
    for number in 0..TREES {
        let folder = programs.path(&format!("tree-{number}"));
        fs::create_dir(&folder).context("make the tree's folder")?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).context("open it")?;
        let tree = Tree::grow(&mut random, &actor, &folder, stage.guest.name())?;
        // They do what they are for meanwhile.
        thread::sleep(Duration::from_millis(700));
        all_is_well(stage, case)?;
        for pid in tree.some_pids(&mut random, 4) {
            let name = format!("pid:{pid}");
            let bundle = folder.join(format!("{pid}.nest"));
            let place = bundle.to_str().context("a plain path")?;
            let args = ["record", "--guest", &name, "--duration", "0.2", "-o", place];
            let cost = cost_of(&stage.ctx.nestrace, &args)?;
            case.holds(
                "a recording of a hostile process ends in order",
                cost.code.is_some_and(|code| ORDERLY.contains(&code))
                    && cost.took < PATIENCE
                    && cost.memory_kib <= 4 * MAX_MEMORY_KIB
                    && !cost.said.contains("panicked"),
                &format!(
                    "{:?} after {:?}, {} KiB: {}",
                    cost.code, cost.took, cost.memory_kib, cost.said
                ),
            );
        }
    }
    Ok(())
}

/// SplitMix64: what it gives is the same for the same seed everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        let at = usize::try_from(self.below(words.len() as u64)).unwrap_or(0);
        words.get(at).copied().unwrap_or_default()
    }
}

/// Processes of one group each, which are ended with their children.
struct Tree(Vec<Child>);

impl Tree {
    fn grow(
        random: &mut Random,
        actor: &Path,
        folder: &Path,
        honest: &str,
    ) -> anyhow::Result<Self> {
        let mut tree = Self(Vec::new());
        for number in 0..PROCESSES {
            let mut command = Command::new(actor);
            let name = random.of(NAMES);
            command.arg0(name).args(arguments(random, folder, honest));
            let n_deeds = 1 + random.below(4);
            let deeds: Vec<&str> = (0..n_deeds).map(|_| random.of(DEEDS)).collect();
            command
                .env("DEEDS", deeds.join(","))
                .env("FOLDER", folder)
                .env("NUMBER", number.to_string())
                .uid(USER)
                .gid(USER)
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            ends_with_us(&mut command, Signal::SIGKILL);
            tree.0
                .push(command.spawn().context("start a hostile process")?);
        }
        Ok(tree)
    }

    fn some_pids(&self, random: &mut Random, n: usize) -> Vec<u32> {
        let any = |random: &mut Random| {
            let at = usize::try_from(random.below(self.0.len() as u64)).ok()?;
            self.0.get(at).map(Child::id)
        };
        (0..n).filter_map(|_| any(random)).collect()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for child in &mut self.0 {
            if let Ok(group) = i32::try_from(child.id()) {
                // A group that has ended by itself is no error.
                let _ =
                    nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group), Signal::SIGKILL);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn arguments(random: &mut Random, folder: &Path, honest: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for _ in 0..random.below(60) {
        let word = match random.below(12) {
            0 => honest.to_owned(),
            1 => format!(
                "unix:{}/s{},server=on,wait=off",
                folder.display(),
                random.below(PROCESSES)
            ),
            2 => format!("file={}/s{}", folder.display(), random.below(PROCESSES)),
            3 => random
                .of(WORDS)
                .repeat(usize::try_from(random.below(400)).unwrap_or(1)),
            4 => format!("{}={}", random.of(WORDS), random.of(WORDS)),
            _ => random.of(WORDS).to_owned(),
        };
        words.push(word);
    }
    words
}
