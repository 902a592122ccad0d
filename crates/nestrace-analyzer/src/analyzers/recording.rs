//! What is said of the recording itself: streams, losses, refusals.

use nestrace_abi::Source;
use nestrace_trace::Damage;
use nestrace_trace::manifest::{GuestSide, Manifest, Refused, State};

use crate::link::clock::{UNCORRECTED_PPM, corrections_ppm};
use crate::link::guest_side::Session;
use crate::result::analysis::{RefusedProbe, SourceLoss, Trace, TraceSource, UnreadStream};
use crate::result::loss_counts::LossCounts;
use crate::result::side::Side;
use crate::result::units;

/// No recorder is that late with an event.
pub(crate) const FAR_NS: u64 = 60 * 1_000_000_000;

/// What reading a stream has counted.
#[derive(Clone, Debug)]
pub(crate) struct StreamCounts {
    /// `None` for the host.
    pub guest: Option<String>,
    /// File of the stream; empty for the host.
    pub file: String,
    pub events: u64,
    pub unknown_events: u64,
    /// Events that no kernel writes, and that were not used.
    pub implausible: u64,
    /// Time of the first event that was used, on the machine's own clock; `None` without any.
    pub first_ns: Option<u64>,
    /// Time of the last.
    pub last_ns: u64,
    /// By source, as the stream itself counts them.
    pub losses: LossCounts,
}

impl StreamCounts {
    /// What a guest's session has counted.
    pub(crate) fn of_session(session: &Session) -> Self {
        Self {
            guest: Some(session.side.guest.clone()),
            file: session.side.file.clone(),
            events: session.events,
            unknown_events: session.unknown_events,
            implausible: session.implausible,
            first_ns: session.first_ns,
            last_ns: session.last_ns,
            losses: session.losses,
        }
    }
}

/// `trace`, but for what the caller knows: path, duration and whether it was cut.
pub(crate) fn trace(manifest: &Manifest, streams: &[StreamCounts]) -> Trace {
    let told = streams.iter();
    let told = told.map(|stream| (stream.guest.as_deref(), stream.losses));
    let losses = losses(manifest, told);
    let refused = |probe: &Refused, guest: Option<&String>| RefusedProbe {
        name: probe.name.clone(),
        source: probe.source.clone(),
        reason: probe.reason.clone(),
        cost: probe.cost.clone(),
        guest: probe.guest.clone().or_else(|| guest.cloned()),
    };
    let of_host = manifest.refused.iter().map(|probe| refused(probe, None));
    Trace {
        start_unix_ns: Some(manifest.start_unix_ns).filter(|unix_ns| *unix_ns > 0),
        events: streams.iter().map(|stream| stream.events).sum(),
        lost: losses
            .iter()
            .filter(|loss| counts_events(loss))
            .map(|loss| loss.events)
            // A guest that says to have lost everything must not turn the host's losses into none.
            .fold(0, u64::saturating_add),
        // A repaired one is whole again, and lacks what it lacked.
        truncated: manifest.state != State::Complete,
        closed: closed(manifest),
        sources: sources(manifest, streams, &losses),
        detail: known(&manifest.detail),
        end_reason: known(&manifest.end_reason),
        refused: of_host.collect(),
        cut_guests: cut_guests(manifest),
        notices: notices(manifest, streams),
        unknown_events: streams.iter().map(|stream| stream.unknown_events).sum(),
        losses,
        ..Trace::default()
    }
}

/// What a manifest does not say is empty there.
fn known(text: &str) -> Option<String> {
    Some(text)
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

/// The recorder writes the start first, and the reason when it closes a recording: both stay when it is repaired.
fn closed(manifest: &Manifest) -> Option<bool> {
    let closed = manifest.state == State::Complete || !manifest.end_reason.is_empty();
    (closed || manifest.start_unix_ns > 0).then_some(closed)
}

/// Guests with a stream that was cut before it was repaired or imported: the new one is whole, and lacks what it
/// lacked. Without names it may be any guest's.
fn cut_guests(manifest: &Manifest) -> Vec<String> {
    let notices = manifest.notices.iter();
    let of_damage = notices.filter(|notice| notice.what == GUEST_STREAM_DAMAGED);
    let guests = of_damage.map(|notice| {
        let mut sides = manifest.guest_sides.iter();
        let named = sides.find(|side| notice.message.contains(&format!(" inside {} ", side.guest)));
        named.map_or_else(|| String::from("a guest"), |side| side.guest.clone())
    });
    let mut guests: Vec<String> = guests.collect();
    guests.sort();
    guests.dedup();
    guests
}

/// The word of a notice that a guest's stream was cut, which `nestrace repair` and `nestrace import` write.
pub const GUEST_STREAM_DAMAGED: &str = "guest_stream_damaged";

/// What the reader of a recording could not give to the analyzer.
#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    /// With the guest that recorded it.
    pub damage: Vec<(Option<String>, Damage)>,
    pub unread: Vec<UnreadStream>,
    /// Events of further devices than are distinguished.
    pub left_out: u64,
}

