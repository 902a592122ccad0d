//! A recording into a bundle on a file system of the guest, to be copied out later.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_kernel::plan::Detail;
use nestrace_output::address_secret::new_shift;
use nestrace_output::bundle_dir::{BundleDir, BundleError};
use nestrace_probes::clock;
use nestrace_trace::address::Shift;
use nestrace_trace::bundle::{HOST_STREAM, guest_stream, index_of};
use nestrace_trace::manifest::{Addresses, GuestSide, Loss, Notice, State, Stream};
use nestrace_trace::{Event, Manifest, Source, StreamWriter, WriteError};
use nestrace_wire::AgentHello;
use nestrace_wire::disks::{DISK_REPLACED, Look, merge_disks};
use nestrace_wire::files::Names;
use nestrace_wire::mounts::merge_mounts;

use crate::Obstacle;
use crate::backend::{Backends, Events, Piece};
use crate::capture::{Capture, News};
use crate::guest::Facts;
use crate::signals::Signals;

/// A batch is closed at this age even if it is small, so that a crash costs no more.
const BATCH_AGE: Duration = Duration::from_millis(250);

/// Of the kernel's buffers, so much is taken before the clock and signals are looked at again.
const MAX_BYTES: usize = 16 << 20;

/// More notices than this are not kept.
const MAX_NOTICES: usize = 500;

/// What to record.
pub struct Wanted<'w> {
    pub path: &'w Path,
    pub force: bool,
    pub duration: Option<Duration>,
    pub devices: Vec<String>,
    pub detail: Detail,
    /// Names of files, too.
    pub paths: bool,
    /// When the threads that carry I/O have a processor.
    pub cpu: bool,
}

/// Records until a signal, the end of the duration, or a full disk.
pub fn record(
    wanted: &Wanted<'_>,
    backends: &mut Backends,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let facts = Facts::gather(&wanted.devices);
    if let [missing, ..] = facts.missing.as_slice() {
        return Err(Obstacle::Input(format!("there is no disk {missing}")).into());
    }
    let dir = BundleDir::begin_unseen(wanted.path, wanted.force).map_err(explained)?;
    let begun = (clock::monotonic_ns(), clock::realtime_ns());
    let asked = (wanted.detail, wanted.paths, wanted.cpu);
    let capture = Capture::start(backends, &wanted.devices, "", facts, asked)
        .map_err(|reason| Obstacle::Lacking(format!("nothing can be recorded: {reason}")))?;
    let mut recording = Recording::begin(dir, capture, wanted, begun)?;
    eprintln!(
        "nestrace-agent: recording to {}; Ctrl-C ends it",
        wanted.path.display()
    );
    let end = wanted.duration.map(|time| Instant::now() + time);
    let reason = loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let idle = recording.capture.idle_for();
        if signals.sleep(left.map_or(idle, |left| left.min(idle))) {
            break "signal";
        }
        if left.is_some_and(|left| left.is_zero()) {
            break "duration";
        }
        recording.tick();
        if recording.failed.is_some() {
            break "disk_full";
        }
    };
    recording.finish(reason)
}

struct Recording<'b> {
    dir: BundleDir,
    capture: Capture<'b>,
    events: Events,
    stream: StreamWriter<File, File>,
    failed: Option<WriteError>,
    /// What is written has no address of this machine.
    shift: Shift,
    manifest: Manifest,
    /// The one on the disk is older.
    manifest_changed: bool,
    n_events: u64,
    names: Names,
    next_batch: Instant,
}

impl<'b> Recording<'b> {
    /// `begun`: `CLOCK_MONOTONIC` and `CLOCK_REALTIME` before the capture was started.
    fn begin(
        mut dir: BundleDir,
        capture: Capture<'b>,
        wanted: &Wanted<'_>,
        begun: (u64, u64),
    ) -> anyhow::Result<Self> {
        let hello = capture.hello(0);
        // Whoever merges it with a host's recording gives it the guest's name there.
        let name = hello.machine.hostname.clone();
        let file = guest_stream(&name);
        let stream = StreamWriter::new(dir.new_file(&file)?, dir.new_file(&index_of(&file))?)
            .context("start the stream")?;
        write_empty_host_stream(&dir)?;
        let mut side = hello.guest_side(&name, &file);
        (side.start_mono_ns, side.start_unix_ns) = begun;
        side.live_mono_ns = capture.live_ns;
        side.probes = capture.attached.probes.clone();
        side.probes_refused = capture.attached.refused.clone();
        let mut manifest = Manifest::default();
        manifest.tool_version = env!("CARGO_PKG_VERSION").to_owned();
        manifest.state = State::Recording;
        manifest.start_unix_ns = side.start_unix_ns;
        manifest.start_mono_ns = side.start_mono_ns;
        manifest.live_mono_ns = capture.live_ns;
        manifest.detail = wanted.detail.name().to_owned();
        manifest.host = hello.machine.clone();
        manifest.streams = vec![Stream {
            file,
            side: "guest".to_owned(),
            guest: Some(name),
            backend: hello.backend.clone(),
            kernel: hello.machine.kernel.clone(),
            addresses: Addresses::Shifted,
        }];
        manifest.guest_sides = vec![side];

        dir.begin_recording(wanted.path, &manifest)
            .map_err(explained)?;
        if let Err(error) = dir.settle() {
            let error = anyhow::Error::from(error);
            eprintln!(
                "nestrace-agent: the older bundle stays beside the new one: failed to {error:#}"
            );
        }
        Ok(Self {
            dir,
            events: Events::new(capture.format()),
            capture,
            stream,
            failed: None,
            shift: new_shift().context("draw the secret that hides addresses")?,
            manifest,
            manifest_changed: false,
            n_events: 0,
            names: Names::of_one_of(1),
            next_batch: Instant::now() + BATCH_AGE,
        })
    }

