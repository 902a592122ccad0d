//! What a running recording gives up.
//!
//! Attaching needs nearly all of root. Afterwards the recorder needs its rings and maps, whose descriptors are open, and
//! the folder of its bundle. So, before it reads a byte from a guest's agent, it becomes the user who typed `sudo`, or a user of its own; it keeps no capability
//! but `CAP_BPF`, and that only on kernels that ask for it at every access to a map; it may use the system calls of
//! [`crate::sandbox::system_calls`] alone, and open files of its bundle only. What needs more is done by
//! [`crate::roles`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use caps::{CapSet, Capability};
use nestrace_output::bundle_dir::BundleDir;
use nestrace_output::held_dir::HeldDir;
use nestrace_probes::bpf_call::may_use_maps;
use nix::sys::stat::fstat;
use nix::unistd::Uid;

use super::{Options, RecordError, Recorder};
use crate::agent::Place;
use crate::agent_address::Address;
use crate::image_maps::ImageMaps;
use crate::roles::{
    asker::Asker, keeper::Keeper, launcher::Launcher, reader::Reader, watcher::Watcher,
};
use crate::sandbox::system_calls::Role;
use crate::sandbox::{Sandbox, User};

/// Read by aya whenever it looks at a map with a value for each processor.
const READABLE: &[&str] = &["/sys/devices/system/cpu/possible"];

/// Processes that have been started and wait for what they are to do.
pub(super) struct Helpers {
    asker: Asker,
    keeper: Keeper,
    launcher: Launcher,
    reader: Reader,
    watcher: Watcher,
}

/// The same at work, and what the recorder gives up.
pub(super) struct Begun {
    pub asker: Asker,
    pub keeper: Arc<Keeper>,
    pub launcher: Arc<Launcher>,
    pub reader: Reader,
    pub watcher: Watcher,
    pub sandbox: Sandbox,
    /// Whether there are images whose tables the reader reads.
    pub has_images: bool,
}

fn failed(name: &'static str) -> impl Fn(io::Error) -> RecordError {
    move |source| RecordError::Helper { name, source }
}

impl Helpers {
    pub(super) fn start(options: &Options) -> Result<Self, RecordError> {
        let guests = &options.topology.guests;
        Ok(Self {
            asker: Asker::start(guests).map_err(failed("the asker"))?,
            launcher: Launcher::start(&options.command).map_err(failed("the launcher"))?,
            keeper: Keeper::start().map_err(failed("the keeper"))?,
            reader: Reader::start().map_err(failed("the reader"))?,
            watcher: Watcher::start().map_err(failed("the watcher"))?,
        })
    }

    /// Lets them begin, and the bundle be the recorder's. Why it stays root's, where it does.
    pub(super) fn begin(
        mut self,
        dirs: &mut [&mut BundleDir],
        options: &Options,
        places: &[Place],
    ) -> Result<(Begun, Option<String>), RecordError> {
        let held: Vec<Arc<HeldDir>> = dirs.iter().map(|dir| Arc::clone(dir.held())).collect();
        let (user, unlent) = recorders_user(&held)?;
        let kept: &[Capability] = match needs_bpf_capability() {
            true => &[Capability::CAP_BPF],
            false => &[],
        };
        let sandbox = Sandbox::new(Role::Recorder, user, kept)?;
        let folders: Vec<_> = held.iter().map(|dir| dir.as_fd()).collect();
        let sandbox = sandbox.with_folders(&folders, READABLE)?;
        let addresses: Vec<Address> = places.iter().map(|place| place.address.clone()).collect();
        self.keeper
            .begin(&held, user, &addresses)
            .map_err(failed("the keeper"))?;
        // Each its own: processes of one user may disturb one another.
        let of_its_own = || match Uid::effective().is_root() {
            true => User::of_its_own().map(Some).map_err(RecordError::Secret),
            false => Ok(None),
        };
        let images = ImageMaps::open(&options.topology);
        let has_images = !images.is_empty();
        self.reader
            .begin(&options.topology, images, of_its_own()?)
            .map_err(failed("the reader"))?;
        let pids = options.topology.guests.iter().map(|guest| guest.pid);
        let mut open_files = options.open_files.iter();
        let guests = pids.map(|pid| (pid, open_files.next().and_then(Option::as_ref)));
        self.watcher
            .begin(guests, of_its_own()?)
            .map_err(failed("the watcher"))?;
        self.asker
            .begin(&options.topology.guests)
            .map_err(failed("the asker"))?;
        for dir in dirs {
            let handed = dir.hand_over().map_err(failed("the launcher"))?;
            if let Err(error) = self.launcher.begin(&handed) {
                dir.take_over(handed);
                return Err(failed("the launcher")(error));
            }
        }
        let begun = Begun {
            asker: self.asker,
            keeper: Arc::new(self.keeper),
            launcher: Arc::new(self.launcher),
            reader: self.reader,
            watcher: self.watcher,
            sandbox,
            has_images,
        };
        Ok((begun, unlent))
    }
}

