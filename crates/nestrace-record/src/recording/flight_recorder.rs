//! A recording that is kept in memory, and what of it is written when the condition holds.

mod bundles;
mod losses;
mod moment;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nestrace_condition::Reading;
use nestrace_output::bundle_dir::{BundleDir, HostStream, StreamOutput};
use nestrace_probes::clock;
use nestrace_trace::bundle::HOST_STREAM;
use nestrace_trace::manifest::{Flight as Moment, FlightCause, Gap, GuestSide, Loss, Notice};
use nestrace_trace::{Manifest, StreamRing, StreamWriter};

pub(super) use bundles::{end, finish_earlier};
use bundles::{go_on, next};
use losses::{not_written, since};
use moment::{of_manifest, why};

use super::open_manifest::MAX_NOTICES;
use super::{End, RecordError, Recorder, nanoseconds};
use crate::flight::Flight;
use crate::flight::copy::Copy;
use crate::flight::rings::Rings;
use crate::flight::until_file::UntilFile;

/// Events are kept for so much longer than is asked: a batch holds those of a quarter of a second.
const KEPT_LONGER: Duration = Duration::from_millis(600);
/// Notices from before what is kept, after the recording's first ones, go when there are so many.
const MANY_NOTICES: usize = MAX_NOTICES / 4;

/// A flight recorder.
pub(super) struct Flying {
    flight: Flight,
    rings: Arc<Rings>,
    host: StreamRing,
    /// Folders of the bundles after the next one: no more can be made later.
    later: VecDeque<BundleDir>,
    /// Of the bundle that is written now or next.
    number: usize,
    writing: Option<Writing>,
    until_file: Option<UntilFile>,
    /// Somebody asked for a bundle.
    asked: bool,
    /// The condition as it was understood.
    expression: Option<String>,
    written: Vec<PathBuf>,
    failed: Option<String>,
    news: Vec<String>,
    /// What had been lost, every half second.
    losses: VecDeque<(u64, Vec<Loss>)>,
    /// A pause after the last bundle.
    not_before_ns: u64,
}

/// A bundle that is being written.
struct Writing {
    copy: Copy,
    moment: Moment,
    from_ns: u64,
    start_unix_ns: u64,
    until_ns: u64,
    /// It has its name.
    has_appeared: bool,
    /// Since when it is being closed.
    closing_ns: Option<u64>,
    has_maps: bool,
    /// Where the streams of the guests begin.
    begins: BTreeMap<String, Begin>,
    notice: Option<Notice>,
}

/// Where what is kept of a guest's stream begins.
#[derive(Clone, Copy)]
struct Begin {
    /// On the guest's clock; `None` where nothing is kept.
    first_ns: Option<u64>,
    /// Until when there was no more room for it, on the host's clock.
    crowded_out_ns: Option<u64>,
}

/// Makes the folders of the bundles, unseen, and the memory.
///
/// # Errors
/// Those of the folders, and of the file that is waited for.
pub(super) fn begin(
    flight: &Flight,
    force: bool,
    n_agents: usize,
) -> Result<(BundleDir, HostStream, Option<Flying>), RecordError> {
    let mut dirs = VecDeque::new();
    for output in &flight.outputs {
        dirs.push_back(BundleDir::begin_unseen(output, force)?);
    }
    let until_file = flight.until_file.as_ref().map(|path| {
        UntilFile::watch(path).map_err(|source| RecordError::UntilFile {
            path: path.clone(),
            source,
        })
    });
    let rings = Rings::new(flight, n_agents);
    let failed = |path: PathBuf| move |error| bundle_error(path, error);
    let first = dirs.pop_front();
    let path = PathBuf::from(HOST_STREAM);
    let host = rings.open(HOST_STREAM, None).ok().flatten();
    let (Some(dir), Some(host)) = (first, host) else {
        return Err(bundle_error(path, nestrace_trace::WriteError::Closed));
    };
    let outputs: [StreamOutput; 2] = host.writers().map(|writer| {
        let output: StreamOutput = Box::new(writer);
        output
    });
    let [stream, index] = outputs;
    let stream = StreamWriter::new(stream, index).map_err(failed(path))?;
    let flying = Flying {
        flight: flight.clone(),
        rings: Arc::new(rings),
        host,
        later: dirs,
        number: 0,
        writing: None,
        until_file: until_file.transpose()?,
        asked: false,
        expression: None,
        written: Vec::new(),
        failed: None,
        news: Vec::new(),
        losses: VecDeque::new(),
        not_before_ns: 0,
    };
    Ok((dir, stream, Some(flying)))
}