    fn tick(&mut self) {
        self.take_pieces(|capture, sink| capture.tick(MAX_BYTES, sink));
        let news = self.capture.look();
        self.events.take_losses(self.capture.take_losses());
        self.names.take(0, self.capture.take_names());
        if news != News::default()
            && let Some(side) = self.manifest.guest_sides.first_mut()
        {
            let notices = take_over(side, self.capture.hello(0));
            let room = MAX_NOTICES.saturating_sub(self.manifest.notices.len());
            self.manifest.notices.extend(notices.into_iter().take(room));
            side.probes_refused
                .clone_from(&self.capture.attached.refused);
            self.manifest_changed = true;
        }
        if Instant::now() >= self.next_batch {
            self.next_batch = Instant::now() + BATCH_AGE;
            self.write();
        }
    }

    /// Writes what waits. A full disk must not end the recording before its stream does: a manifest that has no
    /// room is tried again with the next batch.
    fn write(&mut self) {
        if let Err(error) = self.stream.flush_batch() {
            self.failed.get_or_insert(error);
        }
        if self.manifest_changed {
            self.manifest_changed = self.dir.write_manifest(&self.manifest).is_err();
        }
    }

    fn take_pieces(&mut self, from: impl FnOnce(&mut Capture<'b>, &mut dyn FnMut(Piece<'_>))) {
        let (stream, failed, n_events) = (&mut self.stream, &mut self.failed, &mut self.n_events);
        let shift = self.shift;
        let mut write = |event: &Event| {
            *n_events += 1;
            let mut written = *event;
            shift.event(&mut written);
            if let Err(error) = stream.push(&written) {
                failed.get_or_insert(error);
            }
        };
        let events = &mut self.events;
        from(&mut self.capture, &mut |piece| {
            events.take(piece, &mut write);
        });
    }

    fn finish(mut self, reason: &str) -> anyhow::Result<()> {
        let mut end_ns = 0;
        self.take_pieces(|capture, sink| {
            end_ns = capture.stop(sink);
        });
        self.events.take_losses(self.capture.take_losses());
        self.take_pieces(|_, sink| sink(Piece::Until(u64::MAX)));
        if let Err(error) = self.stream.finish() {
            self.failed.get_or_insert(error);
        }
        let names = &mut self.names;
        self.capture.end_names(|files| {
            names.take(0, files);
        });
        let manifest = &mut self.manifest;
        manifest.state = State::Complete;
        manifest.end_mono_ns = end_ns;
        manifest.end_reason = reason.to_owned();
        let guest = manifest.streams.first().and_then(|s| s.guest.clone());
        let loss = |source: &str, events| Loss {
            source: source.to_owned(),
            guest: guest.clone(),
            events,
        };
        let lost = |source: &Source| self.capture.lost().get(&(*source as u32)).copied();
        manifest.losses = Source::ALL
            .iter()
            .filter_map(|source| Some(loss(source.name(), lost(source)?)))
            .collect();
        if self.stream.rows_lost() > 0 {
            manifest
                .losses
                .push(loss("disk_full", self.stream.rows_lost()));
        }
        if let Some(side) = manifest.guest_sides.first_mut() {
            side.end_mono_ns = end_ns;
            side.files = self.names.drain().map(|(_, file)| file).collect();
            side.clock_correction_ppm = self.capture.hello(0).clock_correction_ppm;
        }
        let late = self.events.out_of_order();
        if late > 0 {
            manifest.notices.push(Notice {
                mono_ns: end_ns,
                what: "out_of_order".to_owned(),
                message: format!("{late} events came too late to be put in order"),
            });
        }
        let n_lost: u64 = manifest.losses.iter().map(|loss| loss.events).sum();
        self.dir
            .close(&self.manifest)
            .map_err(|error| not_closed(error, self.dir.path()))?;
        eprintln!(
            "nestrace-agent: {} events, {n_lost} lost, to {}",
            self.n_events,
            self.dir.path().display()
        );
        match self.failed {
            Some(error) => Err(error).context("write the whole recording"),
            None => Ok(()),
        }
    }
}

