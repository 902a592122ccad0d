//! What the screen shows, and what keys and snapshots make of it.

use nestrace_sums::rows::Layer;
use nestrace_sums::snapshot::Snapshot;
use nestrace_sums::text::Statistic;
use nestrace_trace::is_printable;

use crate::figures::{Figures, Order, Place};
use crate::keys::{HELP, Key, Wish};
use crate::page::Page;

/// Letters of a filter.
const MAX_FILTER: usize = 40;
/// Snapshots during which a message stays, unless a key is pressed.
const MESSAGE_STAYS: u32 = 10;

/// What became of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It begins; the guest's name.
    Begins(String),
    /// It goes on for so many seconds.
    Left(u64),
    /// It has ended and is analyzed.
    Analyzes,
    /// The answer: a title and the text.
    Answer(String, String),
    /// It failed; the reason.
    Failed(String),
}

/// The recording that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The guest's name.
    pub guest: String,
    /// What it does.
    pub phase: Phase,
}

/// What a recording does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It attaches its probes.
    Begins,
    /// It records for so many seconds more.
    Left(u64),
    /// It is analyzed.
    Analyzes,
}

/// The screen.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Whether there are colours.
    pub has_color: bool,
    order: Order,
    is_filter_edited: bool,
    earlier: Option<Snapshot>,
    now: Figures,
    /// As they were when the pause began.
    frozen: Option<Figures>,
    layer: Option<Layer>,
    page: Option<Page>,
    recording: Option<Recording>,
    message: Option<(String, u32)>,
    height: u16,
}

impl State {
    /// A screen that begins with this statistic.
    #[must_use]
    pub fn new(statistic: Statistic, has_color: bool) -> Self {
        Self {
            has_color,
            order: Order {
                statistic,
                ..Order::default()
            },
            ..Self::default()
        }
    }

    /// The terminal has so many lines now.
    pub fn on_resize(&mut self, height: u16) {
        self.height = height;
    }

    /// Takes the sums of now; the first ones have rows without rates. `clock` is the time of day.
    pub fn on_snapshot(&mut self, now: Snapshot, clock: &str) {
        let earlier = self.earlier.as_ref().unwrap_or(&now);
        self.now.advance(earlier, &now, clock);
        self.earlier = Some(now);
        if let Some((_, stays)) = &mut self.message {
            *stays -= 1;
            if *stays == 0 {
                self.message = None;
            }
        }
        self.keep_selection();
    }

    /// Takes what is to be known by a person.
    pub fn on_note(&mut self, note: &str) {
        self.message = Some((note.to_owned(), MESSAGE_STAYS));
    }

    /// Takes what became of the recording.
    pub fn on_progress(&mut self, progress: Progress) {
        let phase = match progress {
            Progress::Begins(guest) => {
                let phase = Phase::Begins;
                self.recording = Some(Recording { guest, phase });
                return;
            }
            Progress::Left(left) => Phase::Left(left),
            Progress::Analyzes => Phase::Analyzes,
            Progress::Answer(title, text) => {
                self.recording = None;
                self.page = Some(Page::new(&title, &text));
                return;
            }
            Progress::Failed(reason) => {
                self.recording = None;
                self.on_note(&reason);
                return;
            }
        };
        if let Some(recording) = &mut self.recording {
            recording.phase = phase;
        }
    }

    /// Takes a key, and says what it wants from outside.
    pub fn on_key(&mut self, key: Key) -> Option<Wish> {
        self.message = None;
        match key {
            Key::Ctrl('c') => return Some(Wish::Quit),
            Key::Ctrl('l') => return Some(Wish::Redraw),
            Key::Ctrl('z') => return Some(Wish::Suspend),
            _ => {}
        }
        if let Some(page) = &mut self.page {
            let height = usize::from(self.height).saturating_sub(2);
            if !page.on_key(key, height) {
                self.page = None;
            }
            return None;
        }
        if self.is_filter_edited {
            self.edit_filter(key);
            return None;
        }
        self.command(key)
    }

