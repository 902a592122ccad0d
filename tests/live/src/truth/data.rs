//! Links of stamped writes against the data.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use nestrace_rig::stack::ImageFormat;
use nestrace_stamp::{Deed, SECTOR_BYTES, Stamp, Write};
use nestrace_trace::flags::op;
use nestrace_trace::{Event, Kind};
use xtask::case::Case;

use super::scene::{Backend, DISK_BYTES, Functions, Scene, Seen, Writer};
use super::stories::{Span, Story};
use super::system_calls::WriteCall;
use super::{alone, naive};
use crate::analysis::entry;
use crate::direct_io_link::FileId;
use crate::with_agents::chains::{self, Subject};
use crate::without_functions;

/// A write of the guest, and what the recording says of its bio.
#[derive(Clone, Copy, Debug)]
pub struct StampedBio {
    /// The write's serial number.
    pub serial: u64,
    /// Where.
    pub address: u64,
    /// When it was queued, on the host's clock as the analysis has it.
    pub queued_ns: u64,
}

/// A system call of QEMU as the recording and strace both have it.
#[derive(Clone, Copy, Debug)]
pub struct SeenCall<'a> {
    /// Its begin in the recording.
    pub begin_ns: u64,
    /// Where in the file, bytes.
    pub offset: u64,
    /// What it wrote.
    pub call: &'a WriteCall,
}

/// Records a run of `stamp-writer` and checks every link.
pub fn check(case: &mut Case, scene: &Scene<'_>, writer: &Writer) -> anyhow::Result<()> {
    let (seen, writes, calls) = scene.write_stamps(writer)?;
    let least = least_linked(case, scene, &seen, writer)?;
    everything_else(case, scene, &seen, least)?;
    seen.flushes_end_by_name(case, scene.backend());
    let bios = bios_of_writes(case, &seen.guest_events, &writes)?;
    let calls = calls_of_events(case, scene, &seen, &calls)?;
    let by_begin = Calls::new(&calls);
    let (mut right, mut linked) = (0_u64, Vec::new());
    for story in &seen.stories {
        let Some(write) = bios.get(&story.io) else {
            continue;
        };
        let file_ios = stamped_calls(story, &seen, &by_begin);
        let serials: Vec<Option<u64>> = file_ios
            .iter()
            .map(|(_, call)| call.serial_at(write.address))
            .collect();
        let good =
            !serials.is_empty() && serials.iter().all(|serial| *serial == Some(write.serial));
        right += u64::from(good);
        if !good {
            case.holds(
                "a link of a stamped write",
                false,
                &format!("write {write:?} is linked to the data of {serials:?}: {file_ios:?}"),
            );
        }
        let ends = file_ios
            .iter()
            .map(|(span, _)| (story.begin_of(span), end_of(story, span)));
        linked.extend(ends.map(|(begin_ns, end_ns)| Linked {
            serial: write.serial,
            address: write.address,
            begin_ns,
            end_ns,
        }));
    }
    case.figure(format!(
        "{right} of {} stamped writes rightly linked",
        bios.len()
    ));
    case.holds(
        "stamped writes that are linked",
        right as f64 >= least * bios.len() as f64,
        &format!("{right} of {}", bios.len()),
    );
    if scene.stack()?.format == ImageFormat::Raw {
        let told: HashSet<u64> = seen.stories.iter().map(|story| story.io).collect();
        let untold = bios.iter().filter(|(io, _)| !told.contains(io));
        let untold: HashSet<u64> = untold.map(|(_, write)| write.address).collect();
        image(case, scene.image()?, &linked, &untold)?;
    }
    naive_pairings(case, &seen, &bios, &calls);
    Ok(())
}

/// What part of the guest's bios has to be linked.
fn least_linked(
    case: &mut Case,
    scene: &Scene<'_>,
    seen: &Seen,
    writer: &Writer,
) -> anyhow::Result<f64> {
    if let Some(least) = writer.linked {
        return Ok(least);
    }
    let clocks = seen.measured.analysis["clocks"].as_array();
    let bounds = clocks.into_iter().flatten();
    let widest = bounds.filter_map(|clock| clock["error_bound_ns"]["max"].as_u64());
    // The band is as wide on either side.
    let room_ns = 2 * widest.max().context("find the clock's bound")?;
    let (bios, mut beside) = alone::bios_and_those_beside_an_equal(&seen.guest_events, room_ns);
    if scene.backend() == Backend::Blktrace {
        // Nothing names a bio from its Q on.
        beside += alone::bios_equal_from_their_q_on(&seen.guest_events);
    }
    case.figure(format!("{beside} of {bios} bios beside an equal one"));
    case.holds("bios that were alone", beside < bios, &beside.to_string());
    Ok(1.0 - beside as f64 / bios as f64)
}

