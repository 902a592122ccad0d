//! What the single pass leaves, as the result.

use nestrace_abi::Source;
use nestrace_trace::manifest::GuestDisk;

use crate::Analyzer;
use crate::analyzers::amplification::Reported;
use crate::analyzers::clues::clues;
use crate::analyzers::flight;
use crate::analyzers::jobs::jobs;
use crate::analyzers::names::{
    device_name, image_file, loop_file, name_all_layers, name_layers, named_stacks, qemu_pids,
};
use crate::analyzers::recording::{self, FAR_NS, StreamCounts};
use crate::analyzers::{pressure, qemu_threads};
use crate::judge::findings;
use crate::judge::verdict;
use crate::link::chains::{DiskChains, Names, StoryChoice};
use crate::link::clock::ClockSummary;
use crate::link::guest_side::{DiskSummary, HostStretch, disk_of, told_by_requests};
use crate::model::clocks::HostNs;
use crate::model::data_path::DataPath;
use crate::result::analysis::{
    Amplification, Analysis, CallRow, CallStory, Chains, Clock, Device, GuestCalls, SCHEMA, Story,
    Trace,
};
use crate::result::side::Side;
use crate::result::unlinked::UnlinkedReason;
use crate::result::verdict::{DiskVerdict, Verdict};

impl Analyzer {
    /// The result.
    #[must_use]
    pub fn finish(mut self) -> Analysis {
        let end_ns = self.end_ns();
        self.files
            .finish(end_ns, &mut self.images, &mut self.activity);
        self.activity
            .iter_mut()
            .for_each(|activity| activity.advance(end_ns));
        self.block.finish();
        self.host_ended();
        let clocks = self.finish_sessions();
        let chains = self.chains(&clocks);
        let devices = self.devices(&clocks);
        // Calls in flight end with it, which the clues count.
        let (calls, guest_calls) = self.calls();
        let clues = clues(&mut self, &clocks, end_ns);
        let verdict = self.verdict(&devices, &chains);
        let guest = self.options.guest.clone();
        let of_guest = |name: &str| guest.as_ref().is_none_or(|guest| guest == name);
        let probes = &self.manifest.probes;
        let probed = |name: &str| {
            probes.iter().any(|probe| {
                probe.source == Source::Qemu.name() && probe.guest.as_deref() == Some(name)
            })
        };
        let mut qemu = self.qemu.finish(&self.manifest.topology.guests, probed);
        qemu.retain(|disk| of_guest(&disk.guest));
        let start_ns = self.start_ns();
        for disk in &mut qemu {
            disk.series = std::mem::take(&mut disk.series).after(start_ns);
        }
        let files_recorded = self.files.recorded
            || probes
                .iter()
                .any(|probe| probe.source == Source::File.name());
        let mut images = self.images.finish(self.bios_recorded, files_recorded);
        images.retain(|image| of_guest(&image.guest));
        let amplification = self.amplification(
            &clocks,
            &Reported {
                qemu: &qemu,
                images: &images,
                chains: &chains,
            },
        );
        let jobs = jobs(&self);
        let mut trace = self.trace();
        trace.notices.extend(self.told_by_requests(&clocks));
        trace.notices.extend(self.data_paths().unseen_disks());
        let call_stories = self.call_stories();
        let stories = self.stories();
        let guests = self.manifest.topology.guests.iter().zip(0u32..);
        let qemu_threads = guests
            .filter(|(guest, _)| self.options.takes_guest(&guest.name))
            .filter_map(|(guest, index)| {
                qemu_threads::of_guest(guest, index, &self.cpu.borrow(), &self.threads)
            })
            .collect();
        let mut analysis = Analysis {
            schema: SCHEMA,
            trace,
            clocks: self.clocks(clocks),
            devices,
            qemu,
            jobs,
            images,
            chains,
            stacks: named_stacks(&self.manifest.topology, self.host.as_ref()),
            calls,
            guest_calls,
            amplification,
            qemu_threads,
            pressure: pressure::of(&self.manifest.topology, |guest| {
                self.options.takes_guest(guest)
            }),
            findings: Vec::new(),
            findings_unjudged: Vec::new(),
            verdict,
            flight: flight::moment(&self.manifest, start_ns),
            stories,
            call_stories,
        };
        let takes_guest = |guest: &str| self.options.takes_guest(guest);
        findings::judge(&mut analysis, &self.manifest, &clues, takes_guest);
        analysis
    }