/// Takes over what has changed in the guest. A disk or mount that is gone stays: its events name it. Gives what is to be said.
fn take_over(side: &mut GuestSide, hello: AgentHello) -> Vec<Notice> {
    let look = Look {
        // What the manifest says first is of the time before.
        held_ns: hello.held_mono_ns.max(side.start_mono_ns),
        now_ns: hello.mono_ns,
    };
    let replaced = merge_disks(&mut side.disks, hello.disks, look);
    merge_mounts(&mut side.mounts, hello.mounts);
    side.clock_correction_ppm = hello.clock_correction_ppm;
    let notice = |message| Notice {
        mono_ns: hello.mono_ns,
        what: DISK_REPLACED.to_owned(),
        message,
    };
    replaced.into_iter().map(notice).collect()
}

/// The stream is finished, and the last manifest found no room.
fn not_closed(error: BundleError, path: &Path) -> anyhow::Error {
    let path = path.display();
    anyhow::Error::from(error).context(format!(
        "the stream in {path} is closed and its manifest is an older one; free some space, then nestrace repair {path} -o OUT.nest"
    ))
}

/// Every bundle has the host's stream; in this one nothing is known of the host.
fn write_empty_host_stream(dir: &BundleDir) -> anyhow::Result<()> {
    let stream = dir.new_file(HOST_STREAM)?;
    let index = dir.new_file(&index_of(HOST_STREAM))?;
    StreamWriter::new(stream, index)
        .and_then(|mut writer| writer.finish())
        .context("write the empty stream of the host")?;
    Ok(())
}

/// With the way out, where the user has one.
fn explained(error: BundleError) -> anyhow::Error {
    let message = match &error {
        BundleError::Exists(path) => {
            format!("{} exists; --force replaces a bundle", path.display())
        }
        BundleError::Io {
            action: "create",
            path,
            source,
        } if source.kind() == ErrorKind::NotFound => {
            let folder = path.parent().unwrap_or(path).display();
            format!("create {}: mkdir -p {folder} first", path.display())
        }
        _ => return error.into(),
    };
    Obstacle::Input(message).into()
}

#[cfg(test)]
mod tests {
    use nestrace_trace::manifest::{GuestDisk, GuestMount};

    use super::*;

    #[test]
    fn what_is_gone_stays_listed() {
        let disk = |dev, size| GuestDisk {
            dev,
            size,
            ..GuestDisk::default()
        };
        let mount = |dev| GuestMount {
            dev,
            ..GuestMount::default()
        };
        let says = |disks: &[GuestDisk], devs: &[u32]| AgentHello {
            disks: disks.to_vec(),
            mounts: devs.iter().copied().map(mount).collect(),
            clock_correction_ppm: Some(20),
            ..AgentHello::default()
        };
        let mut side = GuestSide::default();
        take_over(&mut side, says(&[disk(1, 10), disk(2, 20)], &[1, 2]));
        let told = take_over(&mut side, says(&[disk(3, 30), disk(1, 11)], &[1]));
        assert_eq!(told, [], "a resize is no other disk");
        let gone = GuestDisk {
            until_mono_ns: 1,
            ..disk(2, 20)
        };
        assert_eq!(side.disks, [disk(1, 10), gone, disk(3, 30)]);
        assert_eq!(side.mounts, [mount(1), mount(2)]);
        assert_eq!(side.clock_correction_ppm, Some(20));
    }

    #[test]
    fn what_to_do_about_a_manifest_without_room_is_said() {
        let error = BundleError::Io {
            action: "write",
            path: "a.nest/manifest.json.next".into(),
            source: ErrorKind::StorageFull.into(),
        };
        let text = format!("{:#}", not_closed(error, Path::new("a.nest")));
        assert!(
            text.contains("nestrace repair a.nest -o OUT.nest: write a.nest/"),
            "{text}"
        );
    }

    #[test]
    fn what_is_in_the_way_is_said() {
        let root = tempfile::tempdir().unwrap();
        let said = |name: &str, force| {
            let begun = BundleDir::begin_unseen(&root.path().join(name), force);
            let error = begun.map_err(explained).err()?;
            let is_input = matches!(error.downcast_ref(), Some(Obstacle::Input(_)));
            Some((is_input, format!("{error:#}")))
        };
        std::fs::create_dir(root.path().join("a.nest")).unwrap();
        std::fs::write(root.path().join("a.nest/mine"), "").unwrap();
        for (name, force, is_input, why) in [
            ("a.nest", false, true, "--force replaces a bundle"),
            ("a.nest", true, false, "is not a bundle"),
            ("missing/b.nest", false, true, "mkdir -p"),
        ] {
            let (found, text) = said(name, force).unwrap();
            assert!(found == is_input && text.contains(why), "{text}");
        }
        assert_eq!(said("b.nest", false), None);
    }
}
