//! One guest while it runs: its disks, what sums them, and which disk each BlockBackend belongs to.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nestrace_kernel::facts::KernelFacts;
use nestrace_kernel::plan::QEMU_SUMMED;
use nestrace_probes::load::Probes;
use nestrace_probes::sums::MetBackend;
use nestrace_trace::manifest::{Disk, Guest, Image};

use super::agent::{Agent, GuestLayer, Neighbours};
use super::slots::Slots;
use crate::agent_address::Choice;
use crate::backends::{BackendFinder, QemuMemory};
use crate::guest::program::{ParsedProgram, Program};
use crate::qemu_probes;
use crate::recording::watch::Watched;
use crate::stats_offset;

/// BlockBackends of a guest that are looked at; a QEMU has one for each disk.
const MAX_BACKENDS: usize = 1024;
/// Probes that were refused, of all guests, that are kept.
const MAX_REFUSED: usize = 256;

/// A disk.
pub(super) struct LiveDisk {
    /// As it was found last.
    pub disk: Disk,
    /// What it is called in rows: no other disk of the guest is.
    pub name: String,
    /// Its image's files that are summed.
    files: Vec<(u64, u32)>,
    /// Where they are.
    pub image_slot: Option<u32>,
    /// The host's device that carries it, where that is a single one.
    pub device: Option<String>,
}

/// A guest.
pub(super) struct LiveGuest {
    /// The number that the probes have of it; no other guest had it.
    pub index: u32,
    /// As it was found last.
    pub guest: Guest,
    /// What it is called in rows.
    pub name: String,
    start_ticks: u64,
    watched: Watched,
    finder: BackendFinder,
    /// Of the accounting in a BlockBackend; `None`: QEMU's requests are not summed.
    pub stats_offset: Option<u64>,
    /// By the disk's place in `guest.disks`.
    pub disks: Vec<LiveDisk>,
    asked: BTreeSet<u64>,
    /// Slots of BlockBackends, by the address of their accounting; the disk's name where that is known.
    pub backends: BTreeMap<u64, (MetBackend, Option<String>)>,
    /// Who sums in the guest, if it has a channel.
    agent: Option<Agent>,
}

impl LiveGuest {
    /// Begins to sum a guest.
    pub fn adopt(
        (index, name): (u32, String),
        (guest, start_ticks): (Guest, u64),
        parsed: Option<&ParsedProgram>,
        probes: &mut Probes,
        facts: &KernelFacts,
    ) -> Self {
        let pid = guest.pid;
        let stats_offset = parsed.and_then(|parsed| offset_of_stats(pid, start_ticks, parsed));
        let mut attached = false;
        if stats_offset.is_some() {
            let n_before = probes.attached.len();
            let process = (pid, start_ticks);
            let wanted = |program: &str| QEMU_SUMMED.contains(&program);
            qemu_probes::attach(probes, facts, process, parsed, &name, None, &wanted);
            let new = probes.attached.iter().skip(n_before);
            let names: BTreeSet<&str> = new.map(|probe| probe.name.as_str()).collect();
            attached = ["block_acct_start", "block_acct_done"]
                .iter()
                .all(|name| names.contains(name));
            // Nobody asks later, and guests come for weeks.
            probes.attached.truncate(n_before);
            probes.refused.truncate(MAX_REFUSED);
        }
        Self {
            index,
            name,
            watched: Watched::new(pid),
            finder: BackendFinder::start(QemuMemory::open(pid)),
            stats_offset: stats_offset.filter(|_| attached),
            start_ticks,
            guest,
            disks: Vec::new(),
            asked: BTreeSet::new(),
            backends: BTreeMap::new(),
            agent: None,
        }
    }

