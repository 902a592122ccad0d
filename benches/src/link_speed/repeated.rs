//! A long recording out of a short real one: the same events again and again, each time later and at
//! other addresses.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;

use anyhow::{Context, ensure};
use nestrace_trace::bundle::{HOST_STREAM, MANIFEST, index_of};
use nestrace_trace::{Event, Kind, Manifest, Source, StreamReader, StreamWriter};

/// Bits of a kernel or user address that make another address of it; the distances between the
/// parts of an object, which the analyzer goes by, stay as they are.
const ADDRESS_SHIFT: u32 = 40;
/// So many repetitions have addresses of their own.
const MAX_REPETITIONS: u64 = 1 << 15;
/// Rest between two repetitions.
const REST_NS: u64 = 50_000_000;

/// A whole recording in memory.
pub struct Original {
    manifest: Manifest,
    /// File and events of each stream, in the order of time.
    streams: Vec<(String, Vec<Event>)>,
}

impl Original {
    /// Reads a bundle.
    pub fn read(bundle: &Path) -> anyhow::Result<Self> {
        let path = bundle.join(MANIFEST);
        let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let (manifest, _) = Manifest::from_slice(&text).context("understand the manifest")?;
        let lost: u64 = manifest.losses.iter().map(|loss| loss.events).sum();
        ensure!(
            lost == 0,
            "repeat a recording without losses: {lost} were lost"
        );
        let read = |file: &str| Ok((file.to_owned(), events(bundle, file)?));
        let files = manifest.streams.iter().map(|stream| stream.file.as_str());
        let streams = files.map(read).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { manifest, streams })
    }

    /// The same without what an agent records of calls.
    pub fn without_calls(&self) -> Self {
        let is_left = |event: &&Event| {
            let source = event.kind().map(Kind::source);
            !matches!(source, Some(Source::File | Source::HostFs))
        };
        let streams = self.streams.iter().map(|(file, events)| {
            let left = match file == HOST_STREAM {
                true => events.clone(),
                false => events.iter().filter(is_left).copied().collect(),
            };
            (file.clone(), left)
        });
        Self {
            manifest: self.manifest.clone(),
            streams: streams.collect(),
        }
    }

    /// Events of all streams.
    pub fn events(&self) -> u64 {
        self.streams
            .iter()
            .map(|(_, events)| events.len() as u64)
            .sum()
    }

    /// From the first event of any repetition to the first of the next.
    fn period_ns(&self) -> u64 {
        let spans = self.streams.iter().filter_map(|(_, events)| {
            let (first, last) = (events.first()?, events.last()?);
            Some(last.ts_ns - first.ts_ns)
        });
        spans.max().unwrap_or(0) + REST_NS
    }

    /// Writes a bundle of at least `n_events`; says how often the original is in it.
    pub fn write_repeated(&self, bundle: &Path, n_events: u64) -> anyhow::Result<u64> {
        let repetitions = n_events.div_ceil(self.events().max(1));
        ensure!(
            repetitions < MAX_REPETITIONS,
            "make {n_events} events of a recording of {}: take a longer one",
            self.events()
        );
        std::fs::create_dir(bundle).with_context(|| format!("make {}", bundle.display()))?;
        let period_ns = self.period_ns();
        for (file, events) in &self.streams {
            let create = |name: &str| File::create(bundle.join(name)).map(BufWriter::new);
            let (stream, index) = (create(file)?, create(&index_of(file))?);
            let mut writer = StreamWriter::new(stream, index)?;
            for repetition in 0..repetitions {
                for event in events {
                    if let Some(event) = repeated(event, repetition, period_ns) {
                        writer.push(&event)?;
                    }
                }
            }
            writer.finish().with_context(|| format!("write {file}"))?;
        }
        let later_ns = (repetitions - 1) * period_ns;
        let mut manifest = self.manifest.clone();
        manifest.end_mono_ns += later_ns;
        for side in &mut manifest.guest_sides {
            side.end_mono_ns += later_ns;
        }
        let text = serde_json::to_vec(&manifest).context("write the manifest")?;
        std::fs::write(bundle.join(MANIFEST), text).context("write the manifest")?;
        Ok(repetitions)
    }
}

