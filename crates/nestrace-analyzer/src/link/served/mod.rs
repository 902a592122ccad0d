//! The host's half of a chain: QEMU's requests with the file I/Os, host bios and host requests
//! below them.
//!
//! [`calls`] ties file I/Os to QEMU's calls, [`host_bios`] host bios to file I/Os, [`stacked`] what
//! lies below a host request; [`jobs`] finds what QEMU's backup copies; [`clusters`] knows where an image keeps what, [`deferred`] counts what
//! nothing waited for, [`tree`] builds the intervals. Nothing here looks at an event's time to find its
//! partner, except where something is work for several: then it says so. All times are the host's.

mod calls;
mod clusters;
mod copying;
mod deferred;
mod host_bios;
mod host_bytes;
mod jobs;
mod read_ahead;
mod stack_meter;
mod stacked;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;

use nestrace_abi::{Kind, Source, flags, flags::op};
use nestrace_trace::Event;
use nestrace_trace::image_map::ImageMap;
use nestrace_trace::manifest::{Disk, Manifest};

use crate::follow::block::{BlockLayer, BlockSpans};
use crate::follow::file_io::{FileIo, FileSpans};
use crate::follow::image::Images;
use crate::follow::qemu::{self, Ended, Qemu, Step};
use crate::measure::clues::{HostClues, ImageOf};
use crate::model::actor::{Actor, Actors};
use crate::model::file_io_span::{FileEnd, FileIoSpan};
use crate::model::ids::{GuestDiskId, GuestId, ImageId};
use crate::model::owner::Owner;
use crate::model::span::{Below, FileIoFacts, Layer, Served, Span, What};
use crate::result::analysis::Deferred;
use crate::result::unlinked::UnlinkedReason;

use calls::{Calls, Fate, How};
use clusters::Clusters;
use deferred::DeferredWork;
use host_bios::HostBios;
pub(crate) use host_bytes::DiskOnHost;
use host_bytes::{HostBytes, InImage};
pub(crate) use jobs::{JobHalf, disk_of_job};
use jobs::{Jobs, Written};
use stack_meter::StackMeters;
use stacked::Stacked;

/// Ended requests of host bios that have not ended: more are of bios whose end was lost, in a damaged
/// recording. They are forgotten, and the bio is marked.
const MAX_REQUESTS: usize = 1 << 16;
/// Block events between two looks at that.
const BOUND_EVENTS: u64 = 1 << 14;

/// The layers of the host, after they have seen an event.
pub(crate) struct HostLayers<'a> {
    pub block: &'a mut BlockLayer,
    pub files: &'a mut FileIo,
    pub qemu: &'a mut Qemu,
    pub images: &'a Images,
}

/// What the host's half says of one disk beside the chains.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostHalf {
    /// Host I/O that nothing waited for.
    pub deferred: Deferred,
    /// Events of the disk's QEMU were seen.
    pub qemu_seen: bool,
    /// File I/Os on the disk's images.
    pub file_ios: u64,
    /// File I/Os that no request of QEMU could be found for, by reason.
    pub unlinked: BTreeMap<UnlinkedReason, u64>,
}

/// Facts of a disk that decide how its requests end.
#[derive(Debug)]
struct DiskFacts {
    guest: u32,
    scsi: bool,
    /// QEMU's own client reaches its data on a server, with no image format between.
    remote: bool,
    file_ios: u64,
    unlinked: BTreeMap<UnlinkedReason, u64>,
}

/// Whether QEMU's own client reaches the disk's data on a server, with no image format between.
fn is_on_a_server(disk: &Disk) -> bool {
    let is_plain = disk.images.is_empty() && matches!(disk.format.as_str(), "" | "raw");
    is_plain && disk.remote_client().is_some()
}

/// The first buffer of a request itself: a merged call names that of its first member.
fn own_buffer(ended: &Ended, calls: &[&calls::OpenCall]) -> u64 {
    let is_own = |open: &&&calls::OpenCall| ended.offset == Some(open.call.offset);
    calls.iter().find(is_own).map_or(0, |open| open.call.buffer)
}