    /// Asks the guest's agent for sums of the disks as they are now.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn ask_agent(&mut self, neighbours: &Arc<Neighbours>) -> std::io::Result<()> {
        let address = Choice::Auto.address(&self.guest);
        let kept = self.agent.take();
        let kept = kept.filter(|agent| Some(&agent.address) == address.as_ref());
        self.agent = match (kept, address) {
            (None, Some(address)) => Some(Agent::start(address, neighbours)?),
            (kept, _) => kept,
        };
        if let Some(agent) = &self.agent {
            let disks = self.disks.iter();
            let disks = disks.map(|disk| (disk.name.clone(), disk.disk.clone()));
            agent.set_disks(disks.collect());
        }
        Ok(())
    }

    /// What its agent says of the guest's side.
    pub fn guest_layer(&self) -> GuestLayer {
        let none = || GuestLayer::missing("the guest has no channel for an agent");
        self.agent.as_ref().map_or_else(none, Agent::read)
    }

    /// Whether this is the process.
    pub fn is(&self, pid: u32, start_ticks: u64) -> bool {
        self.guest.pid == pid && self.start_ticks == start_ticks
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        self.watched.is_alive()
    }

    /// Takes the disks as they were found now.
    pub fn update(
        &mut self,
        guest: Guest,
        device_of: &dyn Fn(&Image) -> Option<String>,
        probes: &mut Probes,
        slots: &mut Slots,
    ) {
        self.guest = guest;
        // What it still answers is about the disks as they were.
        self.finder = BackendFinder::start(QemuMemory::open(self.guest.pid));
        let mut before = std::mem::take(&mut self.disks);
        let shared = shared_files(&self.guest);
        for disk in self.guest.disks.clone() {
            let known = before.iter().position(|it| it.disk.name == disk.name);
            let known = known.map(|at| before.swap_remove(at));
            let name = match &known {
                Some(known) => known.name.clone(),
                None => free_name(&disk.name, &self.disks, &before),
            };
            let mut live = LiveDisk {
                device: disk.images.first().and_then(device_of),
                name,
                files: Vec::new(),
                image_slot: None,
                disk,
            };
            let (old_files, old_slot) =
                known.map_or_else(Default::default, |known| (known.files, known.image_slot));
            live.image_slot = old_slot;
            live.sum_files(self.index, &old_files, &shared, probes, slots);
            self.disks.push(live);
        }
        for gone in before {
            self.forget_disk(&gone, probes, slots);
        }
        // Another disk may have the name that was looked for in vain.
        for (stats, (_, disk)) in &self.backends {
            if disk.is_none() {
                self.asked.remove(stats);
            }
        }
    }

    fn forget_disk(&mut self, gone: &LiveDisk, probes: &mut Probes, slots: &mut Slots) {
        let Some(sums) = probes.sums() else { return };
        for file in &gone.files {
            sums.forget_image(*file, self.index);
        }
        gone.image_slot
            .into_iter()
            .for_each(|slot| slots.give_back(slot));
        // Its BlockBackend's memory may be another's next.
        let is_its = |_: &u64, (_, disk): &mut (MetBackend, Option<String>)| {
            disk.as_ref() == Some(&gone.name)
        };
        for (stats, (met, _)) in self.backends.extract_if(.., is_its) {
            self.asked.remove(&stats);
            sums.forget_backend(&met);
            slots.give_back(met.slot);
        }
    }

    /// Gives all slots back.
    pub fn leave(mut self, probes: &mut Probes, slots: &mut Slots) {
        probes.forget_process(self.guest.pid);
        probes.detach_entries(self.guest.pid);
        for disk in std::mem::take(&mut self.disks) {
            self.forget_disk(&disk, probes, slots);
        }
        let Some(sums) = probes.sums() else { return };
        for (met, _) in self.backends.values() {
            sums.forget_backend(met);
            slots.give_back(met.slot);
        }
        sums.forget_guest(self.index);
    }

    /// Takes a BlockBackend that the probes have met.
    pub fn meet(&mut self, met: MetBackend) {
        if self.backends.len() < MAX_BACKENDS {
            self.backends.entry(met.stats).or_insert((met, None));
        }
    }

    /// Has it looked for which disk each BlockBackend belongs to, and takes what was found.
    pub fn identify(&mut self) {
        let Some(offset) = self.stats_offset else {
            return;
        };
        let unknown: Vec<u64> = self
            .backends
            .iter()
            .filter(|(stats, (_, disk))| disk.is_none() && !self.asked.contains(stats))
            .map(|(stats, _)| *stats)
            .collect();
        for stats in unknown {
            let is_first = self.asked.is_empty();
            self.asked.insert(stats);
            self.finder
                .ask(stats.wrapping_sub(offset), &self.guest, is_first);
        }
        for found in self.finder.found() {
            let disk = self.disks.get(found.disk as usize);
            let stats = found.address.wrapping_add(offset);
            if let (Some(disk), Some((_, name))) = (disk, self.backends.get_mut(&stats)) {
                *name = Some(disk.name.clone());
            }
        }
    }

    /// Slots of the BlockBackends of a disk.
    pub fn backend_slots(&self, disk: &str) -> impl Iterator<Item = u32> {
        let of_disk = move |(met, name): &(MetBackend, Option<String>)| {
            (name.as_deref() == Some(disk)).then_some(met.slot)
        };
        self.backends.values().filter_map(of_disk)
    }
}

