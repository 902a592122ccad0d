//! The single pass: each event goes to the layer that it is about.

use nestrace_abi::{Kind, Source};
use nestrace_trace::Event;
use nestrace_trace::manifest::{Manifest, State};

use crate::analysis::{Analysis, Device, RefusedProbe, SCHEMA, SourceLoss, Trace, TraceSource};
use crate::block::{Above, BlockLayer};
use crate::file_io::FileIo;
use crate::image::Images;
use crate::overlap::Activity;
use crate::qemu::{Disks, Qemu};
use crate::threads::Threads;
use crate::unlinked::Reasons;
use crate::verdict::{self, Verdict};

/// What the caller knows beside the events.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How the input is called in the result.
    pub path: String,
    /// The reader could not read the stream to its end.
    pub truncated: bool,
    /// Keep only this guest's disks in the result.
    pub guest: Option<String>,
    /// Keep only this device in the result.
    pub device: Option<String>,
    /// Ignore events before this time after the start, nanoseconds.
    pub from_ns: Option<u64>,
    /// Ignore events after this time after the start, nanoseconds.
    pub to_ns: Option<u64>,
}

/// Takes the host's events in the order of time and keeps only what is in flight.
///
/// ```
/// use nestrace_analyzer::{Analyzer, Options};
/// use nestrace_trace::Manifest;
/// let mut analyzer = Analyzer::new(&Manifest::default(), Options::default());
/// // for event in bundle.events() { analyzer.push(&event); }
/// assert!(analyzer.finish().devices.is_empty());
/// ```
#[derive(Debug)]
pub struct Analyzer {
    manifest: Manifest,
    options: Options,
    block: BlockLayer,
    files: FileIo,
    qemu: Qemu,
    images: Images,
    activity: Vec<Activity>,
    threads: Threads,
    reasons: Reasons,
    losses: [u64; Source::ALL.len()],
    events: u64,
    unknown_events: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    bios_recorded: bool,
}

impl Analyzer {
    /// Begins with what the manifest says of guests, disks, images and devices.
    #[must_use]
    pub fn new(manifest: &Manifest, options: Options) -> Self {
        let images = Images::new(&manifest.topology);
        let n_disks = images.disks.len();
        let lost = |source: &str| {
            manifest
                .losses
                .iter()
                .any(|loss| loss.source == source && loss.events > 0)
        };
        Self {
            qemu: Qemu::new(&manifest.topology.guests, n_disks),
            activity: vec![Activity::default(); n_disks],
            reasons: Reasons {
                live_ns: manifest.live_mono_ns.max(manifest.start_mono_ns),
                lost_so_far: false,
                lost_sometime: lost(Source::Block.name()) || lost(Source::Walk.name()),
            },
            images,
            manifest: manifest.clone(),
            options,
            block: BlockLayer::default(),
            files: FileIo::default(),
            threads: Threads::default(),
            losses: [0; Source::ALL.len()],
            events: 0,
            unknown_events: 0,
            first_ns: None,
            last_ns: 0,
            bios_recorded: false,
        }
    }

    /// Takes all of `events` and returns the result.
    #[must_use]
    pub fn analyze(
        manifest: &Manifest,
        options: Options,
        events: impl IntoIterator<Item = Event>,
    ) -> Analysis {
        let mut analyzer = Self::new(manifest, options);
        events.into_iter().for_each(|event| analyzer.push(&event));
        analyzer.finish()
    }

    /// Takes one event of the host's stream; events come in the order of time.
    pub fn push(&mut self, event: &Event) {
        self.events += 1;
        let Some(kind) = event.kind() else {
            self.unknown_events += 1;
            return;
        };
        match kind {
            Kind::Thread => return self.threads.name(event),
            Kind::Loss => return self.loss(event),
            _ => {}
        }
        if self.outside(event.ts_ns) {
            return;
        }
        if self.first_ns.is_none() {
            self.first_ns = Some(event.ts_ns);
            self.reasons.live_ns = self.reasons.live_ns.max(event.ts_ns);
        }
        self.last_ns = self.last_ns.max(event.ts_ns);
        match kind.source() {
            Source::Block => {
                self.bios_recorded |= kind == Kind::Queue;
                let mut above = Above {
                    images: &mut self.images,
                    activity: &mut self.activity,
                    files: &mut self.files,
                    threads: &self.threads,
                    reasons: self.reasons,
                };
                self.block.push(kind, event, &mut above);
            }
            Source::File => self
                .files
                .push(kind, event, &mut self.images, &mut self.activity),
            Source::Qemu => {
                let mut disks = Disks {
                    images: &self.images,
                    activity: &mut self.activity,
                };
                self.qemu.push(kind, event, &mut disks);
            }
            // Read-ahead, page cache, journal and write-back explain chains and findings.
            Source::HostFs | Source::Meta | Source::Walk => {}
        }
    }

    fn outside(&self, ts_ns: u64) -> bool {
        let start = self.start_ns();
        self.options
            .from_ns
            .is_some_and(|from| ts_ns < start.saturating_add(from))
            || self
                .options
                .to_ns
                .is_some_and(|to| ts_ns > start.saturating_add(to))
    }

    fn loss(&mut self, event: &Event) {
        let Some(total) = self.losses.get_mut(usize::from(event.sub)) else {
            return;
        };
        let more = event.object > *total;
        *total = (*total).max(event.object);
        if more && [Source::Block as u8, Source::Walk as u8].contains(&event.sub) {
            self.reasons.lost_so_far = true;
            self.block.events_were_lost();
        }
    }

    /// The start on the clock of the events.
    fn start_ns(&self) -> u64 {
        if self.manifest.start_mono_ns > 0 {
            self.manifest.start_mono_ns
        } else {
            self.first_ns.unwrap_or(0)
        }
    }