/// Builds the trees of QEMU's requests.
#[derive(Debug)]
pub(crate) struct HostSide {
    calls: Calls,
    clusters: Clusters,
    host_bios: HostBios,
    stacked: Stacked,
    deferred: DeferredWork,
    bytes: HostBytes,
    jobs: Jobs,
    pub clues: HostClues,
    /// Stacked devices, by what they did.
    pub stack_meters: StackMeters,
    disks: Vec<DiskFacts>,
    /// By guest: events of its QEMU were seen.
    qemu_seen: Vec<bool>,
    /// Guests with probes on their QEMU's functions: what the guest asks for is seen.
    with_functions: Vec<bool>,
    /// By guest: no function of its QEMU was probed.
    without_functions: Vec<bool>,
    block_events: u64,
    /// Requests that have ended, in the order of `done_ns`, for the caller to drain.
    pub served: Vec<Served>,
}

impl HostSide {
    pub(crate) fn new(manifest: &Manifest, images: &Images, maps: &[ImageMap]) -> Self {
        let topology = &manifest.topology;
        let disk = |number: usize| {
            let disk = images.disks.get(number)?;
            let guest = topology.guests.get(disk.guest as usize)?;
            guest.disks.get(disk.disk as usize)
        };
        let numbers = 0..images.disks.len();
        let writes_through = |number| {
            let cache = disk(number).and_then(|disk| disk.cache.as_deref());
            matches!(cache, Some("writethrough" | "directsync"))
        };
        let jobs = Jobs::new(manifest, images);
        let copied = (0..).map(|number| jobs.copying(number));
        let copied = copied.take(images.disks.len()).collect();
        Self {
            calls: Calls::new(numbers.clone().map(writes_through).collect(), copied),
            jobs,
            clusters: Clusters::new(images, maps),
            host_bios: HostBios::default(),
            stacked: Stacked::default(),
            deferred: DeferredWork::new(images.disks.len()),
            bytes: HostBytes::new(images.disks.len()),
            clues: HostClues::new(images.disks.len()),
            stack_meters: StackMeters::default(),
            disks: numbers
                .map(|number| DiskFacts {
                    guest: images.disks.get(number).map_or(u32::MAX, |disk| disk.guest),
                    scsi: disk(number).is_some_and(|disk| disk.bus.contains("scsi")),
                    remote: disk(number).is_some_and(is_on_a_server),
                    file_ios: 0,
                    unlinked: BTreeMap::new(),
                })
                .collect(),
            qemu_seen: vec![false; topology.guests.len()],
            with_functions: topology
                .guests
                .iter()
                .map(|guest| qemu::has_functions(manifest, &guest.name))
                .collect(),
            without_functions: topology
                .guests
                .iter()
                .map(|guest| qemu::has_no_functions(manifest, &guest.name))
                .collect(),
            block_events: 0,
            served: Vec::new(),
        }
    }

    /// Asks the layers for spans.
    pub(crate) fn follow(layers: &mut HostLayers<'_>) {
        layers.block.gathered.spans.get_or_insert_default();
        layers.files.spans.get_or_insert_default();
        layers.qemu.follow_requests();
    }

    /// Takes what the layers made of an event.
    pub(crate) fn after(&mut self, kind: Kind, event: &Event, layers: &mut HostLayers<'_>) {
        match kind.source() {
            Source::Block => self.block(layers),
            Source::File => {
                self.stacked.file_event(kind, event, layers.images);
                self.files(layers);
                self.jobs.event(kind, event, layers.images);
                self.reads_became_copies(layers.images);
            }
            Source::Qemu => self.qemu(event, layers),
            Source::HostFs => self.host_bios.host_fs(kind, event),
            Source::Meta | Source::Walk | Source::Cpu => {}
        }
    }

    fn block(&mut self, layers: &mut HostLayers<'_>) {
        let (Some(block), Some(files)) =
            (&mut layers.block.gathered.spans, &mut layers.files.spans)
        else {
            return;
        };
        block.requests.clear();
        self.block_events += 1;
        if self.block_events.is_multiple_of(BOUND_EVENTS) {
            block.forget_requests_beyond(MAX_REQUESTS);
        }
        if !block.bios.is_empty() {
            self.bios_ended(block, files, layers.images);
        }
        for file in files.ended.drain(..) {
            self.file_ended(&file, layers.images);
        }
    }

