//! From the tree of a call or bio to the bars of each layer.

use std::collections::HashSet;

use nestrace_analyzer::analysis::{StoryLayer, StorySegment, StorySpan, StoryWork};

use super::rows::assign;
use super::{Bar, Lane};
use crate::plots::subject::shown;
use crate::plots::{Hue, Unit};
use crate::units::{percent, share, time};

/// From above.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Layer {
    Program,
    GuestFs,
    GuestQueue,
    Virt,
    Qemu,
    HostFs,
    HostQueue,
    /// Devices that hand I/O on to others, and what they do in files.
    Stack,
    Device,
}

impl Layer {
    const ALL: [Self; 9] = [
        Self::Program,
        Self::GuestFs,
        Self::GuestQueue,
        Self::Virt,
        Self::Qemu,
        Self::HostFs,
        Self::HostQueue,
        Self::Stack,
        Self::Device,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::GuestFs => "guest's file system",
            Self::GuestQueue => "guest's queue",
            Self::Virt => "guest–QEMU, and back",
            Self::Qemu => "QEMU",
            Self::HostFs => "host's file system",
            Self::HostQueue => "host's queue",
            Self::Device => "host's device",
            Self::Stack => "stacked devices",
        }
    }

    const fn hue(self) -> Hue {
        match self {
            Self::Program => Hue::Neutral,
            Self::GuestFs => Hue::GuestFs,
            Self::GuestQueue => Hue::Guest,
            Self::Virt => Hue::Virt,
            Self::Qemu => Hue::Qemu,
            Self::HostFs => Hue::HostFs,
            Self::HostQueue => Hue::HostQueue,
            Self::Stack => Hue::Stack,
            Self::Device => Hue::Device,
        }
    }

    /// What is charged to it.
    const fn segments(self) -> &'static [&'static str] {
        match self {
            Self::Program => &[],
            Self::Stack => &["stack_submit", "stack_between", "stack_complete"],
            Self::GuestFs => &[
                "guest_fs_submit",
                "guest_fs_between",
                "guest_fs_complete",
                "guest_dirty_throttle",
                "guest_journal",
                "guest_page_wait",
            ],
            Self::GuestQueue => &["guest_queue"],
            Self::Virt => &["virt_submit", "virt_complete"],
            Self::Qemu => &["qemu_submit", "qemu_job", "qemu_between", "qemu_complete"],
            Self::HostFs => &["host_fs_submit", "host_fs_between", "host_fs_complete"],
            Self::HostQueue => &["host_queue"],
            Self::Device => &["device", "device_flush", "remote"],
        }
    }
}

/// The layers with bars; `call` is what the program's bar is called.
pub(super) fn of(tree: &StorySpan, segments: &[StorySegment], call: &str) -> Vec<Lane> {
    let mut bars = Bars {
        call,
        of_layer: Default::default(),
        seen: HashSet::new(),
    };
    bars.take(tree);
    let whole_ns: u64 = segments.iter().map(|segment| segment.ns).sum();
    let lanes = Layer::ALL.into_iter().zip(bars.of_layer);
    lanes
        .filter(|(_, bars)| !bars.is_empty())
        .map(|(layer, mut bars)| {
            let charged = segments
                .iter()
                .filter(|it| layer.segments().contains(&it.name));
            let charged_ns: u64 = charged.map(|segment| segment.ns).sum();
            let detail = match layer {
                Layer::Program => String::new(),
                _ if whole_ns == 0 => String::new(),
                _ => format!(
                    "{} · {}",
                    time(charged_ns),
                    percent(share(charged_ns, whole_ns))
                ),
            };
            let n_rows = assign(&mut bars);
            Lane {
                label: layer.label().to_owned(),
                detail,
                hue: layer.hue(),
                n_rows,
                bars,
            }
        })
        .collect()
}

/// What makes a span the same as another: several bios wait for one request, and each has it in its tree.
type Identity<'a> = (StoryLayer, StoryWork, &'a str, u64, u64, i64, i64);

struct Bars<'a> {
    call: &'a str,
    of_layer: [Vec<Bar>; 9],
    seen: HashSet<Identity<'a>>,
}

