//! The text of `nestrace analyze`: the answer first, then the numbers it rests on, then what is
//! missing and what to type next.

pub(crate) mod amplification;
pub(crate) mod answer;
mod call_stories;
pub(crate) mod calls;
pub(crate) mod chains;
mod colour;
pub mod compare;
pub(crate) mod devices;
pub(crate) mod findings;
mod flight;
pub(crate) mod gaps;
pub(crate) mod guests;
mod lead;
mod stories;

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Device, UnlinkedReason};
use nestrace_analyzer::incomplete;
use nestrace_trace::printable;
use std::ops::Range;

use colour::Colour;

use crate::table::{Table, wrap};
use crate::units;

/// How the text looks.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TextOptions {
    /// Columns.
    pub width: usize,
    /// Bold headings, coloured bars and severities for a terminal.
    pub colour: bool,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self {
            width: 80,
            colour: false,
        }
    }
}

/// The whole text, with a final newline.
#[must_use]
pub fn render(analysis: &Analysis, options: &TextOptions) -> String {
    let mut page = Page {
        text: String::new(),
        options: *options,
    };
    page.head(analysis);
    flight::write(analysis, &mut page);
    if !analysis.call_stories.is_empty() {
        call_stories::write(analysis, &mut page);
    } else if analysis.stories.is_empty() {
        answer::write(analysis, &mut page);
        calls::write(analysis, &mut page);
        chains::write(analysis, &mut page);
        findings::write(analysis, &mut page);
        amplification::write(analysis, &mut page);
        devices::write(analysis, &mut page);
        guests::write(analysis, &mut page);
    } else {
        stories::write(analysis, &mut page);
    }
    gaps::write(analysis, &mut page);
    page.text
}

/// The text as it grows.
struct Page {
    text: String,
    options: TextOptions,
}

impl Page {
    fn head(&mut self, analysis: &Analysis) {
        let trace = &analysis.trace;
        let name = if trace.path.is_empty() {
            "recording"
        } else {
            trace.path.as_str()
        };
        self.line(&crate::table::shorten(name, self.options.width));
        self.paragraph(&facts(analysis));
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(&printable(line.trim_end()));
        self.text.push('\n');
    }

    /// An empty line and a title.
    fn section(&mut self, title: &str) {
        self.text.push('\n');
        if self.options.colour {
            let title = printable(title);
            self.text.push_str(&Colour::Bold.paint(&title));
            self.text.push('\n');
        } else {
            self.line(title);
        }
    }

    /// A line of a table that stands above others, with its spaces; what does not fit goes on below it.
    fn heading(&mut self, text: &str) {
        let indent = text.len() - text.trim_start().len();
        let indent = " ".repeat(indent);
        for line in wrap(text, self.options.width, &indent) {
            self.line(&line);
        }
    }

    fn paragraph(&mut self, text: &str) {
        for line in wrap(text, self.options.width, "  ") {
            self.line(&line);
        }
    }

    /// A paragraph in which the last `word` has a colour.
    fn marked_paragraph(&mut self, text: &str, word: &str, colour: Colour) {
        let lines = wrap(text, self.options.width, "  ");
        let last = lines.iter().rposition(|line| line.contains(word));
        for (number, line) in lines.iter().enumerate() {
            match line.rfind(word).filter(|_| last == Some(number)) {
                Some(at) => self.painted_line(line, at..at + word.len(), colour),
                None => self.line(line),
            }
        }
    }

    /// A line with one coloured part.
    fn painted_line(&mut self, line: &str, part: Range<usize>, colour: Colour) {
        let line = line.trim_end();
        let pieces = (self.options.colour && !part.is_empty())
            .then(|| line.get(..part.start).zip(line.get(part.clone())))
            .flatten()
            .zip(line.get(part.end..));
        match pieces {
            Some(((before, part), after)) => {
                let (before, after) = (printable(before), printable(after));
                let part = colour.paint(&printable(part));
                self.text.push_str(&format!("{before}{part}{after}\n"));
            }
            None => self.line(line),
        }
    }

    fn table(&mut self, table: &Table) {
        for line in table.lines(self.options.width) {
            self.line(&line);
        }
    }
}

/// What is to be known of the recording itself: how long, how much, what is lost.
pub(crate) fn facts(analysis: &Analysis) -> String {
    let trace = &analysis.trace;
    let kernel = trace
        .sources
        .first()
        .and_then(|source| source.kernel.as_deref());
    let events = units::of(trace.events, "event", "events");
    let mut facts = vec![units::time(trace.duration_ns)];
    facts.push(match trace.is_stretch {
        true => format!("{events} in the whole recording"),
        false => events,
    });
    facts.extend(none_or(&incomplete::missing(trace)));
    facts.extend(kernel.map(|kernel| format!("host kernel {kernel}")));
    facts.extend(detail_fact(trace.detail.as_deref()));
    facts.join(" · ")
}

/// What a level of detail leaves out.
pub(crate) fn detail_fact(detail: Option<&str>) -> Option<String> {
    let fact = match detail? {
        "light" => "light detail",
        "io" => "without calls (--detail io)",
        _ => return None,
    };
    Some(String::from(fact))
}

/// What is missing of a recording, or that nothing is.
pub(crate) fn none_or(missing: &[String]) -> Vec<String> {
    match missing {
        [] => vec![String::from("none lost")],
        missing => missing.to_vec(),
    }
}

/// The guest of every disk and image, if there is only one: its name need not be repeated.
fn only_guest(analysis: &Analysis) -> Option<&str> {
    let disks = analysis.qemu.iter().map(|disk| disk.guest.as_str());
    let mut guests = disks.chain(analysis.images.iter().map(|image| image.guest.as_str()));
    let first = guests.next()?;
    guests.all(|guest| guest == first).then_some(first)
}

/// `vm1/disk0`, or the guest alone where the disk is not known.
fn disk_name(guest: &str, disk: Option<&str>) -> String {
    match (guest.is_empty(), disk) {
        (true, disk) => disk.unwrap_or("unknown disk").to_owned(),
        (false, Some(disk)) => format!("{guest}/{disk}"),
        (false, None) => format!("{guest}/(unknown disk)"),
    }
}

/// `loop0`, and `vm1:vda` for a guest's own. Where there is one guest, the heading says so.
pub(crate) fn device_name(device: &Device, only_guest: Option<&str>) -> String {
    match &device.guest {
        Some(guest) if only_guest != Some(guest) => format!("{guest}:{}", device.name),
        _ => device.name.clone(),
    }
}

/// A reason for an unlinked bio or event, in words.
const fn reason(reason: UnlinkedReason) -> &'static str {
    match reason {
        UnlinkedReason::LostEvents => "because events were lost",
        UnlinkedReason::BeforeStart => "in flight when recording began",
        UnlinkedReason::AfterEnd => "in flight when it ended",
        UnlinkedReason::Ambiguous => "that could be one of several",
        UnlinkedReason::OutsideClockBound => "outside the clock's bounds",
        UnlinkedReason::LayerNotRecorded => "because a layer was not recorded",
        UnlinkedReason::NoMatch => "without a request of QEMU",
        UnlinkedReason::NoEnd => "that never ended",
        other => other.name(),
    }
}