impl LiveDisk {
    /// Sums I/O on its image's files, but for those that another disk of the guest has too.
    fn sum_files(
        &mut self,
        guest: u32,
        before: &[(u64, u32)],
        shared: &BTreeSet<(u64, u32)>,
        probes: &mut Probes,
        slots: &mut Slots,
    ) {
        let Some(sums) = probes.sums() else { return };
        let files: BTreeSet<(u64, u32)> = files_of(&self.disk)
            .filter(|file| !shared.contains(file))
            .collect();
        for gone in before.iter().filter(|file| !files.contains(file)) {
            sums.forget_image(*gone, guest);
        }
        if files.is_empty() {
            self.image_slot
                .take()
                .into_iter()
                .for_each(|slot| slots.give_back(slot));
            return;
        }
        let Some(slot) = self.image_slot.or_else(|| slots.take(sums)) else {
            return;
        };
        self.image_slot = Some(slot);
        for file in files {
            if before.contains(&file) || sums.sum_image(file, guest, slot).is_ok() {
                self.files.push(file);
            }
        }
    }
}

/// Inode and device of each file that holds a disk's data.
fn files_of(disk: &Disk) -> impl Iterator<Item = (u64, u32)> {
    let images = disk.images.iter().filter(|image| image.inode != 0);
    images.flat_map(|image| std::iter::once((image.inode, image.dev)).chain(image.opened))
}

/// Files that several disks of a guest have, as a backing file: whose I/O it is cannot be known.
fn shared_files(guest: &Guest) -> BTreeSet<(u64, u32)> {
    let mut seen = BTreeSet::new();
    let mut shared = BTreeSet::new();
    for disk in &guest.disks {
        let files: BTreeSet<_> = files_of(disk).collect();
        shared.extend(files.intersection(&seen).copied().collect::<Vec<_>>());
        seen.extend(files);
    }
    shared
}

fn free_name(name: &str, taken: &[LiveDisk], before: &[LiveDisk]) -> String {
    let is_taken = |name: &str| taken.iter().chain(before).any(|disk| disk.name == name);
    let mut free = name.to_owned();
    let mut n = 2;
    while is_taken(&free) {
        free = format!("{name} ({n})");
        n += 1;
    }
    free
}

fn offset_of_stats(pid: u32, start_ticks: u64, parsed: &ParsedProgram) -> Option<u64> {
    let program = Program::open(pid, start_ticks).ok()?;
    let located = parsed.located(&program).ok()?;
    let offset = located.symbols.get(stats_offset::FUNCTION)?;
    let mut code = [0; stats_offset::CODE_BYTES];
    program.file().read_exact_at(&mut code, *offset).ok()?;
    stats_offset::parse(&code)
}