fn bundle_error(path: PathBuf, error: nestrace_trace::WriteError) -> RecordError {
    RecordError::Bundle(nestrace_output::bundle_dir::BundleError::Stream(
        path, error,
    ))
}

impl Flying {
    /// Folders of the bundles after the first.
    pub fn later_dirs(&mut self) -> impl Iterator<Item = &mut BundleDir> {
        self.later.iter_mut()
    }

    /// The streams.
    pub fn rings(&self) -> Arc<Rings> {
        Arc::clone(&self.rings)
    }

    /// The streams, and the host's.
    pub fn of_host(&self) -> Option<(Arc<Rings>, StreamRing)> {
        Some((self.rings(), self.host.clone()))
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.rings.bytes()
    }

    /// The bundle that is written now or next, counted from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// What is to be said to the user since the last call.
    pub fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    /// Asks for a bundle.
    pub fn ask(&mut self) {
        self.asked = true;
    }

    /// Why a bundle is to be written now.
    fn cause(&mut self, now_ns: u64) -> Option<(FlightCause, Vec<Reading>)> {
        let held = self.rings.evaluate(now_ns);
        let asked = std::mem::take(&mut self.asked);
        let is_there = self
            .until_file
            .as_ref()
            .is_some_and(UntilFile::has_appeared);
        if self.writing.is_some() {
            if asked || is_there {
                self.news.push("a bundle is being written".to_owned());
            }
            return None;
        }
        match (held, asked, is_there) {
            (_, true, _) => Some((FlightCause::Signal, self.rings.readings())),
            (_, _, true) => Some((FlightCause::File, self.rings.readings())),
            (Some(held), ..) if now_ns >= self.not_before_ns => {
                Some((FlightCause::Condition, held.readings))
            }
            _ => None,
        }
    }

    fn lost_before(&self, from_ns: u64) -> Vec<Loss> {
        let before = self
            .losses
            .iter()
            .rev()
            .find(|(at_ns, _)| *at_ns <= from_ns);
        before.map(|(_, losses)| losses.clone()).unwrap_or_default()
    }

    /// The manifest of the bundle that is being written, from that of the recorder.
    fn manifest(&self, recorders: &Manifest, losses: Vec<Loss>) -> Option<Manifest> {
        let writing = self.writing.as_ref()?;
        let sums = writing.copy.sums();
        let mut manifest = recorders.clone();
        let (began_ns, from_ns) = (manifest.live_mono_ns, writing.from_ns);
        manifest.start_mono_ns = from_ns;
        manifest.start_unix_ns = writing.start_unix_ns;
        manifest.live_mono_ns = began_ns.max(from_ns);
        let is_of_now = |notice: &Notice| notice.mono_ns >= from_ns || notice.mono_ns <= began_ns;
        manifest.notices.retain(is_of_now);
        manifest.notices.extend(writing.notice.clone());
        let has = |file: &str| file == HOST_STREAM || sums.files.contains(file);
        manifest.streams.retain(|stream| has(&stream.file));
        manifest.guest_sides.retain(|side| has(&side.file));
        for side in &mut manifest.guest_sides {
            writing.fit(side);
        }
        manifest.losses = since(losses, &writing.moment.lost_before);
        manifest
            .losses
            .extend(not_written(&sums, &recorders.guest_sides));
        if let Some(why) = &sums.failed {
            manifest.notices.push(Notice {
                mono_ns: clock::monotonic_ns(),
                what: "disk_full".to_owned(),
                message: format!("events could not be written: {why}"),
            });
        }
        if let Some(full_ns) = self.host.full_at_ns() {
            // Of the smallest bound not even the first events are within.
            let full_ns = full_ns.max(from_ns);
            manifest.end_mono_ns = full_ns;
            manifest.notices.push(Notice {
                mono_ns: full_ns,
                what: "max_size".to_owned(),
                message: format!(
                    "the bundle was full {:.1} s after the moment, not {:.1} s; a larger --max-size holds more",
                    seconds(full_ns, writing.moment.mono_ns),
                    self.flight.after.as_secs_f64(),
                ),
            });
        }
        manifest.flight = Some(writing.moment.clone());
        Some(manifest)
    }
}