/// What holds for any recording with an agent.
fn everything_else(
    case: &mut Case,
    scene: &Scene<'_>,
    seen: &Seen,
    least_linked: f64,
) -> anyhow::Result<()> {
    let analysis = &seen.measured.analysis;
    seen.measured.is_whole(case)?;
    let subject = Subject {
        guest: scene.guest(),
        disk: super::scene::DISK,
        device: scene.device(),
        linked: least_linked,
    };
    let counts = seen.measured.truth.first().context("find the counts")?;
    match scene.functions() {
        Functions::Exported => chains::disk(case, analysis, &subject, counts)?,
        Functions::None => {
            let keys = [("guest", subject.guest.name()), ("disk", subject.disk)];
            let chains = entry(analysis, "chains", &keys)?;
            without_functions::disk(case, analysis, chains, &subject, counts)?;
        }
    }
    chains::clock(case, analysis, scene.guest().name())?;
    let keys = [
        ("guest", scene.guest().name()),
        ("disk", super::scene::DISK),
    ];
    let linked = entry(analysis, "chains", &keys)?["linked"].as_u64();
    case.equal(
        "stories told",
        seen.stories.len() as u64,
        linked.unwrap_or(0),
    );
    for story in &seen.stories {
        let sum: u64 = story.segments.iter().map(|segment| segment.ns).sum();
        if sum != story.q2c_ns {
            let figures = format!("{sum} against {} of bio {}", story.q2c_ns, story.io);
            case.holds("segments of a story sum to its latency", false, &figures);
        }
    }
    Ok(())
}

/// The write of each of the guest's bios: a thread's k-th bio is its k-th write.
fn bios_of_writes(
    case: &mut Case,
    events: &[Event],
    writes: &[Write],
) -> anyhow::Result<BTreeMap<u64, Write>> {
    let mut of_thread: HashMap<u32, std::vec::IntoIter<Write>> = HashMap::new();
    for write in writes {
        of_thread.entry(write.tid).or_default();
    }
    for (tid, left) in &mut of_thread {
        let own = writes.iter().filter(|write| write.tid == *tid).copied();
        *left = own.collect::<Vec<_>>().into_iter();
    }
    let mut bios = BTreeMap::new();
    let queued = events
        .iter()
        .filter(|event| event.kind() == Some(Kind::Queue));
    let mut strange = 0_u64;
    for (index, event) in queued.enumerate() {
        let Some(left) = of_thread.get_mut(&event.tid) else {
            continue;
        };
        match left.next() {
            Some(write) if write.deed == Deed::Flush && event.bytes == 0 => {}
            Some(write) if (write.address, write.bytes) == (event.offset, event.bytes) => {
                bios.insert(index as u64 + 1, write);
            }
            _ => strange += 1,
        }
    }
    let left: usize = of_thread.values().map(ExactSizeIterator::len).sum();
    case.equal("bios that are not what the writer wrote", strange, 0);
    case.equal("writes without a bio", left, 0);
    anyhow::ensure!(!bios.is_empty(), "find the bios of stamped writes");
    Ok(bios)
}

/// QEMU's writes to the image in the recording and in strace's file: a thread's k-th is its k-th.
fn calls_of_events<'a>(
    case: &mut Case,
    scene: &Scene<'_>,
    seen: &Seen,
    calls: &'a [WriteCall],
) -> anyhow::Result<Vec<SeenCall<'a>>> {
    let file = FileId::of(scene.image()?)?;
    let mut of_thread: HashMap<u32, Vec<&WriteCall>> = HashMap::new();
    for call in calls.iter().rev() {
        of_thread.entry(call.tid).or_default().push(call);
    }
    let is_write = |event: &&Event| {
        event.kind() == Some(Kind::SyscallEnter) && event.sub == op::WRITE && file.owns(event)
    };
    let mut both = Vec::new();
    let mut missing = 0_u64;
    for event in seen.host_events.iter().filter(is_write) {
        match of_thread.get_mut(&event.tid).and_then(Vec::pop) {
            Some(call) => both.push(SeenCall {
                begin_ns: event.ts_ns,
                offset: event.offset,
                call,
            }),
            None => missing += 1,
        }
    }
    let left: usize = of_thread.values().map(Vec::len).sum();
    case.equal("writes of QEMU that strace has not", missing, 0);
    case.equal("writes of QEMU that only strace has", left, 0);
    Ok(both)
}

/// System calls by their begin. Two of two threads may begin in the same nanosecond: their places tell them.
struct Calls<'a>(HashMap<u64, Vec<SeenCall<'a>>>);