    // Apart from what each event of the block layer comes by, which ends no bio: it needs much more of the stack.
    #[inline(never)]
    fn bios_ended(&mut self, block: &mut BlockSpans, files: &mut FileSpans, images: &Images) {
        for bio in block.bios.drain(..) {
            if self.stacked.keep(&bio, images) {
                continue;
            }
            let journal = self.host_bios.is_journal(&bio, images);
            if journal {
                self.stacked.keep_journal(&bio, images);
            }
            let file = files.in_flight.get(&bio.file_io);
            // Not every file system says where in the file a direct bio is; the call does.
            let direct = file.filter(|_| bio.owner_kind != flags::OWNER_PAGES);
            let range = direct.map_or((bio.file_offset, bio.bytes), |file| {
                (file.offset, file.bytes)
            });
            let reader = file.filter(|file| file.op == op::READ);
            let place = InImage {
                range,
                asked: reader.map(FileIoSpan::pages),
                images,
                clusters: &self.clusters,
            };
            self.bytes.bio(&bio, journal, &place);
            let is_direct = matches!(bio.owner, Owner::Image(image) if images.is_direct(image));
            let volumes = images.volumes_at(bio.dev, bio.place());
            let volumes = volumes.map(|volume| (volume.is_file_system, volume.disks.as_slice()));
            self.clues.bio(&bio, journal, is_direct, volumes);
            let stacked = &mut self.stacked;
            let tree = self.stack_meters.tree(&bio, journal, images, stacked);
            let waited_for = self
                .host_bios
                .ended(&bio, files, images, (&mut self.stacked, tree));
            self.deferred.bio(&bio, waited_for, images);
        }
    }

    fn files(&mut self, layers: &mut HostLayers<'_>) {
        let Some(files) = &mut layers.files.spans else {
            return;
        };
        for serial in files.began.drain(..) {
            if let Some(file) = files.in_flight.get(&serial) {
                self.calls
                    .file_began(file, &mut self.clusters, layers.images);
            }
        }
        for file in files.ended.drain(..) {
            self.file_ended(&file, layers.images);
        }
    }

    /// Reads that no request asked for are explained: a job did them.
    fn reads_became_copies(&mut self, images: &Images) {
        for image in self.jobs.copied_from.drain(..) {
            let disk = images
                .disk_of(image)
                .and_then(|disk| self.disks.get_mut(disk as usize));
            if let Some(disk) = disk
                && let Some(n) = disk.unlinked.get_mut(&UnlinkedReason::NoMatch)
            {
                *n = n.saturating_sub(1);
                disk.unlinked.retain(|_, n| *n > 0);
            }
        }
    }

    fn file_ended(&mut self, file: &FileIoSpan, images: &Images) {
        let is_copy = self.jobs.is_copy(file);
        let fate = self
            .calls
            .file_ended(file, is_copy, &mut self.clusters, images);
        if file.end == FileEnd::Refused {
            return;
        }
        let without_functions = self.without_functions.get(file.guest as usize) == Some(&true);
        if without_functions {
            let served = self.serve_file_io(file, images);
            self.served.extend(served);
        }
        let holds_data = self
            .clusters
            .holds_data(file.image, file.offset, file.bytes);
        if file.op == op::READ {
            self.bytes.asked(file.image, file.pages(), images);
        }
        let qemu_seen = self.qemu_seen.get(file.guest as usize) == Some(&true);
        let is_recorded = qemu_seen || self.with_functions.get(file.guest as usize) == Some(&true);
        let of_job = is_recorded && fate == Fate::NoCall;
        if is_recorded {
            self.jobs.file_ended(file, fate, images, &self.clusters);
        }
        if let Some(disk) = images.disk_of(file.image) {
            let image = ImageOf {
                disk,
                is_direct: images.is_direct(file.image),
                is_backing: images.is_backing(file.image),
            };
            self.clues
                .file_io(file, image, holds_data != Some(false), of_job);
        }
        if file.op == op::WRITE && !images.is_direct(file.image) && !file.dsync {
            self.deferred.written(file);
        }
        let disk = images
            .disk_of(file.image)
            .and_then(|disk| self.disks.get_mut(disk as usize));
        let Some(disk) = disk else {
            return;
        };
        disk.file_ios += 1;
        if without_functions {
            return;
        }
        let reason = match fate {
            Fate::Tied | Fate::Ambiguous => return,
            Fate::NoCall if is_copy => return,
            Fate::Unaccounted => UnlinkedReason::LayerNotRecorded,
            Fate::NoCall => UnlinkedReason::NoMatch,
        };
        *disk.unlinked.entry(reason).or_default() += 1;
    }