impl Writing {
    /// A guest's side as far as it is kept.
    fn fit(&self, side: &mut GuestSide) {
        side.gaps.retain(|gap| gap.to_host_ns >= self.from_ns);
        let Some(begin) = self.begins.get(&side.file) else {
            return;
        };
        if let Some(first_ns) = begin.first_ns {
            let later_ns = first_ns.saturating_sub(side.start_mono_ns);
            side.start_mono_ns = side.start_mono_ns.saturating_add(later_ns);
            side.start_unix_ns = side.start_unix_ns.saturating_add(later_ns);
            if side.live_mono_ns > 0 {
                side.live_mono_ns = side.live_mono_ns.max(first_ns);
            }
        }
        if let Some(to_ns) = begin.crowded_out_ns.filter(|ns| *ns > self.from_ns) {
            side.gaps.insert(
                0,
                Gap {
                    from_host_ns: self.from_ns,
                    to_host_ns: to_ns,
                    reason: "the flight recorder had no more room for it".to_owned(),
                },
            );
        }
    }
}

/// Watches the condition from here on, where it is new: when the recording is live, and when the first agent comes or the
/// last one goes, because a layer without a name is the outermost one that is recorded.
pub(super) fn watch(recorder: &mut Recorder, now_ns: u64) {
    let Some(flying) = &mut recorder.flying else {
        return;
    };
    let Some(until) = &flying.flight.until else {
        return;
    };
    let manifest = &recorder.manifest.value;
    let has_agent = recorder.sides.n_live() > 0;
    let has_qemu = manifest.probes.iter().any(|probe| {
        probe.source == nestrace_abi::Source::Qemu.name() && probe.name.contains("acct")
    });
    let has_guests = !manifest.topology.guests.is_empty() && manifest.detail != "light";
    let outermost = Flight::outermost(has_agent, has_qemu, has_guests);
    let understood = until.clone().with_outermost(outermost).to_string();
    if flying.expression.as_ref() == Some(&understood) {
        return;
    }
    let stacked = |device: &&nestrace_trace::manifest::Device| device.beneath.is_empty();
    let devices = manifest.topology.devices.iter().filter(stacked);
    let lowest: BTreeSet<u32> = devices.map(|device| device.dev).collect();
    flying.rings.watch(until, outermost, lowest, now_ns);
    flying.news.push(format!("waiting for {understood}"));
    flying.expression = Some(understood);
}

/// Every half second.
pub(super) fn look(recorder: &mut Recorder, now_ns: u64) {
    if recorder
        .flying
        .as_ref()
        .is_some_and(|flying| flying.expression.is_some())
    {
        watch(recorder, now_ns);
    }
    let losses = recorder.losses();
    let Some(flying) = &mut recorder.flying else {
        return;
    };
    let before_ns = nanoseconds(flying.flight.before + KEPT_LONGER);
    let oldest_ns = now_ns.saturating_sub(before_ns);
    flying.losses.push_back((now_ns, losses));
    // One from before is what had been lost then.
    while flying
        .losses
        .get(1)
        .is_some_and(|(at_ns, _)| *at_ns < oldest_ns)
    {
        flying.losses.pop_front();
    }
    let manifest = &mut recorder.manifest.value;
    if manifest.notices.len() > MANY_NOTICES {
        let began_ns = manifest.live_mono_ns;
        let is_of_now = |notice: &Notice| notice.mono_ns >= oldest_ns || notice.mono_ns <= began_ns;
        manifest.notices.retain(is_of_now);
    }
}

/// Keeps what is new, writes what is to be written. Says when the last bundle has all that it is to have.
pub(super) fn tick(recorder: &mut Recorder, now_ns: u64) -> Option<End> {
    let flying = recorder.flying.as_mut()?;
    let kept_ns = nanoseconds(flying.flight.before + KEPT_LONGER);
    flying.rings.advance(now_ns, now_ns.saturating_sub(kept_ns));
    if let Some((cause, readings)) = flying.cause(now_ns) {
        begin_bundle(recorder, cause, &readings, now_ns);
    }
    let is_last = recorder.flying.as_ref()?.later.is_empty();
    if let Err(why) = go_on(recorder, now_ns, is_last) {
        let path = recorder.dir.path().display().to_string();
        let flying = recorder.flying.as_mut()?;
        let message = format!("cannot write {path}: {why}");
        flying.news.push(message.clone());
        flying.failed = Some(message);
        if is_last {
            return Some(End::Flown);
        }
        if let Some(writing) = &flying.writing {
            writing.copy.stop();
        }
        next(recorder, now_ns);
    }
    let writing = recorder.flying.as_ref()?.writing.as_ref()?;
    (is_last && writing.is_full_or_done(&recorder.flying.as_ref()?.host, now_ns))
        .then_some(End::Flown)
}

