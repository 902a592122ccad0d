//! What guests' disks and the host's devices do now: sums that the probes keep, with the names of what they are about.
//!
//! [`Live::start`] attaches the probes; [`Live::look`] notices guests and devices that come and go, and [`Live::snapshot`] reads
//! the sums. Nothing is read for each request. Bounded: guests and devices share the slots that were made at the start, and
//! what finds none is not summed and counted as lost.

mod agent;
mod changes;
mod devices;
mod guest;
mod slots;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use nestrace_abi::Source;
use nestrace_kernel::facts::KernelFacts;
use nestrace_kernel::layout::Layout;
use nestrace_kernel::plan::{Detail, Wanted as PlanWanted, plan};
use nestrace_probes::globals::Globals;
use nestrace_probes::load::{Probes, Wanted};
use nestrace_probes::{ProbeError, kernel_facts};
use nestrace_trace::manifest::{Device, Guest, Image, Refused};

use crate::guest::program::ParsedProgram;
use crate::guest::select::pid_of;
use crate::guest::{DiscoverError, Discovery, Selection};
use crate::roles::finder::discover_apart;
use agent::Neighbours;
use changes::Changes;
use guest::LiveGuest;
use slots::Slots;

/// How often processes and devices are looked at.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// The machine is looked at anew at most so often: that asks monitors.
const DISCOVERY_PAUSE: Duration = Duration::from_secs(2);
/// Guests that are followed at once.
const MAX_GUESTS: usize = 1000;
/// Room that the ordinary rings get, which carry nothing here.
const RING_BYTES: u32 = 4096;

/// What is to be shown.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which guests; one that is named may come later.
    pub guests: Selection,
    /// Devices by name or path, beside those of the guests. Without any, and without named guests: all that have requests.
    pub devices: Vec<String>,
}

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The probes could not be used.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// Guests could not be looked for.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// There is no such device.
    #[error("find block device {0}")]
    UnknownDevice(String),
    /// The thread that looks for guests could not be started.
    #[error("start the thread that looks for guests")]
    Thread(#[source] std::io::Error),
}

/// A device that is summed.
struct LiveDevice {
    dev: u32,
    slot: u32,
}

/// Running sums.
pub struct Live {
    options: Options,
    facts: KernelFacts,
    probes: Probes,
    slots: Slots,
    guests: Vec<LiveGuest>,
    n_guests_ever: u32,
    devices: BTreeMap<String, LiveDevice>,
    /// As they were found last.
    topology: Vec<Device>,
    changes: Changes,
    looker: Looker,
    neighbours: Arc<Neighbours>,
    /// What guests that are gone could not sum.
    lost_of_gone: u64,
    next_look: Instant,
    next_discovery: Instant,
    is_stale: bool,
    notes: Vec<String>,
}

impl Live {
    /// Finds what is there, attaches the probes, and begins to sum.
    ///
    /// # Errors
    /// [`LiveError`].
    pub fn start(options: Options) -> Result<Self, LiveError> {
        let (facts, layout) = kernel_facts::gather();
        check(&facts)?;
        let options = Options {
            devices: names_of(&options.devices)?,
            ..options
        };
        let found = discover_apart(&Selection::All, true)?;
        let n_disks = found.topology.guests.iter().map(|guest| guest.disks.len());
        let n_slots = Slots::needed(n_disks.sum(), devices::all().len());
        let probes = attached(&facts, &layout, n_slots)?;
        let now = Instant::now();
        let mut live = Self {
            options,
            facts,
            probes,
            slots: Slots::new(n_slots),
            guests: Vec::new(),
            n_guests_ever: 0,
            devices: BTreeMap::new(),
            topology: Vec::new(),
            changes: Changes::default(),
            looker: Looker::start().map_err(LiveError::Thread)?,
            neighbours: Arc::default(),
            lost_of_gone: 0,
            next_look: now,
            next_discovery: now + DISCOVERY_PAUSE,
            is_stale: false,
            notes: Vec::new(),
        };
        live.changes.look();
        live.take_discovery(found);
        live.follow_devices();
        live.serve_backends()?;
        live.probes.set_gate(true)?;
        Ok(live)
    }