    fn devices(&mut self, clocks: &[ClockSummary]) -> Vec<Device> {
        let (start_ns, end_ns, duration_ns) = (self.start_ns(), self.end_ns(), self.duration_ns());
        let after_start = |ns: u64| HostNs(start_ns.saturating_add(ns));
        let selected = HostStretch {
            from_ns: self.options.from_ns.map(after_start),
            to_ns: self.options.to_ns.map(after_start),
        };
        let topology = &self.manifest.topology;
        let guest_pids = qemu_pids(topology);
        let device_name = |dev: u32| device_name(topology, dev);
        let mut devices = Vec::new();
        let spans = self.block.gathered.spans.as_ref();
        for meter in self
            .block
            .gathered
            .devices
            .iter_mut()
            .filter(|meter| meter.has_io())
        {
            let mut device = meter.finish(topology, end_ns, duration_ns);
            device.stripes = spans.and_then(|spans| spans.stripes_of(meter.dev));
            if !meter.light {
                device.users = Some(meter.users.finish(
                    &|image| self.images.names_of(image),
                    &guest_pids,
                    &device_name,
                ));
            }
            devices.push(device);
        }
        for (session, summary) in self.sessions.iter_mut().zip(clocks) {
            devices.extend(session.devices(HostNs(start_ns), selected, &summary.clock.stretches));
        }
        devices.retain(|device| {
            let guest = device.guest.as_ref();
            guest.is_none_or(|guest| self.options.takes_guest(guest))
        });
        devices.retain(|device| {
            self.options
                .device
                .as_ref()
                .is_none_or(|name| *name == device.name || *name == device.dev)
        });
        devices.sort_by(|a, b| {
            b.bytes
                .total()
                .cmp(&a.bytes.total())
                .then(a.name.cmp(&b.name))
        });
        devices
    }

    fn verdict(&self, devices: &[Device], chains: &[Chains]) -> Verdict {
        let known = self.images.disks.iter().enumerate();
        let disks: Vec<_> = known
            .filter(|(_, disk)| self.options.takes_guest(&disk.guest_name))
            .filter_map(|(number, disk)| {
                // Without file I/O nothing tells QEMU's time from the host's.
                let path = self.data_paths().of(number as u32);
                if path.file_io.is_some() {
                    return None;
                }
                let followed = chains
                    .iter()
                    .find(|chains| chains.guest == disk.guest_name && chains.disk == disk.name);
                let estimate = self.estimate(number, path);
                match followed {
                    Some(chains) => verdict::from_chains(chains, estimate),
                    None => estimate,
                }
            })
            .collect();
        Verdict {
            method: verdict::method(&disks),
            disks,
            devices: devices
                .iter()
                .filter(|device| device.side == Side::Host)
                .filter_map(verdict::device)
                .collect(),
        }
    }

    /// Where a disk's requests passed their time, from what overlapped.
    fn estimate(&self, number: usize, path: DataPath) -> Option<DiskVerdict> {
        if path.shared {
            return None;
        }
        let overlap = self.qemu.overlap.get(number)?;
        let activity = self.activity.get(number)?;
        let bios = path.host_bio.is_none();
        verdict::disk(&self.images, number, overlap, activity, bios)
    }

    /// Settles what the guests' sessions still hold.
    fn finish_sessions(&mut self) -> Vec<ClockSummary> {
        let mut clocks = Vec::new();
        for side in 0..self.sessions.len() {
            let finished = self.sessions[side].finish();
            self.pass_on(side);
            clocks.push(finished.clock);
            finished
                .chains
                .into_iter()
                .for_each(|chain| self.count_chain(side, chain));
        }
        clocks
    }

    /// `calls[]` and `guest_calls[]`.
    fn calls(&mut self) -> (Option<Vec<CallRow>>, Vec<GuestCalls>) {
        let (mut rows, mut guests) = (Vec::new(), Vec::new());
        for session in &mut self.sessions {
            if self.options.takes_guest(&session.side.guest) {
                let (totals, mut more) = session.calls();
                let topology = &self.manifest.topology;
                let segments = more.iter_mut().map(|row| &mut row.segments);
                segments.for_each(|segments| name_layers(topology, segments));
                guests.push(totals);
                rows.extend(more);
            }
        }
        let known = guests.iter().any(|guest| guest.why_none.is_none());
        (known.then_some(rows), guests)
    }

    fn clocks(&self, clocks: Vec<ClockSummary>) -> Vec<Clock> {
        let mut clocks: Vec<Clock> = clocks.into_iter().map(|summary| summary.clock).collect();
        clocks.retain(|clock| self.options.takes_guest(&clock.guest));
        clocks
    }