impl Writing {
    fn is_full_or_done(&self, host: &StreamRing, now_ns: u64) -> bool {
        now_ns >= self.until_ns || host.rows_refused() > 0 || self.copy.sums().failed.is_some()
    }
}

/// The moment has come: what is kept is copied, and what comes.
fn begin_bundle(recorder: &mut Recorder, cause: FlightCause, readings: &[Reading], now_ns: u64) {
    recorder.flush();
    let live_ns = recorder.manifest.value.live_mono_ns;
    let Some(flying) = &mut recorder.flying else {
        return;
    };
    let flight = &flying.flight;
    let before_ns = nanoseconds(flight.before);
    let asked_ns = now_ns.saturating_sub(before_ns).max(live_ns);
    let oldest = flying.host.oldest().map(|(_, first_ns)| first_ns);
    let was_full = flying.host.crowded_out_ns().is_some_and(|ns| ns > asked_ns);
    let longest_ns = now_ns.saturating_sub(nanoseconds(flight.before + 2 * KEPT_LONGER));
    // A time without events was watched too; one from which they had to go was not.
    let from_ns = match oldest {
        Some(first_ns) if was_full || first_ns < asked_ns => first_ns,
        _ => asked_ns,
    };
    let from_ns = from_ns.max(longest_ns).max(live_ns).min(now_ns);
    let begins = flying
        .rings
        .all()
        .into_iter()
        .filter(|it| it.guest.is_some());
    let begins = begins.map(|stream| {
        let begin = Begin {
            first_ns: stream.ring.oldest().map(|(_, first_ns)| first_ns),
            crowded_out_ns: stream.ring.crowded_out_ns(),
        };
        (stream.file, begin)
    });
    let begins = begins.collect();
    let copy = match Copy::start(&flying.rings, recorder.dir.held()) {
        Ok(copy) => copy,
        Err(error) => {
            let message = format!("cannot write {}: {error}", recorder.dir.path().display());
            flying.news.push(message.clone());
            flying.failed = Some(message);
            return;
        }
    };
    let why = why(cause, readings);
    flying.news.push(format!(
        "{why}: writing the last {:.1} s",
        seconds(now_ns, from_ns)
    ));
    let notice = was_full.then(|| Notice {
        mono_ns: now_ns,
        what: "flight_memory".to_owned(),
        message: format!(
            "the flight recorder's memory was full: it kept {:.1} s before the moment, not {:.1} s; a larger --max-size \
             keeps more",
            seconds(now_ns, from_ns),
            flight.before.as_secs_f64(),
        ),
    });
    let moment = Moment {
        cause,
        mono_ns: now_ns,
        before_ns,
        after_ns: nanoseconds(flight.after),
        expression: flying.expression.clone(),
        readings: readings.iter().map(of_manifest).collect(),
        lost_before: flying.lost_before(from_ns),
    };
    let start_unix_ns =
        clock::realtime_ns().saturating_sub(clock::monotonic_ns().saturating_sub(from_ns));
    flying.writing = Some(Writing {
        copy,
        moment,
        from_ns,
        start_unix_ns,
        until_ns: now_ns.saturating_add(nanoseconds(flight.after)),
        has_appeared: false,
        closing_ns: None,
        has_maps: false,
        begins,
        notice,
    });
}

fn seconds(now_ns: u64, from_ns: u64) -> f64 {
    now_ns.saturating_sub(from_ns) as f64 / 1e9
}

/// The recorder's manifest becomes that of the last bundle.
pub(super) fn complete(recorder: &mut Recorder) {
    let losses = recorder.manifest.value.losses.clone();
    let flying = recorder.flying.as_ref();
    if let Some(last) = flying.and_then(|it| it.manifest(&recorder.manifest.value, losses)) {
        recorder.manifest.value = last;
    }
}

/// The bundles that were written.
pub(super) fn written(recorder: &Recorder, has_last: bool) -> Option<Vec<PathBuf>> {
    let flying = recorder.flying.as_ref()?;
    let last = has_last.then(|| recorder.dir.path().to_owned());
    Some(flying.written.iter().cloned().chain(last).collect())
}

/// Why a bundle could not be written, if so.
pub(super) fn failed(recorder: &Recorder) -> Option<String> {
    recorder.flying.as_ref()?.failed.clone()
}
