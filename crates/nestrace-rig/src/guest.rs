//! A running QEMU guest that obeys commands, and goes away with its owner.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

pub use crate::guest_channel::{ChannelError, GuestOutput};
pub use crate::guest_spec::{Accel, DiskSpec, GuestSpec};

use crate::child_process::ends_with_us;
use crate::external_tool::last_lines;
use crate::guest_channel::Channel;
use crate::guest_folder::GuestFolder;
use crate::initramfs::{self, InitramfsError};
use crate::interrupt::{self, Interrupted};
use crate::qemu_command::{self, place};
use crate::qmp::{self, DiskStats, Qmp, QmpError};
use crate::translation;

/// How long a guest may take until its init obeys; a loaded two-core machine needs 10 s.
const BOOT_PATIENCE: Duration = Duration::from_secs(120);

/// A guest could not be started, or did not do what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// QEMU could not be started, or its folder not be made.
    #[error("start {qemu}")]
    Start {
        /// The program.
        qemu: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A stack that QEMU refuses.
    #[error("give the disk {disk} its stack: {objection}")]
    Stack {
        /// The disk's id.
        disk: String,
        /// Why not.
        objection: &'static str,
    },
    /// The guest's own files.
    #[error("prepare the guest's own files")]
    Overlay(#[from] InitramfsError),
    /// It did not come up, or went away.
    #[error("boot the guest {name}; QEMU says: {qemu_log}; the console ends with: {console}")]
    Boot {
        /// Guest's name.
        name: String,
        /// The last lines of QEMU's own messages.
        qemu_log: String,
        /// The last lines of the serial console.
        console: String,
        /// What went wrong with the channel.
        source: ChannelError,
    },
    /// The channel broke after the boot.
    #[error("run a command in the guest {name}; the console ends with: {console}")]
    Channel {
        /// Guest's name.
        name: String,
        /// The last lines of the serial console.
        console: String,
        /// What went wrong.
        source: ChannelError,
    },
    /// A command that had to succeed did not.
    #[error("run `{script}` in the guest: status {status}: {output}")]
    Command {
        /// The script.
        script: String,
        /// Its exit status.
        status: i32,
        /// The end of its stderr and stdout.
        output: String,
    },
    /// A file could not be moved in or out.
    #[error("transfer {path}")]
    Transfer {
        /// The host's path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// QMP failed.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// A running guest. Dropping it kills QEMU and removes its files.
#[derive(Debug)]
pub struct Guest {
    spec: GuestSpec,
    qemu: Qemu,
    channel: Mutex<Channel>,
}

/// The process and its folder; killed and removed when dropped.
#[derive(Debug)]
struct Qemu {
    child: Child,
    folder: GuestFolder,
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that runs in the guest; [`RunningCommand::wait`] fetches its answer.
#[derive(Debug)]
#[must_use]
pub struct RunningCommand<'a> {
    guest: &'a Guest,
    id: u64,
    timeout: Duration,
}

impl RunningCommand<'_> {
    /// Waits for its end.
    ///
    /// # Errors
    /// The guest does not answer within the command's time limit and 15 s, or QEMU ended.
    pub fn wait(self) -> Result<GuestOutput, GuestError> {
        let result = self.guest.channel().finish(self.id, self.timeout);
        result.map_err(|source| self.guest.channel_error(source))
    }
}

impl Guest {
    /// Boots a guest and waits until it obeys.
    ///
    /// # Errors
    /// QEMU refuses or the guest does not come up; the error has the end of its console.
    pub fn boot(spec: GuestSpec) -> Result<Self, GuestError> {
        for disk in &spec.disks {
            if let Some(objection) = disk.stack.objection() {
                return Err(GuestError::Stack {
                    disk: disk.id.clone(),
                    objection,
                });
            }
        }
        let patience = BOOT_PATIENCE * spec.patience;
        if spec.accel == Accel::Kvm {
            return Self::boot_with(spec, "kvm", patience);
        }
        if spec.accel == Accel::KvmIfItBoots && has_kvm() {
            match Self::boot_with(spec.clone(), "kvm", Duration::from_secs(10)) {
                Err(GuestError::Boot {
                    source: ChannelError::Interrupted(signal),
                    ..
                }) => {
                    return Err(signal.into());
                }
                Err(_) => {}
                booted => return booted,
            }
        }
        let accel = match spec.accel {
            Accel::Counted => translation::ONE_THREAD,
            _ => translation::accel(spec.vcpus),
        };
        Self::boot_with(spec, accel, patience)
    }

    fn boot_with(spec: GuestSpec, accel: &str, patience: Duration) -> Result<Self, GuestError> {
        interrupt::check()?;
        let mut qemu = start_qemu(&spec, accel)?;
        match connect(&mut qemu, patience) {
            Ok(channel) => {
                // QEMU keeps it in memory, for resets too. A run that is killed leaves no large file so.
                let _ = std::fs::remove_file(qemu.folder.path().join(place::INITRAMFS));
                Ok(Self {
                    spec,
                    qemu,
                    channel: Mutex::new(channel),
                })
            }
            Err(source) => Err(GuestError::Boot {
                name: spec.name,
                qemu_log: qemu.tail(place::QEMU_LOG),
                console: qemu.tail(place::CONSOLE),
                source,
            }),
        }
    }

    /// Guest's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What it was booted from.
    #[must_use]
    pub fn spec(&self) -> &GuestSpec {
        &self.spec
    }

    /// QEMU's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.qemu.child.id()
    }

    /// Host side of the agent's port `org.nestrace.agent.0`.
    #[must_use]
    pub fn agent_socket(&self) -> PathBuf {
        self.qemu.folder.path().join(place::AGENT)
    }

    /// A socket of QEMU's monitor that neither the rig nor the tests use.
    #[must_use]
    pub fn monitor_socket(&self) -> PathBuf {
        self.qemu.folder.path().join(place::QMP)
    }

    /// The serial console up to now.
    #[must_use]
    pub fn console(&self) -> String {
        self.qemu.read(place::CONSOLE)
    }

    /// Runs a shell script in the guest; it is killed (status 137) after `timeout`, times the guest's patience.
    ///
    /// # Errors
    /// The channel broke or the guest does not answer; the script's own failure is its status.
    pub fn run(&self, script: &str, timeout: Duration) -> Result<GuestOutput, GuestError> {
        self.start(script, timeout)?.wait()
    }

    /// Runs a shell script that has to succeed.
    ///
    /// # Errors
    /// As [`Guest::run`], and [`GuestError::Command`] when its status is not 0.
    pub fn run_ok(&self, script: &str, timeout: Duration) -> Result<GuestOutput, GuestError> {
        let output = self.run(script, timeout)?;
        if output.status == 0 {
            return Ok(output);
        }
        let text = format!("{}\n{}", output.stdout, output.stderr);
        Err(GuestError::Command {
            script: script.to_owned(),
            status: output.status,
            output: last_lines(&text, 8),
        })
    }

    /// Starts a script and comes back at once. One script runs at a time, in order.
    ///
    /// # Errors
    /// The channel broke.
    pub fn start(&self, script: &str, timeout: Duration) -> Result<RunningCommand<'_>, GuestError> {
        let timeout = timeout * self.spec.patience;
        let result = self.channel().start(script, timeout);
        let id = result.map_err(|source| self.channel_error(source))?;
        Ok(RunningCommand {
            guest: self,
            id,
            timeout,
        })
    }

    /// The guest's device node of a disk: `/dev/vda`.
    ///
    /// # Errors
    /// The guest has no such disk.
    pub fn device_of(&self, disk: &str) -> Result<String, GuestError> {
        let output = self.run_ok(&format!("disk {disk}"), Duration::from_secs(10))?;
        Ok(format!("/dev/{}", output.stdout.trim()))
    }

    /// Copies a file of this machine into the guest.
    ///
    /// # Errors
    /// The file cannot be read, or the channel broke.
    pub fn put_file(&self, path: &Path, place_in_guest: &str) -> Result<(), GuestError> {
        let failed = |source| GuestError::Transfer {
            path: path.to_owned(),
            source,
        };
        let bytes = std::fs::read(path).map_err(failed)?;
        let script = format!(
            "head -c {} < $(port org.nestrace.lab.1) > {place_in_guest} && chmod 755 {place_in_guest}",
            bytes.len()
        );
        let running = self.start(&script, Duration::from_secs(120))?;
        let mut stream = self.transfer_socket().map_err(failed)?;
        stream.write_all(&bytes).map_err(failed)?;
        succeeded(&script, running.wait()?)
    }

    /// Copies a file of the guest to this machine.
    ///
    /// # Errors
    /// The guest has no such file, it cannot be written here, or the channel broke.
    pub fn get_file(&self, place_in_guest: &str, path: &Path) -> Result<(), GuestError> {
        let failed = |source| GuestError::Transfer {
            path: path.to_owned(),
            source,
        };
        let size = self.run_ok(
            &format!("stat -c %s {place_in_guest}"),
            Duration::from_secs(10),
        )?;
        let size: u64 = size
            .stdout
            .trim()
            .parse()
            .map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
        let stream = self.transfer_socket().map_err(failed)?;
        let script = format!("cat {place_in_guest} > $(port org.nestrace.lab.1)");
        let running = self.start(&script, Duration::from_secs(120))?;
        let mut file = File::create(path).map_err(failed)?;
        let copied = io::copy(&mut stream.take(size), &mut file).map_err(failed)?;
        succeeded(&script, running.wait()?)?;
        if copied == size {
            Ok(())
        } else {
            Err(failed(io::ErrorKind::UnexpectedEof.into()))
        }
    }

    /// Runs one QMP command on the rig's own socket, which is closed again at once.
    ///
    /// # Errors
    /// QMP failed or refused.
    pub fn qmp(&self, command: &str, arguments: Value) -> Result<Value, GuestError> {
        let socket = self.qemu.folder.path().join(place::OWN_QMP);
        Ok(Qmp::connect(&socket)?.execute(command, arguments)?)
    }

    /// QEMU's own count of a disk's requests.
    ///
    /// # Errors
    /// QMP failed, or there is no such disk, or one of its counts is missing.
    pub fn disk_stats(&self, disk: &str) -> Result<DiskStats, GuestError> {
        let stats = self.qmp("query-blockstats", Value::Null)?;
        Ok(qmp::disk_stats(&stats, disk)?)
    }

    /// Waits until a guest that was reset obeys again (see [`GuestSpec::allow_reboot`]).
    ///
    /// # Errors
    /// It does not come up.
    pub fn wait_for_reboot(&self) -> Result<(), GuestError> {
        let result = self
            .channel()
            .wait_ready(BOOT_PATIENCE * self.spec.patience);
        result.map_err(|source| self.channel_error(source))
    }

    /// Kills QEMU at once, as a crash would; the value stays for its folder and console.
    pub fn kill(&mut self) {
        let _ = self.qemu.child.kill();
        let _ = self.qemu.child.wait();
    }

    fn transfer_socket(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(self.qemu.folder.path().join(place::TRANSFER))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_write_timeout(Some(Duration::from_secs(60)))?;
        Ok(stream)
    }

    fn channel(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn channel_error(&self, source: ChannelError) -> GuestError {
        match source {
            ChannelError::Interrupted(signal) => signal.into(),
            source => GuestError::Channel {
                name: self.spec.name.clone(),
                console: self.qemu.tail(place::CONSOLE),
                source,
            },
        }
    }
}

fn succeeded(script: &str, output: GuestOutput) -> Result<(), GuestError> {
    if output.status == 0 {
        return Ok(());
    }
    let GuestOutput { status, stderr, .. } = output;
    Err(GuestError::Command {
        script: script.to_owned(),
        status,
        output: last_lines(&stderr, 8),
    })
}

impl Qemu {
    fn read(&self, name: &str) -> String {
        let bytes = std::fs::read(self.folder.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn tail(&self, name: &str) -> String {
        last_lines(from_panic(&self.read(name)), 12)
    }
}

/// Of a console, the kernel's last words where it has spoken them: what follows them does not say why.
fn from_panic(console: &str) -> &str {
    let Some(place) = console.rfind("Kernel panic") else {
        return console;
    };
    let begin = console[..place].rfind('\n').map_or(0, |end| end + 1);
    let lines = console[begin..].match_indices('\n');
    let end = lines.map(|(place, _)| begin + place).nth(2);
    &console[begin..end.unwrap_or(console.len())]
}

/// Whether guests may be executed by hardware here.
pub fn has_kvm() -> bool {
    Path::new("/dev/kvm").exists()
}

fn start_qemu(spec: &GuestSpec, accel: &str) -> Result<Qemu, GuestError> {
    let failed = |source| GuestError::Start {
        qemu: spec.qemu.clone(),
        source,
    };
    let folder = GuestFolder::new().map_err(failed)?;
    write_initramfs(spec, folder.path())?;
    let log = File::create(folder.path().join(place::QEMU_LOG)).map_err(failed)?;
    let mut command = Command::new(&spec.qemu);
    command
        .args(qemu_command::arguments(spec, folder.path(), accel))
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log)
        .process_group(0);
    // A run that is killed leaves no QEMU behind.
    ends_with_us(&mut command, Signal::SIGKILL);
    let child = command.spawn().map_err(failed)?;
    Ok(Qemu { child, folder })
}

/// The shared initramfs, or a copy with the guest's own files behind it.
fn write_initramfs(spec: &GuestSpec, folder: &Path) -> Result<(), GuestError> {
    let place = folder.join(place::INITRAMFS);
    let failed = |source| GuestError::Transfer {
        path: place.clone(),
        source,
    };
    let files = spec.own_files();
    if files.is_empty() {
        return std::os::unix::fs::symlink(&spec.initramfs.path, &place).map_err(failed);
    }
    let overlay = folder.join("overlay.cpio");
    initramfs::write_overlay(&overlay, &files)?;
    std::fs::copy(&spec.initramfs.path, &place).map_err(failed)?;
    let mut whole = File::options().append(true).open(&place).map_err(failed)?;
    io::copy(&mut File::open(&overlay).map_err(failed)?, &mut whole).map_err(failed)?;
    std::fs::remove_file(overlay).map_err(failed)
}

fn connect(qemu: &mut Qemu, patience: Duration) -> Result<Channel, ChannelError> {
    let deadline = Instant::now() + patience;
    let socket = qemu.folder.path().join(place::CHANNEL);
    loop {
        interrupt::check()?;
        if let Ok(stream) = UnixStream::connect(&socket) {
            let mut channel = Channel::new(stream)?;
            channel.wait_ready(deadline.saturating_duration_since(Instant::now()))?;
            return Ok(channel);
        }
        if qemu.child.try_wait()?.is_some() {
            return Err(ChannelError::Closed);
        }
        if Instant::now() > deadline {
            return Err(ChannelError::Timeout(patience));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_by_its_first_words() {
        let console = "boot\n[ 6.5] Kernel panic - not syncing: oops\n[ 6.5] CPU: 0\n[ 6.5] Call Trace:\n a\n b\n";
        let told = from_panic(console);
        assert_eq!(
            told,
            "[ 6.5] Kernel panic - not syncing: oops\n[ 6.5] CPU: 0\n[ 6.5] Call Trace:"
        );
        assert_eq!(from_panic("Kernel panic"), "Kernel panic");
        assert_eq!(from_panic("all is well\n"), "all is well\n");
    }
}