impl<'a> Calls<'a> {
    fn new(calls: &[SeenCall<'a>]) -> Self {
        let mut by_begin: HashMap<u64, Vec<SeenCall<'a>>> = HashMap::new();
        for call in calls {
            by_begin.entry(call.begin_ns).or_default().push(*call);
        }
        Self(by_begin)
    }

    fn of(&self, begin_ns: u64, offset: u64) -> Option<&'a WriteCall> {
        let mut calls = self.0.get(&begin_ns)?.iter();
        Some(calls.find(|seen| seen.offset == offset)?.call)
    }
}

/// The file I/Os of an I/O trace that wrote stamped data.
fn stamped_calls<'s, 'c>(
    story: &'s Story,
    seen: &Seen,
    by_begin: &Calls<'c>,
) -> Vec<(&'s Span, &'c WriteCall)> {
    let begin = |span: &Span| seen.manifest.start_mono_ns + story.begin_of(span);
    let file_ios = story.tree.of_layer("file_io").into_iter();
    file_ios
        .filter_map(|span| Some((span, by_begin.of(begin(span), span.offset)?)))
        .filter(|(_, call)| call.parts.iter().any(Option::is_some))
        .collect()
}

fn end_of(story: &Story, span: &Span) -> u64 {
    story.at_ns.saturating_add_signed(span.to_ns)
}

/// A write that was followed to the image.
struct Linked {
    serial: u64,
    address: u64,
    begin_ns: u64,
    end_ns: u64,
}

/// The image holds at each address a write after whose end no other began there; `untold` are
/// addresses with writes that were not linked.
fn image(
    case: &mut Case,
    path: &Path,
    linked: &[Linked],
    untold: &HashSet<u64>,
) -> anyhow::Result<()> {
    let mut of_address: HashMap<u64, Vec<&Linked>> = HashMap::new();
    for write in linked {
        of_address.entry(write.address).or_default().push(write);
    }
    let image = File::open(path).context("open the image")?;
    let mut sector = [0; SECTOR_BYTES];
    let (mut agreed, mut asked) = (0_u64, 0_u64);
    let addresses = (0..DISK_BYTES).step_by(4096);
    for address in addresses.filter(|address| !untold.contains(address)) {
        asked += 1;
        image
            .read_exact_at(&mut sector, address)
            .context("read the image")?;
        let stamp = Stamp::read(&sector);
        let writes = of_address.get(&address).map_or(&[][..], Vec::as_slice);
        let last_begin = writes.iter().map(|write| write.begin_ns).max().unwrap_or(0);
        let mut last = writes.iter().filter(|write| write.end_ns >= last_begin);
        let fits = |write: &&Linked| {
            stamp
                == Some(Stamp {
                    address,
                    serial: write.serial,
                })
        };
        agreed += u64::from(last.any(fits));
    }
    case.equal(
        "blocks of the image that hold the last linked write",
        agreed,
        asked,
    );
    case.holds("blocks of the image", asked > 5000, &asked.to_string());
    Ok(())
}

/// This test tells right from wrong: pairing by the nearest time, or by the place alone, fails it.
fn naive_pairings(
    case: &mut Case,
    seen: &Seen,
    bios: &BTreeMap<u64, Write>,
    calls: &[SeenCall<'_>],
) {
    let stamped: Vec<StampedBio> = seen
        .stories
        .iter()
        .filter_map(|story| {
            let write = bios.get(&story.io)?;
            Some(StampedBio {
                serial: write.serial,
                address: write.address,
                queued_ns: seen.manifest.start_mono_ns + story.at_ns,
            })
        })
        .collect();
    let by_time = naive::wrong_by_nearest_time(&stamped, calls);
    let by_place = naive::wrong_by_place(&stamped, calls);
    case.figure(format!(
        "wrong by nearest time {by_time}, by place alone {by_place}"
    ));
    case.holds("pairing by nearest time goes wrong", by_time > 0, "never");
    case.holds("pairing by place alone goes wrong", by_place > 0, "never");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_one_nanosecond_are_told_by_their_place() {
        let written = [1, 2].map(|tid| WriteCall {
            tid,
            parts: Vec::new(),
        });
        let calls: Vec<SeenCall<'_>> = written
            .iter()
            .zip([0, 4096])
            .map(|(call, offset)| SeenCall {
                begin_ns: 100,
                offset,
                call,
            })
            .collect();
        let calls = Calls::new(&calls);
        let tid = |begin_ns, offset| calls.of(begin_ns, offset).map(|call| call.tid);
        assert_eq!((tid(100, 0), tid(100, 4096)), (Some(1), Some(2)));
        assert_eq!((tid(101, 0), tid(100, 8192)), (None, None));
    }
}