/// Whether this kernel asks for `CAP_BPF` at every access to a map. Asked by a thread without capabilities.
fn needs_bpf_capability() -> bool {
    let asked =
        std::thread::spawn(|| caps::clear(None, CapSet::Effective).is_err() || !may_use_maps());
    asked.join().unwrap_or(true)
}

/// As whom the recorder goes on, `None` as it is. The bundle belongs to that user from now on; where it cannot, and why,
/// the recorder stays who it is.
fn recorders_user(dirs: &[Arc<HeldDir>]) -> Result<(Option<User>, Option<String>), RecordError> {
    if !Uid::effective().is_root() {
        return Ok((None, None));
    }
    let user = match User::of_sudo() {
        Some(user) => user,
        None => User::of_its_own().map_err(RecordError::Secret)?,
    };
    let ids = (user.uid, user.gid);
    let lent = dirs.iter().try_for_each(|dir| dir.lend_to(ids));
    // Some file systems say yes and do nothing.
    let is_users = |dir: &Arc<HeldDir>| fstat(dir).is_ok_and(|about| about.st_uid == user.uid);
    let is_lent = dirs.iter().all(is_users);
    let why = match lent {
        Ok(()) if is_lent => return Ok((Some(user), None)),
        Ok(()) => "its file system does not let the owner change".to_owned(),
        Err(error) => error.to_string(),
    };
    let message =
        format!("the bundle cannot be given to another user ({why}), so the recorder stays root's");
    Ok((None, Some(message)))
}

/// The command of a recording, which runs as whoever called the recorder.
#[derive(Clone, Debug)]
pub struct RunningCommand(Arc<Launcher>);

impl RunningCommand {
    /// Asks the command to end.
    ///
    /// # Errors
    /// What the system says, as where it is gone.
    pub fn end(&self) -> io::Result<()> {
        self.0.end_command()
    }

    /// How it ended; `None` where it still runs after `limit`.
    ///
    /// # Errors
    /// Where the process that waits for it is gone.
    pub fn status(&self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        self.0.command_status(limit)
    }
}

impl AsFd for RunningCommand {
    /// It can be read when the command has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Recorder {
    /// Starts the command of the [`Options`], if there is one; then nothing stands in the recording's way any more, and the bundle
    /// that it replaces is removed. Where that fails, a notice says so.
    ///
    /// # Errors
    /// [`RecordError::Command`]: it does not start. Then [`Self::abandon`] the recording.
    pub fn launch(&mut self) -> Result<Option<RunningCommand>, RecordError> {
        let older = self
            .launcher
            .launch()
            .map_err(|source| match &self.command {
                Some(program) => RecordError::Command {
                    program: program.clone(),
                    source,
                },
                None => failed("the launcher")(source),
            })?;
        self.is_settled = true;
        self.note_older(older);
        let runs = self.command.is_some();
        Ok(runs.then(|| RunningCommand(Arc::clone(&self.launcher))))
    }

    /// The bundle is kept: the one that it replaces is removed.
    pub(super) fn settle(&mut self) {
        if !std::mem::replace(&mut self.is_settled, true) {
            let older = self.launcher.settle();
            self.note_older(older.unwrap_or_else(|error| Some(error.to_string())));
        }
    }

    fn note_older(&mut self, why: Option<String>) {
        if let Some(why) = why {
            let message = format!("the older bundle stays beside the new one: failed to {why}");
            self.manifest.notice("older_bundle", &message);
        }
    }

    /// The bundle is closed: it belongs to whoever called the recorder.
    pub(super) fn give_bundle_back(&self, number: usize) {
        // Where the keeper is gone it stays with a user id of its own; root can read and remove it.
        let _ = self.keeper.give_back(number);
    }
}