impl Unreadable {
    /// Adds it to what is said of the recording; the analyzer itself has `ignored` so many events.
    pub(crate) fn add_to(&self, trace: &mut Trace, manifest: &Manifest, ignored: u64) {
        add_damage(trace, manifest, &self.damage);
        add_unread(trace, &self.unread);
        add_left_out(trace, self.left_out.saturating_add(ignored));
    }
}

/// Adds what could not be read. That a stream breaks off where the disk was full is no news: what could not be written
/// was counted. Events that were written and are lost were damaged later.
pub(crate) fn add_damage(
    trace: &mut Trace,
    manifest: &Manifest,
    damaged: &[(Option<String>, Damage)],
) {
    let counted = |guest: &Option<String>| manifest.disk_was_full(guest.as_deref());
    for (guest, damage) in damaged {
        let is_cut = damage.cut && !counted(guest);
        add_lost_rows(trace, "damaged", guest.as_deref(), damage.rows_lost);
        // A guest's stream that breaks off says nothing about the host's.
        match guest {
            None => trace.truncated |= is_cut,
            Some(guest) if is_cut => {
                if !trace.cut_guests.contains(guest) {
                    trace.cut_guests.push(guest.clone());
                }
                trace.notices.push(format!(
                    "what was recorded inside {guest} is damaged or was not closed"
                ));
            }
            Some(_) => {}
        }
    }
}

/// Adds events of devices that are not distinguished.
pub(crate) fn add_left_out(trace: &mut Trace, events: u64) {
    add_lost_rows(trace, LEFT_OUT, None, events);
}

/// The `source` of events that were recorded and are of more devices than are distinguished.
pub const LEFT_OUT: &str = "left_out";

/// Adds events that a file held.
fn add_lost_rows(trace: &mut Trace, source: &str, guest: Option<&str>, rows: u64) {
    if rows == 0 {
        return;
    }
    trace.lost = trace.lost.saturating_add(rows);
    trace.losses.push(SourceLoss {
        source: source.to_owned(),
        guest: guest.map(str::to_owned),
        events: rows,
    });
    let sources = trace.sources.iter_mut();
    for source in sources.filter(|source| source.guest.as_deref() == guest) {
        source.lost = source.lost.saturating_add(rows);
    }
}

/// Adds streams of guests that are missing as a whole, however many events they held.
pub(crate) fn add_unread(trace: &mut Trace, unread: &[UnreadStream]) {
    for stream in unread {
        let UnreadStream {
            name,
            guest,
            reason,
            events,
        } = stream;
        trace.truncated = true;
        add_lost_rows(trace, "damaged", Some(guest), events.unwrap_or(0));
        trace.notices.push(format!(
            "what was recorded inside {guest} cannot be read: {name}: {reason}"
        ));
        trace.unread.push(stream.clone());
    }
}

/// Requests too long for the probe are no events.
fn counts_events(loss: &SourceLoss) -> bool {
    loss.source != Source::Walk.name()
}

fn sources(
    manifest: &Manifest,
    streams: &[StreamCounts],
    losses: &[SourceLoss],
) -> Vec<TraceSource> {
    let lost = |guest: Option<&str>| -> u64 {
        let of_guest = losses
            .iter()
            .filter(|loss| counts_events(loss) && loss.guest.as_deref() == guest);
        let events = of_guest.map(|loss| loss.events);
        events.fold(0, u64::saturating_add)
    };
    let events = |side: Side, file: &str| {
        let read = streams.iter().find(|stream| match &stream.guest {
            None => side == Side::Host,
            Some(_) => side == Side::Guest && stream.file == file,
        });
        read.map_or(0, |stream| stream.events)
    };
    let mut sources: Vec<TraceSource> = manifest
        .streams
        .iter()
        .map(|stream| {
            let side = match stream.side.as_str() {
                "host" => Side::Host,
                _ => Side::Guest,
            };
            TraceSource {
                name: stream.file.clone(),
                side,
                guest: stream.guest.clone(),
                backend: known(&stream.backend),
                kernel: known(&stream.kernel),
                events: events(side, &stream.file),
                lost: lost(stream.guest.as_deref()),
            }
        })
        .collect();
    if sources.is_empty() {
        sources.push(TraceSource {
            name: String::from("host"),
            side: Side::Host,
            kernel: known(&manifest.host.kernel),
            events: events(Side::Host, ""),
            lost: lost(None),
            ..TraceSource::default()
        });
    }
    sources
}