    fn command(&mut self, key: Key) -> Option<Wish> {
        let order = &mut self.order;
        match key {
            Key::Char('q') => return Some(Wish::Quit),
            Key::Char('e') => return self.record(),
            Key::Char('x') if self.recording.is_some() => return Some(Wish::EndRecording),
            Key::Char('m') => {
                order.statistic = match order.statistic {
                    Statistic::Mean => Statistic::P99,
                    Statistic::P99 => Statistic::Mean,
                }
            }
            Key::Char('s') => order.sort = order.sort.next(false),
            Key::Char('S') => order.sort = order.sort.next(true),
            Key::Char('r') => order.is_reversed = !order.is_reversed,
            Key::Char('/') => self.is_filter_edited = true,
            Key::Escape => order.filter.clear(),
            Key::Char('p' | ' ') => {
                self.frozen = match self.frozen.take() {
                    Some(_) => None,
                    None => Some(self.now.clone()),
                };
            }
            Key::Char('?' | 'h') => self.page = Some(Page::new("nestrace top", HELP)),
            Key::Left => self.choose_layer(true),
            Key::Right => self.choose_layer(false),
            Key::Up | Key::Char('k') => self.move_selection(-1),
            Key::Down | Key::Char('j') => self.move_selection(1),
            Key::PageUp => self.move_selection(-10),
            Key::PageDown => self.move_selection(10),
            Key::Home => self.move_selection(isize::MIN),
            Key::End => self.move_selection(isize::MAX),
            _ => {}
        }
        self.keep_selection();
        None
    }

    fn edit_filter(&mut self, key: Key) {
        let filter = &mut self.order.filter;
        match key {
            Key::Char(c) if is_printable(c) && filter.chars().count() < MAX_FILTER => {
                filter.push(c);
            }
            Key::Backspace => _ = filter.pop(),
            Key::Enter | Key::Up | Key::Down => self.is_filter_edited = false,
            Key::Escape => {
                filter.clear();
                self.is_filter_edited = false;
            }
            _ => {}
        }
        self.keep_selection();
    }

    fn record(&mut self) -> Option<Wish> {
        if self.recording.is_some() {
            self.on_note("a recording goes on; x ends it");
            return None;
        }
        match &self.figures().selected {
            Some(place) if !place.is_device => Some(Wish::Record(place.subject.clone())),
            _ => {
                self.on_note("e records a guest: select one of its disks");
                None
            }
        }
    }

    fn choose_layer(&mut self, is_back: bool) {
        let figures = self.figures();
        let Some(row) = figures.selected.as_ref().and_then(|it| figures.row(it)) else {
            return;
        };
        let recorded = Layer::ALL.into_iter();
        let recorded: Vec<Layer> = recorded.filter(|it| row.latency(*it).is_some()).collect();
        let now = figures.layer(self.layer);
        let at = recorded.iter().position(|layer| Some(*layer) == now);
        let at = at
            .unwrap_or(0)
            .saturating_add_signed(if is_back { -1 } else { 1 });
        self.layer = recorded.get(at).copied().or(now);
    }

    /// All rows that are shown, in order: disks, then devices.
    fn places(&self) -> Vec<Place> {
        let rows = self.order.of(self.figures());
        let places = [false, true].into_iter().zip(rows);
        let places = places.flat_map(|(is_device, rows)| {
            let rows = rows.into_iter();
            rows.map(move |row| Place {
                is_device,
                subject: row.subject.clone(),
            })
        });
        places.collect()
    }

    fn move_selection(&mut self, by: isize) {
        let places = self.places();
        let selected = self.figures().selected.as_ref();
        let at = places.iter().position(|place| Some(place) == selected);
        let at = at.unwrap_or(0).saturating_add_signed(by);
        let place = places.get(at).or(places.last()).cloned();
        self.select(place);
    }

    /// A row that has gone, or is filtered out, gives the selection to the first one.
    fn keep_selection(&mut self) {
        let places = self.places();
        let selected = self.figures().selected.as_ref();
        if places.iter().any(|place| Some(place) == selected) {
            return;
        }
        self.select(places.into_iter().next());
    }

    fn select(&mut self, place: Option<Place>) {
        if let Some(frozen) = &mut self.frozen {
            frozen.select(place.clone());
        }
        self.now.select(place);
    }

    /// The figures that are shown.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        self.frozen.as_ref().unwrap_or(&self.now)
    }

    /// Whether they stay as they are.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.frozen.is_some()
    }

    /// Which rows are shown, and how.
    #[must_use]
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// Whether keys are letters of the filter.
    #[must_use]
    pub fn is_filter_edited(&self) -> bool {
        self.is_filter_edited
    }

    /// The layer of the histogram.
    #[must_use]
    pub fn layer(&self) -> Option<Layer> {
        self.figures().layer(self.layer)
    }

    /// The text over the screen.
    #[must_use]
    pub fn page(&self) -> Option<&Page> {
        self.page.as_ref()
    }

    /// The recording that goes on.
    #[must_use]
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.as_ref()
    }

    /// What is to be known now.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.message.as_ref().map(|(text, _)| text.as_str())
    }
}