    /// `chains[]`, a disk an entry: several sessions of a guest are one.
    fn chains(&self, clocks: &[ClockSummary]) -> Vec<Chains> {
        let mut all = Vec::new();
        for number in 0..self.images.disks.len() {
            let disk = u32::try_from(number).unwrap_or(u32::MAX);
            all.extend(self.chains_of(disk, clocks));
        }
        all.extend(self.undecided(clocks));
        all
    }

    /// Which devices serial number, bus and size did not tell, and what did.
    fn told_by_requests(&self, clocks: &[ClockSummary]) -> Vec<String> {
        let mut all = Vec::new();
        for (session, clock) in self.sessions.iter().zip(clocks) {
            let guests = &self.manifest.topology.guests;
            let guest = guests.iter().find(|guest| guest.name == session.side.guest);
            for (device, about) in session.side.disks.iter().enumerate() {
                let told = told_by_requests(clock, device);
                let busy = session.chains_of(device).filter(|of| of.guest_bios > 0);
                let Some(((disk, why), guest)) = told.zip(guest).filter(|_| busy.is_some()) else {
                    continue;
                };
                if let Some(disk) = guest.disks.get(disk as usize) {
                    all.push(format!(
                        "{} inside {} is {}: bus and size fit several disks, and {why}",
                        about.name, guest.name, disk.name
                    ));
                }
            }
        }
        all
    }

    /// Devices without a known disk, at times or always: their bios are counted all the same.
    fn undecided(&self, clocks: &[ClockSummary]) -> Vec<Chains> {
        let mut all = Vec::new();
        for (side, (session, clock)) in self.sessions.iter().zip(clocks).enumerate() {
            for device in 0..session.disks.len() {
                let why = session
                    .why_no_disk(clock, device)
                    .filter(|_| self.is_selected(side, device as u32, None));
                if why.is_none() {
                    continue;
                }
                let Some(summary) = session
                    .chains_of(device)
                    .filter(|summary| summary.guest_bios > 0)
                else {
                    continue;
                };
                all.push(Chains {
                    guest: session.side.guest.clone(),
                    why_no_disk: why,
                    guest_device: session
                        .about(device)
                        .map(|it| it.name.clone())
                        .unwrap_or_default(),
                    guest_requests: summary.guest_requests,
                    ..summary.chains.finish(summary.guest_bios, summary.open)
                });
            }
        }
        all
    }

    fn chains_of(&self, number: u32, clocks: &[ClockSummary]) -> Option<Chains> {
        let disk = self.images.disks.get(number as usize)?;
        let (mut guest_bios, mut guest_requests) = (0, 0);
        let mut open = UnlinkedReason::AfterEnd;
        let mut guest_device = None;
        let mut sum = DiskChains::default();
        for (about, summary) in self.inside_guest(number, clocks) {
            guest_bios += summary.guest_bios;
            guest_requests += summary.guest_requests;
            open = summary.open;
            sum.merge(summary.chains);
            guest_device = Some(about.name.clone());
        }
        let host = self.host.as_ref().map(|host| host.finish(number));
        let host = host.unwrap_or_default();
        let mut chains = sum.finish(guest_bios, open);
        let (topology, by_op) = (&self.manifest.topology, &mut chains.by_op);
        name_all_layers(topology, &mut chains.segments, by_op);
        let qemu = (!host.qemu_seen).then_some("qemu");
        let beneath = self.data_paths().of(number).folded();
        let folded = qemu.into_iter().chain(beneath).map(str::to_owned).collect();
        Some(Chains {
            folded,
            file_ios: host.file_ios,
            file_ios_unlinked: host.unlinked,
            deferred: host.deferred,
            guest: disk.guest_name.clone(),
            disk: disk.name.clone(),
            guest_device: guest_device?,
            guest_requests,
            series: chains.series.after(self.start_ns()),
            ..chains
        })
    }