impl<'a> Bars<'a> {
    fn take(&mut self, span: &'a StorySpan) {
        let identity = (
            span.layer,
            span.what,
            span.place.as_str(),
            span.offset,
            span.bytes,
            span.from_ns,
            span.to_ns,
        );
        if !self.seen.insert(identity) {
            return;
        }
        let layer = match span.layer {
            StoryLayer::Call => Some(Layer::Program),
            StoryLayer::Throttle | StoryLayer::PageWait | StoryLayer::GuestJournal => {
                Some(Layer::GuestFs)
            }
            StoryLayer::GuestBio => Some(Layer::GuestQueue),
            StoryLayer::GuestRequest => Some(Layer::Virt),
            StoryLayer::Qemu | StoryLayer::QemuJob => Some(Layer::Qemu),
            StoryLayer::FileIo => Some(Layer::HostFs),
            StoryLayer::HostBio | StoryLayer::HostRequest | StoryLayer::StackFile
                if span.stacked =>
            {
                Some(Layer::Stack)
            }
            StoryLayer::HostBio => Some(Layer::HostQueue),
            StoryLayer::HostRequest | StoryLayer::Remote | StoryLayer::ServerCall => {
                Some(Layer::Device)
            }
            _ => None,
        };
        if let Some(layer) = layer {
            self.add(span, layer);
        }
        for child in &span.children {
            self.take(child);
        }
    }

    fn add(&mut self, span: &StorySpan, layer: Layer) {
        let (from, to) = (span.from_ns as f64, span.to_ns as f64);
        let own = match layer {
            Layer::Device => vec![(from, to)],
            _ => own(span),
        };
        let (what, detail) = self.words(span);
        let bar = Bar {
            what,
            detail,
            from,
            to: to.max(from),
            own,
            row: 0,
            hue: match span.layer {
                StoryLayer::HostRequest if span.what == StoryWork::Flush => Hue::Flush,
                _ => layer.hue(),
            },
            is_shared: span.shared,
            n_merged: 1,
        };
        // A call has no time of its own: what no layer below takes is the guest's file system's.
        let in_fs = (layer == Layer::Program).then(|| {
            let parts = bar.own.iter();
            parts.map(|(from, to)| Bar {
                what: String::from("file system"),
                detail: String::new(),
                from: *from,
                to: *to,
                own: vec![(*from, *to)],
                hue: Hue::GuestFs,
                ..bar.clone()
            })
        });
        self.of_layer[Layer::GuestFs as usize].extend(in_fs.into_iter().flatten());
        let own = match layer {
            Layer::Program => Vec::new(),
            _ => bar.own.clone(),
        };
        self.of_layer[layer as usize].push(Bar { own, ..bar });
    }

    fn words(&self, span: &StorySpan) -> (String, String) {
        let what = match (span.layer, span.what) {
            (StoryLayer::Call, _) => return (self.call.to_owned(), String::new()),
            (StoryLayer::Throttle, _) => {
                return (String::from("paused: many dirty pages"), String::new());
            }
            (StoryLayer::PageWait, _) => return (String::from("waits for pages"), String::new()),
            (StoryLayer::GuestJournal, StoryWork::OthersData) => "other files' data",
            (StoryLayer::GuestJournal, _) => "journal",
            (_, StoryWork::ImageMetadata) => "image metadata",
            (_, StoryWork::OthersData) => "other files' data",
            (_, what) => what.name(),
        };
        let bytes = match span.bytes {
            0 => String::new(),
            bytes => Unit::Bytes.text(bytes as f64),
        };
        let detail = [bytes, shown(&span.place)];
        let detail: Vec<String> = detail.into_iter().filter(|it| !it.is_empty()).collect();
        (what.to_owned(), detail.join(" "))
    }
}

/// When none of the span's children is under way.
fn own(span: &StorySpan) -> Vec<(f64, f64)> {
    let mut parts = Vec::new();
    let mut at_ns = span.from_ns;
    for child in &span.children {
        let until_ns = child.from_ns.min(span.to_ns);
        if until_ns > at_ns {
            parts.push((at_ns as f64, until_ns as f64));
        }
        at_ns = at_ns.max(child.to_ns);
    }
    if span.to_ns > at_ns {
        parts.push((at_ns as f64, span.to_ns as f64));
    }
    parts
}