    /// Notices what has come and gone. Call it several times a second; it does its work when it is time.
    ///
    /// # Errors
    /// The maps'.
    pub fn look(&mut self) -> Result<(), LiveError> {
        self.serve_backends()?;
        if let Some(found) = self.looker.found() {
            match found {
                Ok(found) => self.take_discovery(found),
                Err(error) => {
                    self.is_stale = true;
                    self.notes
                        .push(format!("looking for guests failed: {error}"));
                }
            }
        }
        let now = Instant::now();
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + LOOK_AROUND;
        self.is_stale |= self.changes.look();
        let (gone, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.guests)
            .into_iter()
            .partition(|guest| !guest.is_alive());
        self.guests = left;
        for guest in gone {
            self.lost_of_gone = self.lost_of_gone.saturating_add(guest.guest_layer().lost);
            guest.leave(&mut self.probes, &mut self.slots);
        }
        if self.is_stale && now >= self.next_discovery && self.looker.ask() {
            self.is_stale = false;
            self.next_discovery = now + DISCOVERY_PAUSE;
        }
        self.follow_devices();
        Ok(())
    }

    /// What could not be done since the last call, for a person.
    pub fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Probes that could not be attached.
    #[must_use]
    pub fn refused(&self) -> &[Refused] {
        &self.probes.refused
    }

    /// Guests that are followed.
    #[must_use]
    pub fn n_guests(&self) -> usize {
        self.guests.len()
    }

    /// The process of the guest that snapshots name so.
    #[must_use]
    pub fn pid_of(&self, name: &str) -> Option<u32> {
        let guest = self.guests.iter().find(|guest| guest.name == name)?;
        Some(guest.guest.pid)
    }

    /// Requests that each source could not sum.
    fn lost(&self) -> BTreeMap<String, u64> {
        // A control block that could not be read is among those of the walk.
        let sources = [
            Source::Block,
            Source::File,
            Source::Qemu,
            Source::Meta,
            Source::Walk,
        ];
        sources
            .iter()
            .filter_map(|source| Some((source.name().to_owned(), self.probes.lost(*source).ok()?)))
            .collect()
    }

    /// Offers slots to the probes, and takes BlockBackends that they have met.
    fn serve_backends(&mut self) -> Result<(), LiveError> {
        let Some(sums) = self.probes.sums() else {
            return Ok(());
        };
        self.slots.offer(sums);
        for met in sums.backends() {
            let guest = self
                .guests
                .iter_mut()
                .find(|guest| guest.index == met.guest);
            match guest {
                Some(guest) => guest.meet(met),
                None => {
                    // Of a guest that has left meanwhile.
                    sums.forget_backend(&met);
                    self.slots.give_back(met.slot);
                }
            }
        }
        self.guests.iter_mut().for_each(LiveGuest::identify);
        Ok(())
    }

    fn take_discovery(&mut self, found: Discovery) {
        let Discovery {
            topology,
            start_ticks,
            programs,
            ..
        } = found;
        self.topology = topology.devices;
        let programs = programs.into_iter().chain(std::iter::repeat_with(|| None));
        for ((guest, start_ticks), parsed) in
            topology.guests.into_iter().zip(start_ticks).zip(programs)
        {
            if self.is_chosen(&guest) {
                self.take_guest(guest, start_ticks, parsed.as_ref());
            }
        }
    }

    fn is_chosen(&self, guest: &Guest) -> bool {
        let Selection::Named(names) = &self.options.guests else {
            return self.options.devices.is_empty();
        };
        names.iter().any(|name| {
            *name == guest.name
                || guest
                    .uuid
                    .as_deref()
                    .is_some_and(|uuid| uuid.eq_ignore_ascii_case(name))
                || pid_of(name) == Some(guest.pid)
        })
    }

    fn take_guest(&mut self, guest: Guest, start_ticks: u64, parsed: Option<&ParsedProgram>) {
        let pid = guest.pid;
        let known = self.guests.iter().position(|it| it.is(pid, start_ticks));
        let at = match known {
            Some(at) => at,
            None if self.guests.len() >= MAX_GUESTS => {
                self.notes.push(format!(
                    "guest {} is one too many: not followed",
                    guest.name
                ));
                return;
            }
            None => {
                let is_namesake = |other: &LiveGuest| other.name == guest.name;
                let name = match self.guests.iter().any(is_namesake) {
                    true => format!("{} (pid:{pid})", guest.name),
                    false => guest.name.clone(),
                };
                let index = self.n_guests_ever;
                self.n_guests_ever += 1;
                let adopted = LiveGuest::adopt(
                    (index, name),
                    (guest.clone(), start_ticks),
                    parsed,
                    &mut self.probes,
                    &self.facts,
                );
                if let Err(error) = self.probes.add_process(pid, index) {
                    self.notes.push(format!("guest {}: {error}", guest.name));
                    return;
                }
                self.guests.push(adopted);
                self.guests.len() - 1
            }
        };
        let devices = &self.topology;
        let device_of = |image: &Image| devices::carrying(image, devices);
        if let Some(live) = self.guests.get_mut(at) {
            live.update(guest, &device_of, &mut self.probes, &mut self.slots);
            if let Err(error) = live.ask_agent(&self.neighbours) {
                let name = &live.name;
                self.notes
                    .push(format!("guest {name}: its agent is not asked: {error}"));
            }
        }
    }