/// A stream whose events lie wholly outside of the recording's time: streams of several machines in
/// one folder. What the manifest does not say cannot be held against it.
fn is_of_another(manifest: &Manifest, stream: &StreamCounts) -> bool {
    let (start_ns, end_ns) = match &stream.guest {
        None => (manifest.start_mono_ns, manifest.end_mono_ns),
        Some(_) => {
            let sides = &manifest.guest_sides;
            let side = sides.iter().find(|side| side.file == stream.file);
            side.map_or((0, 0), |side| (side.start_mono_ns, side.end_mono_ns))
        }
    };
    stream.first_ns.is_some_and(|first_ns| {
        start_ns > 0
            && (end_ns > 0 && first_ns > end_ns.saturating_add(FAR_NS)
                || stream.last_ns.saturating_add(FAR_NS) < start_ns)
    })
}

/// The recorder's own, and what is said at the side of each guest.
fn notices(manifest: &Manifest, streams: &[StreamCounts]) -> Vec<String> {
    let mut notices: Vec<String> = manifest
        .notices
        .iter()
        .map(|notice| notice.message.clone())
        .collect();
    for stream in streams.iter().filter(|stream| stream.implausible > 0) {
        let events = units::of(stream.implausible, "event", "events");
        notices.push(match &stream.guest {
            Some(guest) => {
                format!("{events} from inside {guest} that no kernel can have written: not used")
            }
            None => format!(
                "{events} of the host with a size or place that nothing has: not used, the recording is damaged"
            ),
        });
    }
    for stream in streams
        .iter()
        .filter(|stream| is_of_another(manifest, stream))
    {
        notices.push(format!(
            "what was recorded {} was recorded at another time than the manifest says: it may be of \
             another machine",
            match &stream.guest {
                Some(guest) => format!("inside {guest}"),
                None => String::from("on the host"),
            }
        ));
    }
    for side in &manifest.guest_sides {
        for gap in &side.gaps {
            let after = gap.from_host_ns.saturating_sub(manifest.start_mono_ns) as f64 / 1e9;
            let lasted = gap.to_host_ns.saturating_sub(gap.from_host_ns) as f64 / 1e9;
            notices.push(format!(
                "nothing was heard from inside {} for {lasted:.1} s, {after:.1} s after the start: {}",
                side.guest, gap.reason
            ));
        }
        for refused in &side.refused {
            notices.push(format!(
                "refused {} times from inside {}: {}",
                refused.times, side.guest, refused.reason
            ));
        }
        notices.extend(corrected(manifest, side));
        // Without its block layer a guest cannot be followed; the rest is not needed for that.
        let of_block = |probe: &&Refused| probe.source == Source::Block.name();
        for probe in side.probes_refused.iter().filter(of_block) {
            notices.push(format!(
                "not attached inside {}: {} ({}); without it: {}",
                side.guest, probe.name, probe.reason, probe.cost
            ));
        }
    }
    notices
}

/// Clocks that NTP bends have a wider bound: reported where that is more than half of it.
fn corrected(manifest: &Manifest, side: &GuestSide) -> Option<String> {
    let (host_ppm, guest_ppm) = corrections_ppm(manifest, side);
    (host_ppm + guest_ppm > UNCORRECTED_PPM).then(|| {
        format!(
            "NTP corrected the clock inside {} by up to {} ppm and the host's by up to {} ppm: the clock's bound allows \
             for that and is wider",
            side.guest,
            units::count(guest_ppm.into()),
            units::count(host_ppm.into()),
        )
    })
}

/// What a flight recorder had lost before the recording begins.
fn lost_before(manifest: &Manifest, source: Source, guest: Option<&str>) -> u64 {
    let lost = manifest
        .flight
        .iter()
        .flat_map(|flight| &flight.lost_before);
    let same = lost.filter(|loss| loss.source == source.name() && loss.guest.as_deref() == guest);
    same.map(|loss| loss.events).fold(0, u64::saturating_add)
}

/// What was lost: the manifest's losses; after a crash those that the streams tell (of the host: `None`, or of a
/// guest), which are older.
#[must_use]
pub fn losses<'a>(
    manifest: &Manifest,
    told: impl IntoIterator<Item = (Option<&'a str>, LossCounts)>,
) -> Vec<SourceLoss> {
    let mut losses: Vec<SourceLoss> = manifest
        .losses
        .iter()
        .map(|loss| SourceLoss {
            source: loss.source.clone(),
            guest: loss.guest.clone(),
            events: loss.events,
        })
        .collect();
    for (guest, counts) in told {
        for (source, total) in Source::ALL.iter().zip(counts.totals()) {
            let total = total.saturating_sub(lost_before(manifest, *source, guest));
            let same = |loss: &&mut SourceLoss| {
                loss.source == source.name() && loss.guest.as_deref() == guest
            };
            match losses.iter_mut().find(same) {
                Some(loss) => loss.events = loss.events.max(total),
                None => losses.push(SourceLoss {
                    source: source.name().to_owned(),
                    guest: guest.map(str::to_owned),
                    events: total,
                }),
            }
        }
    }
    losses.retain(|loss| loss.events > 0);
    // What was lost by damage stands last, found now or written down by `nestrace repair`.
    losses.sort_by_key(|loss| loss.source == "damaged");
    losses
}