    fn qemu(&mut self, event: &Event, layers: &mut HostLayers<'_>) {
        if let Some(seen) = self.qemu_seen.get_mut(event.dev as usize) {
            *seen = true;
        }
        for step in layers.qemu.steps(event.dev) {
            match step {
                Step::Called(call) => self.calls.began(call, layers.images),
                Step::Ended(ended) => self.ended(&ended, layers),
                Step::Dropped(call) => self.calls.over(event.dev, call),
            }
        }
    }

    fn ended(&mut self, ended: &Ended, layers: &mut HostLayers<'_>) {
        let served = self.serve(ended, layers);
        if let Some(served) = &served {
            self.jobs.waited(served.disk, &served.span);
            self.clues.served(served);
        }
        self.served.extend(served);
        for call in &ended.calls_over {
            self.calls.over(ended.guest, *call);
        }
    }

    /// The tree of a request; `None` where its disk is not known.
    fn serve(&self, ended: &Ended, layers: &HostLayers<'_>) -> Option<Served> {
        let calls: Vec<_> = ended
            .calls
            .iter()
            .filter_map(|call| self.calls.get(ended.guest, *call))
            .collect();
        let disk = calls.iter().find_map(|call| call.disk).or_else(|| {
            let disk = GuestDiskId(ended.disk?);
            layers.images.disk_number(GuestId(ended.guest), disk)
        })?;
        let mut children = Vec::new();
        let mut ambiguous = false;
        for tied in calls.iter().flat_map(|call| &call.files) {
            let in_flight = || {
                let files = layers.files.spans.as_ref()?;
                files.in_flight.get(&tied.file)
            };
            let Some(file) = tied.span.as_ref().or_else(in_flight) else {
                continue;
            };
            let what = match tied.how {
                How::Data => tree::of_operation(file.op),
                How::Sync => What::Sync,
                How::Metadata if tree::of_operation(file.op) == What::Sync => What::Sync,
                How::Metadata => What::ImageMetadata,
            };
            ambiguous |= tied.ambiguous || file.bios.iter().any(|bio| bio.ambiguous);
            let mut child = tree::file_io(
                file,
                what,
                tied.shared || ended.merged,
                layers.images.under(file),
            );
            if tied.waits_from_ns > child.start_ns {
                child.start_ns = tied.waits_from_ns.min(child.end_ns);
                tree::clip_children(&mut child);
            }
            children.push(child);
        }
        children.extend(self.remote(ended, disk, &calls));
        let mut span = Span {
            layer: Layer::Qemu,
            start_ns: ended.start_ns,
            end_ns: self.end_ns(ended, disk, &calls, &children),
            offset: ended.offset.unwrap_or(0),
            bytes: ended.bytes,
            what: ended.what,
            shared: false,
            place: disk,
            below: Below::Nothing,
            actors: Actors::of(Actor::host(ended.tid), Actor::host(ended.end_tid)),
            children,
        };
        let files = calls.iter().flat_map(|call| &call.files);
        let data = files.filter(|tied| tied.how == How::Data);
        let data = data.filter_map(|tied| tied.span.as_ref());
        let written = data
            .filter(|file| file.op == op::WRITE)
            .map(|file| Written {
                buffer: file.buffer,
                bytes: file.bytes,
                end_ns: file.end_ns,
            });
        let waits = self.jobs.waits(ended.guest, disk, &span, written);
        span.children.extend(waits);
        tree::clip_children(&mut span);
        Some(Served {
            serial: ended.serial,
            disk,
            span,
            done_ns: ended.done_ns,
            failed: ended.failed,
            handed_back: ended.handed_back_ns.is_some(),
            queue: ended.queue,
            offset_known: ended.offset.is_some(),
            merged: ended.merged,
            continues: ended.continues,
            ambiguous,
            buffer: own_buffer(ended, &calls),
            file_io: None,
        })
    }

