//! A host with two thousand processes and three hundred guests; twenty want to delay or hide the others.
//!
//! The guests are shells that are called as QEMU is and have its arguments. All read from one pipe of this test, so they end
//! with it in any case.

use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nestrace_record::guest::{Selection, discover};

const N_OTHERS: usize = 2000;
const N_HONEST: usize = 280;
const N_HOSTILE: usize = 20;
/// The aim is 2 s; the machine of a test may be busy.
const PATIENCE: Duration = Duration::from_secs(10);
const QEMU: &str = "qemu-system-x86_64";

/// Processes that wait until the pipe is closed.
struct Crowd {
    processes: Vec<Child>,
    reader: PipeReader,
    _writer: PipeWriter,
    folder: tempfile::TempDir,
}

impl Crowd {
    fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-crowded-")
            .tempdir_in("/var/tmp")
            .unwrap();
        // By a process of its own: a program that is still open for writing here cannot be started.
        let copied = Command::new("cp")
            .arg("/bin/sh")
            .arg(folder.path().join(QEMU))
            .status();
        assert!(copied.unwrap().success());
        let (reader, writer) = io::pipe().unwrap();
        Self {
            processes: Vec::new(),
            reader,
            _writer: writer,
            folder,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A name that no other guest of this machine has.
    fn name(kind: &str, index: usize) -> String {
        format!("crowd-{}-{kind}-{index}", std::process::id())
    }

    fn start(&mut self, program: &Path, words: &[String]) {
        let mut command = Command::new(program);
        command
            .args(words)
            .stdin(Stdio::from(self.reader.try_clone().unwrap()))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.processes.push(command.spawn().unwrap());
    }

    fn guest(&mut self, script: &str, name: &str, more: &[String]) {
        let first = ["-c", script, "-machine", "q35", "-name", name];
        let words: Vec<String> = first
            .into_iter()
            .map(str::to_owned)
            .chain(more.iter().cloned())
            .collect();
        self.start(&self.path(QEMU), &words);
    }

    fn honest(&mut self, index: usize) {
        let name = Self::name("honest", index);
        let image = self.path(&format!("{index}.img"));
        File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let drive = format!("file={},format=raw,if=virtio", image.display());
        let script = format!("exec 9<>{}; : >{0}.open; read x", image.display());
        self.guest(&script, &name, &["-drive".to_owned(), drive]);
    }

    fn hostile(&mut self, index: usize) {
        let name = Self::name("hostile", index);
        let fifo = self.path("fifo").display().to_string();
        let more: Vec<String> = match index % 3 {
            // More arguments than are read.
            0 => (0..10).map(|_| "x".repeat(120_000)).collect(),
            // Units that have to be looked for, in a list that grows.
            1 => (0..8000)
                .flat_map(|_| ["-drive", "file=x"].map(str::to_owned))
                .collect(),
            // Opening a FIFO has no end.
            _ => vec![
                "-drive".to_owned(),
                format!("file={fifo},if=virtio"),
                "-qmp".to_owned(),
                format!("unix:{fifo},server=on,wait=off"),
            ],
        };
        self.guest("read x", &name, &more);
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // It may have ended by itself.
            let _ = process.kill();
        }
        for process in &mut self.processes {
            let _ = process.wait();
        }
    }
}

#[test]
fn a_crowded_host_is_looked_at_soon() {
    let mut crowd = Crowd::new();
    nix::unistd::mkfifo(&crowd.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    (0..N_OTHERS).for_each(|_| crowd.start(Path::new("/bin/cat"), &[]));
    (0..N_HOSTILE).for_each(|index| crowd.hostile(index));
    (0..N_HONEST).for_each(|index| crowd.honest(index));

    let deadline = Instant::now() + Duration::from_secs(60);
    let is_up = |index: usize| crowd.path(&format!("{index}.img.open")).exists();
    while !(0..N_HONEST).all(is_up) {
        assert!(
            Instant::now() < deadline,
            "the guests have their images open"
        );
        thread::sleep(Duration::from_millis(50));
    }

    let begin = Instant::now();
    let found = discover(&Selection::All).unwrap();
    let took = begin.elapsed();
    let peak = fs::read_to_string("/proc/self/status").unwrap();
    let peak = peak.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    println!(
        "{took:?} for {} guests, {peak}",
        found.topology.guests.len()
    );

    assert!(took < PATIENCE, "{took:?}");
    let guests = &found.topology.guests;
    for index in 0..N_HONEST {
        let name = Crowd::name("honest", index);
        let guest = guests.iter().find(|guest| guest.name == name);
        let guest = guest.unwrap_or_else(|| panic!("{name} is hidden"));
        let image = guest.disks.first().and_then(|disk| disk.images.first());
        assert_eq!(image.map(|image| image.size), Some(1 << 20), "{name}");
    }
    let left_out = found
        .diagnostics
        .iter()
        .filter(|note| note.message.contains("KiB of arguments; left out"))
        .count();
    assert_eq!(left_out, N_HOSTILE.div_ceil(3));
    let cut = found
        .diagnostics
        .iter()
        .filter(|note| {
            note.message.contains("the rest is not read")
                || note.message.contains("to parse; left out")
        })
        .count();
    assert_eq!(cut, (N_HOSTILE + 1) / 3);
}
