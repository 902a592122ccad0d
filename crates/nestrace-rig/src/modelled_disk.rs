//! A modelled disk as a block device: `nestrace-disk` serves a file, and a loop device with direct I/O lies over it.
//!
//! The way of a request from the loop device to the program and back is measured when the disk is made, and taken off
//! the model's times. So a reader of the block device sees the model's.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nestrace_modelled_disk::disk::Disk;
use nestrace_modelled_disk::lateness::Report;
use nestrace_modelled_disk::parameters::{Parameters, ParametersError};
use nestrace_modelled_disk::troubles::{Answer, Command, Trouble, Way};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::child_process::ends_with_us;
use crate::external_tool::ToolError;
use crate::loop_device::LoopDevice;

/// The program's name.
pub const PROGRAM: &str = "nestrace-disk";

const SMALL: usize = 4096;
const LARGE: usize = 1 << 20;
/// The longest path of a socket (unix(7)).
const MAX_SOCKET_PATH: usize = 100;
const PATIENCE: Duration = Duration::from_secs(10);

/// A modelled disk could not be made or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelledDiskError {
    /// A file of parameters.
    #[error("read {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// No disk can have these parameters.
    #[error("model the disk {model}")]
    Parameters {
        /// Which.
        model: String,
        /// Why.
        source: Box<ParametersError>,
    },
    /// The program did not start.
    #[error("start {program}")]
    Start {
        /// Which.
        program: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program serves nothing.
    #[error("serve the disk {model}: {said}")]
    NotReady {
        /// Which.
        model: String,
        /// What the program said.
        said: String,
    },
    /// losetup refused.
    #[error("put a loop device over a modelled disk")]
    Loop(#[from] ToolError),
    /// The program gave no answer.
    #[error("ask a modelled disk")]
    Ask(#[source] io::Error),
    /// The program refused a command.
    #[error("command a modelled disk: {0}")]
    Refused(String),
}

/// Which disk, and where its program is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelledDiskSpec {
    /// `nestrace-disk`.
    pub program: PathBuf,
    /// The name of a built-in model, or a TOML file.
    pub model: String,
    /// Where platters stand at the start.
    pub seed: u64,
    /// Folder of a file for the data; without it, memory.
    pub data: Option<PathBuf>,
}

impl ModelledDiskSpec {
    /// A disk with its data in memory.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, model: impl Into<String>) -> Self {
        Self {
            program: program.into(),
            model: model.into(),
            seed: 1,
            data: None,
        }
    }

    /// Such a disk of another model.
    #[must_use]
    pub fn of(&self, model: &str) -> Self {
        Self {
            model: model.to_owned(),
            ..self.clone()
        }
    }
}

/// The parameters of a built-in model, or of a TOML file.
///
/// # Errors
/// There is none of this name, or the file names no possible disk.
pub fn parameters(model: &str) -> Result<Parameters, ModelledDiskError> {
    let named = |source| ModelledDiskError::Parameters {
        model: model.to_owned(),
        source: Box::new(source),
    };
    if !is_file(model) {
        return Parameters::built_in(model).map_err(named);
    }
    let text = std::fs::read_to_string(model).map_err(|source| ModelledDiskError::File {
        path: PathBuf::from(model),
        source,
    })?;
    Parameters::read(&text).map_err(named)
}

/// Whether a model is named by a file of its parameters.
#[must_use]
pub fn is_file(model: &str) -> bool {
    model.ends_with(".toml")
}

/// A modelled disk; dropping it detaches the loop device, ends the program and removes what it made.
#[derive(Debug)]
pub struct ModelledDisk {
    // In this order: detach, end, remove.
    device: LoopDevice,
    served: Served,
}

/// The program, and its folder.
#[derive(Debug)]
struct Served {
    child: Child,
    place: PathBuf,
    _folder: TempDir,
}

impl ModelledDisk {
    /// Makes a disk of `size_bytes`, which are rounded up to 4 KiB. `folder` is for its mount point. Needs root.
    ///
    /// # Errors
    /// The model or the program is not there, FUSE or losetup refused.
    pub fn start(
        spec: &ModelledDiskSpec,
        size_bytes: u64,
        folder: &Path,
    ) -> Result<Self, ModelledDiskError> {
        let size_bytes = size_bytes.next_multiple_of(4096);
        let parameters = parameters(&spec.model)?;
        Disk::new(&parameters, size_bytes, spec.seed).map_err(|source| {
            ModelledDiskError::Parameters {
                model: spec.model.clone(),
                source: Box::new(source),
            }
        })?;
        let served = Served::start(spec, size_bytes, folder)?;
        let device = LoopDevice::attach(&served.place.join("mnt/disk"), true)?;
        let rotates = !matches!(parameters, Parameters::Flash(_));
        let queue = Path::new("/sys/block").join(device.name()).join("queue");
        // File systems ask for it; a kernel that keeps it otherwise changes no times.
        let _ = std::fs::write(queue.join("rotational"), if rotates { "1" } else { "0" });
        let disk = Self { device, served };
        disk.measure_way()?;
        Ok(disk)
    }