    fn end_ns(&self) -> u64 {
        let end = if self.manifest.end_mono_ns > 0 {
            self.manifest.end_mono_ns
        } else {
            self.last_ns
        };
        let end = end.max(self.last_ns).max(self.start_ns());
        self.options
            .to_ns
            .map_or(end, |to| end.min(self.start_ns().saturating_add(to)))
    }

    fn duration_ns(&self) -> u64 {
        (self.end_ns() - self.start_ns()).saturating_sub(self.options.from_ns.unwrap_or(0))
    }

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
        let devices = self.devices();
        let verdict = self.verdict(&devices);
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
        let files_recorded = self.files.recorded
            || probes
                .iter()
                .any(|probe| probe.source == Source::File.name());
        let mut images = self.images.finish(self.bios_recorded, files_recorded);
        images.retain(|image| of_guest(&image.guest));
        Analysis {
            schema: SCHEMA,
            trace: self.trace(),
            clocks: [],
            devices,
            qemu,
            images,
            chains: [],
            amplification: [],
            findings: [],
            verdict,
        }
    }

    fn devices(&mut self) -> Vec<Device> {
        let (end_ns, duration_ns) = (self.end_ns(), self.duration_ns());
        let topology = &self.manifest.topology;
        let guest_pids: Vec<(u32, String)> = topology
            .guests
            .iter()
            .map(|guest| (guest.pid, guest.name.clone()))
            .collect();
        let device_name = |dev: u32| {
            let known = topology.devices.iter().find(|device| device.dev == dev);
            known.map_or_else(
                || crate::device::major_minor(dev),
                |device| device.name.clone(),
            )
        };
        let mut devices = Vec::new();
        for meter in self.block.devices.iter_mut().filter(|meter| meter.has_io()) {
            let mut device = meter.finish(topology, end_ns, duration_ns);
            if !meter.light {
                device.users = Some(meter.users.finish(&self.images, &guest_pids, &device_name));
            }
            devices.push(device);
        }
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

    fn verdict(&self, devices: &[Device]) -> Verdict {
        let of_disk = |(number, overlap)| {
            let activity = self.activity.get(number)?;
            if !verdict::has_image(&self.images.images, number) || !self.files.recorded {
                return None;
            }
            verdict::disk(&self.images, number, overlap, activity, self.bios_recorded)
        };
        let mut disks: Vec<_> = self
            .qemu
            .overlap
            .iter()
            .enumerate()
            .filter_map(of_disk)
            .collect();
        disks.retain(|disk| {
            self.options
                .guest
                .as_ref()
                .is_none_or(|guest| *guest == disk.guest)
        });
        Verdict {
            method: "overlap",
            disks,
            devices: devices.iter().filter_map(verdict::device).collect(),
        }
    }

    fn trace(&self) -> Trace {
        let losses = self.source_losses();
        let lost = |guest: Option<&str>| -> u64 {
            let counted = losses
                .iter()
                .filter(|loss| loss.source != Source::Walk.name());
            counted
                .filter(|loss| loss.guest.as_deref() == guest)
                .map(|loss| loss.events)
                .sum()
        };
        let manifest = &self.manifest;
        let refused = |probe: &nestrace_trace::manifest::Refused| RefusedProbe {
            name: probe.name.clone(),
            source: probe.source.clone(),
            reason: probe.reason.clone(),
            cost: probe.cost.clone(),
            guest: probe.guest.clone(),
        };
        let mut sources: Vec<TraceSource> = manifest
            .streams
            .iter()
            .map(|stream| TraceSource {
                name: stream.file.clone(),
                side: stream.side.clone(),
                guest: stream.guest.clone(),
                backend: stream.backend.clone(),
                kernel: stream.kernel.clone(),
                events: if stream.side == "host" {
                    self.events
                } else {
                    0
                },
                lost: lost(stream.guest.as_deref()),
            })
            .collect();
        if sources.is_empty() {
            sources.push(TraceSource {
                name: String::from("host"),
                side: String::from("host"),
                backend: String::from("ebpf"),
                kernel: manifest.host.kernel.clone(),
                events: self.events,
                lost: lost(None),
                ..TraceSource::default()
            });
        }
        Trace {
            path: self.options.path.clone(),
            start_unix_ns: manifest.start_unix_ns,
            duration_ns: self.duration_ns(),
            events: self.events,
            lost: losses
                .iter()
                .filter(|loss| loss.source != Source::Walk.name())
                .map(|loss| loss.events)
                .sum(),
            truncated: self.options.truncated || manifest.state == State::Recording,
            sources,
            detail: manifest.detail.clone(),
            end_reason: manifest.end_reason.clone(),
            refused: manifest.refused.iter().map(refused).collect(),
            notices: manifest
                .notices
                .iter()
                .map(|notice| notice.message.clone())
                .collect(),
            unknown_events: self.unknown_events,
            losses,
        }
    }

    /// Losses of the manifest; after a crash those of the stream, which are older.
    fn source_losses(&self) -> Vec<SourceLoss> {
        let mut losses: Vec<SourceLoss> = self
            .manifest
            .losses
            .iter()
            .map(|loss| SourceLoss {
                source: loss.source.clone(),
                guest: loss.guest.clone(),
                events: loss.events,
            })
            .collect();
        for (source, total) in Source::ALL.iter().zip(self.losses) {
            match losses
                .iter_mut()
                .find(|loss| loss.source == source.name() && loss.guest.is_none())
            {
                Some(loss) => loss.events = loss.events.max(total),
                None => losses.push(SourceLoss {
                    source: source.name().to_owned(),
                    guest: None,
                    events: total,
                }),
            }
        }
        losses.retain(|loss| loss.events > 0);
        losses
    }
}