    /// What each session of its guest says of a disk, by whatever name it has there.
    fn inside_guest<'a>(
        &'a self,
        number: u32,
        clocks: &'a [ClockSummary],
    ) -> impl Iterator<Item = (&'a GuestDisk, DiskSummary<'a>)> {
        let disk = self.images.disks.get(number as usize);
        let sessions = self.sessions.iter().zip(clocks).enumerate();
        sessions.flat_map(move |(side, (session, clock))| {
            let devices = session.side.disks.iter().enumerate();
            devices.filter_map(move |(device, about)| {
                let disk = disk.filter(|disk| disk.guest_name == session.side.guest)?;
                let is_disk = disk_of(clock, device) == Some(disk.disk)
                    && self.is_selected(side, device as u32, Some(number));
                let summary = session.chains_of(device).filter(|_| is_disk)?;
                Some((about, summary))
            })
        })
    }

    /// `amplification[]`: one entry for each disk whose guest was recorded too.
    fn amplification(&self, clocks: &[ClockSummary], of: &Reported<'_>) -> Vec<Amplification> {
        let inside_guest = |number: u32| {
            let summaries = self.inside_guest(number, clocks);
            summaries.map(|(_, summary)| summary).collect()
        };
        let counts = self.layer_counts();
        let numbers = (0u32..).take(self.images.disks.len());
        numbers
            .filter_map(|number| {
                let totals = counts.totals(number);
                Some(Amplification {
                    series: self.layers.series(number as usize, self.end_ns(), totals),
                    ..counts.entry(number, inside_guest(number), of)?
                })
            })
            .collect()
    }

    /// Gives the calls that are ready, or with `end` all that are left, to the one who takes them one by one.
    pub(crate) fn report_calls(&mut self, side: usize, end: bool) {
        if self.call_listener.0.is_none() {
            return;
        }
        while let Some(session) = self.sessions.get_mut(side)
            && let Some(call) = session.next_call(end)
            && let Some(mut listener) = self.call_listener.0.take()
        {
            if self.options.takes_guest(&self.sessions[side].side.guest) {
                self.with_names(|names| {
                    listener(self.sessions[side].call_story(side, &call, names));
                });
            }
            self.call_listener.0 = Some(listener);
        }
    }

    fn call_stories(&mut self) -> Vec<CallStory> {
        let mut all = Vec::new();
        for side in 0..self.sessions.len() {
            self.report_calls(side, true);
            let Some(session) = self.sessions.get_mut(side) else {
                continue;
            };
            let kept = session.calls.take_kept();
            if !self.options.takes_guest(&self.sessions[side].side.guest) {
                continue;
            }
            self.with_names(|names| {
                let session = &self.sessions[side];
                all.extend(
                    kept.iter()
                        .map(|call| session.call_story(side, call, names)),
                );
            });
        }
        all.sort_by_key(|story| std::cmp::Reverse(story.latency_ns));
        if let Some(StoryChoice::Slowest(most)) = self.options.call_story {
            all.truncate(most);
        }
        all
    }

    fn stories(&mut self) -> Vec<Story> {
        let stories = std::mem::take(&mut self.stories);
        self.with_names(|names| stories.finish(names))
    }

    /// Names of the places of an I/O trace.
    pub(crate) fn with_names<T>(&self, told: impl FnOnce(&Names<'_>) -> T) -> T {
        let topology = &self.manifest.topology;
        let session = |session: usize| self.sessions.get(session);
        told(&Names {
            images: &self.images,
            file: &|number| image_file(topology, number),
            host_device: &|dev| device_name(topology, dev),
            loop_file: &|dev| loop_file(topology, dev),
            guest_device: &|side, device| {
                session(side)
                    .and_then(|session| session.about(device as usize))
                    .map(|disk| disk.name.clone())
                    .unwrap_or_default()
            },
            guest: &|side| {
                session(side)
                    .map(|session| session.side.guest.clone())
                    .unwrap_or_default()
            },
            start_ns: HostNs(self.start_ns()),
        })
    }

    /// The start on the clock of the events.
    pub(crate) fn start_ns(&self) -> u64 {
        let start_ns = self.manifest.start_mono_ns;
        match self.first_ns {
            // No recorder has events from before its start but those of a moment: the manifest is another's.
            Some(first_ns) if start_ns == 0 || start_ns > first_ns.saturating_add(FAR_NS) => {
                first_ns
            }
            _ => start_ns,
        }
    }

    fn trace(&self) -> Trace {
        let mut streams = vec![StreamCounts {
            guest: None,
            file: String::new(),
            events: self.events,
            unknown_events: self.unknown_events,
            implausible: self.implausible,
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            losses: self.losses,
        }];
        streams.extend(self.sessions.iter().map(StreamCounts::of_session));
        let mut trace = recording::trace(&self.manifest, &streams);
        trace.path.clone_from(&self.options.path);
        trace.duration_ns = self.duration_ns();
        trace.is_stretch = self.options.is_stretch();
        trace.truncated |= self.options.truncated;
        self.unreadable
            .add_to(&mut trace, &self.manifest, self.block.gathered.ignored);
        trace
    }
}