    /// The kernel's name: `loop3`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// `/dev/loop3`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.device.path()
    }

    /// The program that serves it.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.served.child.id()
    }

    /// Folder of the mount point, which is removed with the disk.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.served.place
    }

    /// How far the disk was from its model since the last report that reset the count.
    ///
    /// # Errors
    /// The program is gone.
    pub fn report(&self, reset: bool) -> Result<Report, ModelledDiskError> {
        match self.served.ask(&Command::Report { reset })? {
            Answer::Report(report) => Ok(report),
            Answer::Refused(why) => Err(ModelledDiskError::Refused(why)),
            Answer::Done => Err(ModelledDiskError::Refused(String::from("no report"))),
        }
    }

    /// Whether requests take the model's time, or none.
    ///
    /// # Errors
    /// The program is gone.
    pub fn pace(&self, modelled: bool) -> Result<(), ModelledDiskError> {
        self.served.command(&Command::Pace { modelled })
    }

    /// Gives requests a trouble.
    ///
    /// # Errors
    /// The program is gone, or there are too many troubles.
    pub fn trouble(&self, trouble: Trouble) -> Result<(), ModelledDiskError> {
        self.served.command(&Command::Trouble(trouble))
    }

    /// Ends all troubles.
    ///
    /// # Errors
    /// The program is gone.
    pub fn heal(&self) -> Result<(), ModelledDiskError> {
        self.served.command(&Command::Heal)
    }

    /// Measures what a request takes that the disk answers at once, less its time in the program.
    fn measure_way(&self) -> Result<(), ModelledDiskError> {
        const N_SMALL: usize = 200;
        const N_LARGE: usize = 24;
        const MAX_NS: u64 = 2_000_000;
        self.pace(false)?;
        let small = self.way_of(SMALL, N_SMALL)?.min(MAX_NS);
        let large = self.way_of(LARGE, N_LARGE)?.min(MAX_NS);
        self.served.command(&Command::Way(Way {
            ns: small,
            ns_per_mib: large.saturating_sub(small),
        }))?;
        self.pace(true)
    }

    fn way_of(&self, length: usize, n: usize) -> Result<u64, ModelledDiskError> {
        self.report(true)?;
        let device = OpenOptions::new()
            .read(true)
            .custom_flags(nix::fcntl::OFlag::O_DIRECT.bits())
            .open(self.path())
            .map_err(ModelledDiskError::Ask)?;
        let size = device_size(&device).map_err(ModelledDiskError::Ask)?;
        let length = length.min(usize::try_from(size).unwrap_or(length));
        // O_DIRECT wants memory at whole pages.
        let mut memory = vec![0; length + 4096];
        let at = memory.as_ptr().align_offset(4096);
        let mut times = Vec::with_capacity(n);
        for number in 0..n as u64 {
            let places = (size / length as u64).max(1);
            let offset = number % places * length as u64;
            let begun = Instant::now();
            device
                .read_exact_at(&mut memory[at..at + length], offset)
                .map_err(ModelledDiskError::Ask)?;
            times.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        times.sort_unstable();
        let median = times[n / 2];
        let inside = self.report(true)?.unpaced_ns as u64;
        Ok(median.saturating_sub(inside))
    }
}

fn device_size(device: &File) -> io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    let mut device = device;
    device.seek(SeekFrom::End(0))
}

impl Drop for ModelledDisk {
    fn drop(&mut self) {
        // What is withheld would hold up the detaching.
        let _ = self.heal();
        let _ = self.pace(false);
    }
}

impl Served {
    fn start(
        spec: &ModelledDiskSpec,
        size_bytes: u64,
        folder: &Path,
    ) -> Result<Self, ModelledDiskError> {
        let failed = |source| ModelledDiskError::Start {
            program: spec.program.clone(),
            source,
        };
        let make = |folder: &Path| {
            tempfile::Builder::new()
                .prefix("nestrace-disk-")
                .tempdir_in(folder)
        };
        let folder = match make(folder).map_err(failed)? {
            long if long.path().as_os_str().len() > MAX_SOCKET_PATH - "/disk/control".len() => {
                make(&std::env::temp_dir()).map_err(failed)?
            }
            folder => folder,
        };
        let place = folder.path().join("disk");
        let mut command = std::process::Command::new(&spec.program);
        command
            .args(["serve", "--model", &spec.model])
            .args(["--size", &size_bytes.to_string()])
            .args(["--seed", &spec.seed.to_string()])
            .arg("--folder")
            .arg(&place)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // The terminal's Ctrl-C must not take the disk from under a file system.
            .process_group(0);
        if let Some(data) = &spec.data {
            command.arg("--data").arg(data);
        }
        ends_with_us(&mut command, Signal::SIGTERM);
        let child = command.spawn().map_err(failed)?;
        let mut served = Self {
            child,
            place,
            _folder: folder,
        };
        served.wait_ready(&spec.model)?;
        Ok(served)
    }

    fn wait_ready(&mut self, model: &str) -> Result<(), ModelledDiskError> {
        let mut line = String::new();
        if let Some(stdout) = self.child.stdout.take() {
            // It ends with the program, if that does not come so far.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        if line.trim() == "ready" {
            return Ok(());
        }
        let mut said = String::new();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(4096).read_to_string(&mut said);
        }
        Err(ModelledDiskError::NotReady {
            model: model.to_owned(),
            said: said.trim().to_owned(),
        })
    }

    fn ask(&self, command: &Command) -> Result<Answer, ModelledDiskError> {
        self.exchange(command).map_err(ModelledDiskError::Ask)
    }

    fn exchange(&self, command: &Command) -> io::Result<Answer> {
        let mut socket = UnixStream::connect(self.place.join("control"))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut line = serde_json::to_string(command)?;
        line.push('\n');
        socket.write_all(line.as_bytes())?;
        let mut answer = String::new();
        BufReader::new(socket).read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    }

    fn command(&self, command: &Command) -> Result<(), ModelledDiskError> {
        match self.ask(command)? {
            Answer::Refused(why) => Err(ModelledDiskError::Refused(why)),
            Answer::Done | Answer::Report(_) => Ok(()),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Ok(process) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(process), Signal::SIGTERM);
        }
        let end = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        // Where it was killed, its mount is still there.
        let _ = umount2(&self.place.join("mnt"), MntFlags::MNT_DETACH);
    }
}
