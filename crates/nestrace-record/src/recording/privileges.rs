//! What a running recording gives up.
//!
//! Attaching needs nearly all of root. Afterwards the recorder needs its rings and maps, whose descriptors are open, and
//! the folder of its bundle. So it becomes the user who typed `sudo`, or a user that nobody else is; it keeps no capability
//! but `CAP_BPF`, and that only on kernels that ask for it at every access to a map; it may use the system calls of
//! [`crate::sandbox::system_calls`] alone, and open files of its bundle only. What needs more is done by
//! [`crate::roles`].

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use caps::{CapSet, Capability};
use nestrace_output::bundle_dir::BundleDir;
use nestrace_probes::bpf_call::may_use_maps;
use nix::sys::stat::fstat;
use nix::unistd::Uid;

use super::image_maps::ImageMaps;
use super::{Options, RecordError, Recorder};
use crate::agent::{Address, Place, Service};
use crate::roles::{keeper::Keeper, reader::Reader, watcher::Watcher};
use crate::sandbox::system_calls::Role;
use crate::sandbox::{Sandbox, SandboxError, User};

/// Read by aya whenever it looks at a map with a value for each processor.
const READABLE: &[&str] = &["/sys/devices/system/cpu/possible"];

/// Processes that have been started and wait for what they are to do.
pub(super) struct Helpers {
    keeper: Keeper,
    reader: Reader,
    watcher: Watcher,
}

/// The same at work, and what the recorder's threads give up.
pub(super) struct Begun {
    pub keeper: Arc<Keeper>,
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
    pub(super) fn start() -> Result<Self, RecordError> {
        Ok(Self {
            keeper: Keeper::start().map_err(failed("the keeper"))?,
            reader: Reader::start().map_err(failed("the reader"))?,
            watcher: Watcher::start().map_err(failed("the watcher"))?,
        })
    }

    /// Lets them begin, and the bundle be the recorder's. Why it stays root's, where it does.
    pub(super) fn begin(
        mut self,
        dir: &BundleDir,
        options: &Options,
        places: &[Place],
    ) -> Result<(Begun, Option<String>), RecordError> {
        let (user, unlent) = recorders_user(dir)?;
        let kept: &[Capability] = match needs_bpf_capability() {
            true => &[Capability::CAP_BPF],
            false => &[],
        };
        let sandbox = Sandbox::new(Role::Recorder, user, kept)?;
        let sandbox = sandbox.with_folder(dir.held().as_fd(), READABLE)?;
        let addresses: Vec<Address> = places.iter().map(|place| place.address.clone()).collect();
        self.keeper
            .begin(dir.held(), user, &addresses)
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
        let begun = Begun {
            keeper: Arc::new(self.keeper),
            reader: self.reader,
            watcher: self.watcher,
            sandbox,
            has_images,
        };
        Ok((begun, unlent))
    }
}

impl Begun {
    /// What agents' threads get.
    pub(super) fn service(&self) -> Service {
        Service {
            sandbox: self.sandbox.clone(),
            keeper: Arc::clone(&self.keeper),
        }
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
fn recorders_user(dir: &BundleDir) -> Result<(Option<User>, Option<String>), RecordError> {
    if !Uid::effective().is_root() {
        return Ok((None, None));
    }
    let user = match User::of_sudo() {
        Some(user) => user,
        None => User::of_its_own().map_err(RecordError::Secret)?,
    };
    let lent = dir.held().lend_to((user.uid, user.gid));
    // Some file systems say yes and do nothing.
    let is_lent = fstat(dir.held()).is_ok_and(|about| about.st_uid == user.uid);
    let why = match lent {
        Ok(()) if is_lent => return Ok((Some(user), None)),
        Ok(()) => "its file system keeps the owner".to_owned(),
        Err(error) => error.to_string(),
    };
    let message =
        format!("the bundle cannot be given to another user ({why}), so the recorder stays root's");
    Ok((None, Some(message)))
}

/// Ends the command of a recording, as whoever started it.
#[derive(Clone, Debug)]
pub struct CommandEnder(Arc<Keeper>);

impl CommandEnder {
    /// Asks the command to end.
    ///
    /// # Errors
    /// What the system says, as where it is gone.
    pub fn end(&self) -> io::Result<()> {
        self.0.end_command()
    }
}

impl Recorder {
    /// Gives up privileges for good. Call it when the command, if there is one, has been started: afterwards no program
    /// can be started any more.
    ///
    /// # Errors
    /// [`SandboxError`]; the recording can go on with what it has.
    pub fn give_up(&self) -> Result<(), SandboxError> {
        self.sandbox.enter_last()
    }

    /// Who ends the command with this process id, which was started. Call it before [`Self::give_up`].
    ///
    /// # Errors
    /// What the system says.
    pub fn command_ender(&self, pid: u32) -> io::Result<CommandEnder> {
        self.keeper.take_command(pid)?;
        Ok(CommandEnder(Arc::clone(&self.keeper)))
    }

    /// The bundle is closed: it belongs to whoever called the recorder.
    pub(super) fn give_bundle_back(&self) {
        // Where the keeper is gone it stays with a user id that nobody else has; root can read and remove it.
        let _ = self.keeper.give_back();
    }
}