    /// Sums the devices that are there now.
    fn follow_devices(&mut self) {
        let all = devices::all();
        let is_named = matches!(self.options.guests, Selection::Named(_));
        let chosen = (is_named || !self.options.devices.is_empty()).then(|| self.chosen_devices());
        let wanted: BTreeMap<String, u32> = all
            .into_iter()
            .filter(|(name, _)| chosen.as_ref().is_none_or(|chosen| chosen.contains(name)))
            .collect();
        let is_gone =
            |name: &String, device: &mut LiveDevice| wanted.get(name) != Some(&device.dev);
        for (_, gone) in self.devices.extract_if(.., is_gone) {
            self.probes.forget_device(gone.dev);
            self.slots.give_back(gone.slot);
        }
        for (name, dev) in wanted {
            if self.devices.contains_key(&name) {
                continue;
            }
            let slot = match self.probes.sums() {
                Some(sums) => self.slots.take(sums),
                None => None,
            };
            let Some(slot) = slot else {
                self.notes
                    .push(format!("device {name}: no room for its sums"));
                continue;
            };
            match self.probes.sum_device(dev, slot) {
                Ok(()) => {
                    self.devices.insert(name, LiveDevice { dev, slot });
                }
                Err(_) => self.slots.give_back(slot),
            }
        }
    }

    fn chosen_devices(&self) -> BTreeSet<String> {
        let of_guests = self
            .guests
            .iter()
            .flat_map(|guest| &guest.guest.disks)
            .flat_map(|disk| &disk.images)
            .flat_map(|image| image.devices.clone());
        let names: Vec<String> = of_guests.chain(self.options.devices.clone()).collect();
        devices::with_those_below(&names, &self.topology)
    }
}

fn check(facts: &KernelFacts) -> Result<(), LiveError> {
    if !facts.may_trace() {
        return Err(ProbeError::NoPrivilege.into());
    }
    if !facts.btf {
        return Err(ProbeError::NoBtf.into());
    }
    if !facts.may_follow_processes() {
        return Err(ProbeError::OtherPidNamespace.into());
    }
    Ok(())
}

/// The probes, attached, with a shut gate.
fn attached(facts: &KernelFacts, layout: &Layout, n_slots: u32) -> Result<Probes, LiveError> {
    let globals = Globals::resolve(layout, false);
    let wanted = Wanted {
        ring_bytes: RING_BYTES,
        sum_slots: n_slots,
        ..Wanted::default()
    };
    let mut probes = Probes::load(&globals, &wanted)?;
    let wanted = PlanWanted {
        detail: Detail::Sums,
        processes: true,
        mounts: false,
        cpu: false,
    };
    probes.attach(&plan(facts, layout, wanted));
    if probes.attached.is_empty() {
        let reason = probes.refused.first().map(|probe| probe.reason.clone());
        return Err(ProbeError::NothingAttached(reason.unwrap_or_default()).into());
    }
    Ok(probes)
}

/// The kernel's names of devices that are named by name or path.
fn names_of(devices: &[String]) -> Result<Vec<String>, LiveError> {
    let name_of = |device: &String| {
        let unknown = || LiveError::UnknownDevice(device.clone());
        let path = Path::new("/dev").join(device);
        let path = path.canonicalize().map_err(|_| unknown())?;
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(unknown)?.to_owned();
        let is_device = Path::new("/sys/class/block").join(&name).exists();
        is_device.then_some(name).ok_or_else(unknown)
    };
    devices.iter().map(name_of).collect()
}

/// Looks for guests in a thread: a look takes a second.
struct Looker {
    orders: Sender<()>,
    results: Receiver<Result<Discovery, DiscoverError>>,
    is_looking: bool,
}

impl Looker {
    fn start() -> std::io::Result<Self> {
        let (orders, ordered) = mpsc::channel::<()>();
        let (found, results) = mpsc::channel();
        thread::Builder::new()
            .name("nestrace-looker".to_owned())
            .spawn(move || {
                for () in ordered {
                    if found.send(discover_apart(&Selection::All, true)).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Self {
            orders,
            results,
            is_looking: false,
        })
    }

    /// Begins a look, if none goes on.
    fn ask(&mut self) -> bool {
        if !self.is_looking {
            self.is_looking = self.orders.send(()).is_ok();
            return self.is_looking;
        }
        false
    }

    fn found(&mut self) -> Option<Result<Discovery, DiscoverError>> {
        let found = self.results.try_recv().ok()?;
        self.is_looking = false;
        Some(found)
    }
}