    /// From QEMU's call to its return, where its own client reaches a server: no file I/O is below it.
    fn remote(&self, ended: &Ended, disk: u32, calls: &[&calls::OpenCall]) -> Option<Span> {
        self.disks.get(disk as usize).filter(|it| it.remote)?;
        let called = calls.iter().map(|call| call.call.start_ns);
        let start_ns = called.min()?;
        let end_ns = ended.handed_back_ns.unwrap_or(ended.done_ns);
        Some(Span {
            layer: Layer::Remote,
            start_ns: start_ns.max(ended.start_ns),
            end_ns: end_ns.max(start_ns),
            offset: ended.offset.unwrap_or(0),
            bytes: ended.bytes,
            what: ended.what,
            shared: ended.merged,
            place: disk,
            below: Below::Nothing,
            actors: Actors::default(),
            children: Vec::new(),
        })
    }

    /// The file I/O as what stands for a request of QEMU, whose functions were not seen.
    fn serve_file_io(&self, file: &FileIoSpan, images: &Images) -> Option<Served> {
        let [disk] = images.disks_of(ImageId(file.image), GuestId(file.guest))[..] else {
            return None;
        };
        let what = tree::of_operation(file.op);
        let ranges = self
            .clusters
            .guest_ranges(file.image, file.offset, file.bytes);
        let place = match ranges[..] {
            [range] => Some((range.start, range.end)),
            _ => None,
        };
        let holds_data = self
            .clusters
            .holds_data(file.image, file.offset, file.bytes);
        let shared = false;
        Some(Served {
            serial: file.serial,
            disk,
            span: tree::file_io(file, what, shared, images.under(file)),
            done_ns: file.end_ns,
            failed: file.end == FileEnd::Failed,
            handed_back: false,
            queue: 0,
            offset_known: place.is_some(),
            merged: false,
            continues: None,
            ambiguous: file.bios.iter().any(|bio| bio.ambiguous),
            buffer: file.buffer,
            file_io: Some(FileIoFacts {
                place,
                of_table: holds_data == Some(false),
            }),
        })
    }

    /// When the guest can have been notified at the earliest. `block_acct_done` comes after the completion notification
    /// on virtio-blk and IDE, before it on SCSI.
    fn end_ns(
        &self,
        ended: &Ended,
        disk: u32,
        calls: &[&calls::OpenCall],
        children: &[Span],
    ) -> u64 {
        if let Some(handed_back_ns) = ended.handed_back_ns {
            return handed_back_ns;
        }
        if self.disks.get(disk as usize).is_some_and(|disk| disk.scsi) {
            return ended.done_ns;
        }
        let last = children.iter().map(|child| child.end_ns);
        let called = calls.iter().map(|call| call.call.start_ns);
        last.chain(called)
            .filter(|end_ns| *end_ns <= ended.done_ns)
            .max()
            .unwrap_or(ended.done_ns)
    }

    /// Bytes that reached the device for a disk.
    pub(crate) fn on_host(&self, disk: u32, images: &Images) -> DiskOnHost {
        self.bytes.finish(disk, images)
    }

    /// What QEMU's job did with a disk; `None` where there was none.
    pub(crate) fn job_of(&self, disk: u32) -> Option<JobHalf> {
        self.jobs.finish(disk)
    }

    /// Events of file I/O were lost.
    pub(crate) fn file_events_were_lost(&mut self) {
        self.jobs.interrupted();
    }

    /// What is left to say of a disk.
    pub(crate) fn finish(&self, disk: u32) -> HostHalf {
        let facts = self.disks.get(disk as usize);
        let qemu_seen = |guest: u32| self.qemu_seen.get(guest as usize) == Some(&true);
        HostHalf {
            deferred: self.deferred.finish(disk),
            qemu_seen: facts.is_some_and(|facts| qemu_seen(facts.guest)),
            file_ios: facts.map_or(0, |facts| facts.file_ios),
            unlinked: facts
                .map(|facts| facts.unlinked.clone())
                .unwrap_or_default(),
        }
    }
}