fn events(bundle: &Path, file: &str) -> anyhow::Result<Vec<Event>> {
    let open = |name: &str| {
        let path = bundle.join(name);
        File::open(&path)
            .map(BufReader::new)
            .with_context(|| format!("open {}", path.display()))
    };
    let mut reader = StreamReader::new(open(file)?, Some(open(&index_of(file))?))?;
    let mut events: Vec<Event> = reader.events().collect();
    ensure!(
        reader.diagnostics().is_empty(),
        "read {file}: {:?}",
        reader.diagnostics()
    );
    events.sort_by_key(|event| event.ts_ns);
    Ok(events)
}

/// An event of a repetition. Thread names and losses occur only in the first one.
fn repeated(event: &Event, repetition: u64, period_ns: u64) -> Option<Event> {
    if repetition == 0 {
        return Some(*event);
    }
    let kind = event.kind()?;
    let mut event = *event;
    event.ts_ns += repetition * period_ns;
    let moved = |address: &mut u64| {
        if *address != 0 {
            *address ^= repetition << ADDRESS_SHIFT;
        }
    };
    moved(&mut event.iocb);
    moved(&mut event.origin);
    match kind {
        Kind::Thread | Kind::Loss => return None,
        // When an msync began.
        Kind::SyscallEnter if event.related != 0 => event.related += repetition * period_ns,
        // A file descriptor, a transaction, a log sequence number; nothing at all.
        Kind::SyscallEnter
        | Kind::SyscallExit
        | Kind::JournalCommitStart
        | Kind::JournalCommitPhase
        | Kind::JournalCommitEnd
        | Kind::LogForce
        | Kind::CommitWait
        | Kind::LogSpace
        | Kind::Plug
        | Kind::Unplug => {}
        Kind::Link => {
            moved(&mut event.object);
            moved(&mut event.related);
            moved(&mut event.offset);
            moved(&mut event.bytes);
        }
        Kind::Queue
        | Kind::Split
        | Kind::Issue
        | Kind::UringSubmit
        | Kind::UringComplete
        | Kind::RpcBegin => {
            moved(&mut event.object);
            moved(&mut event.related);
        }
        Kind::CallDone => event.related += repetition * period_ns,
        Kind::RpcEnd => {
            moved(&mut event.object);
            if event.related != 0 {
                event.related += repetition * period_ns;
            }
        }
        Kind::RequestDone => {
            moved(&mut event.object);
            event.related += repetition * period_ns;
        }
        // `related` is a count of bytes, or an object of QEMU that lives as long as the guest.
        _ => moved(&mut event.object),
    }
    Some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_calls_the_host_is_whole() {
        let events = |kinds: &[Kind]| -> Vec<Event> {
            let of = |kind: &Kind| Event {
                kind: *kind as u8,
                ..Event::default()
            };
            kinds.iter().map(of).collect()
        };
        let all = [
            Kind::Thread,
            Kind::SyscallEnter,
            Kind::Queue,
            Kind::SyscallExit,
            Kind::JournalCommitStart,
        ];
        let streams = [HOST_STREAM, "guest-a.arrows"].map(|file| (file.to_owned(), events(&all)));
        let whole = Original {
            manifest: Manifest::default(),
            streams: streams.to_vec(),
        };
        let [(_, host), (_, guest)] = &whole.without_calls().streams[..] else {
            panic!("two streams");
        };
        assert_eq!(*host, events(&all));
        assert_eq!(*guest, events(&[Kind::Thread, Kind::Queue]));
    }

    #[test]
    fn a_repetition_is_later_and_elsewhere() {
        let event = Event {
            ts_ns: 10,
            kind: Kind::Complete as u8,
            object: 0xffff_8880_1234_5600,
            related: 4096,
            ..Event::default()
        };
        assert_eq!(repeated(&event, 0, 100), Some(event));
        let second = repeated(&event, 1, 100).unwrap();
        assert_eq!((second.ts_ns, second.related), (110, 4096));
        assert_eq!(second.object, 0xffff_8980_1234_5600);
        let name = Event {
            kind: Kind::Thread as u8,
            ..event
        };
        assert_eq!(repeated(&name, 1, 100), None);
    }
}
