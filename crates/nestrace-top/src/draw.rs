//! The state as cells of a terminal.

use nestrace_sums::interval::latency;
use nestrace_sums::rows::{Layer, Row};
use nestrace_sums::text::{Statistic, cut, rate, time};
use nestrace_trace::printable;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};

use crate::chart;
use crate::columns::{Column, Columns, shown_name};
use crate::figures::Place;
use crate::minute::SECONDS;
use crate::page::Page;
use crate::state::{Phase, State};

/// From so many columns on, the histogram stands beside the tables.
const WIDE: u16 = 170;
/// What the histogram has there.
const DETAIL_WIDTH: u16 = 82;
/// Lines of the histogram with its figures below the tables, and with fewer lines of the screen none.
const DETAIL_LINES: u16 = 9;
const MIN_LINES_WITH_DETAIL: u16 = 18;
/// From so many lines of its own on, it has a table of layers.
const LINES_WITH_LAYERS: u16 = 20;
/// What waits longer than this catches the eye.
const LONG_NS: u64 = 1_000_000_000;
const KEYS: &str = "q quit  ? help  m mean/p99  s sort  / filter  p pause  ←→ layer  e record";

/// Draws all of it.
pub fn draw(state: &State, frame: &mut Frame<'_>) {
    let paint = Paint {
        has_color: state.has_color,
    };
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    match state.page() {
        Some(page) => draw_page(page, paint, frame, [head, body, foot]),
        None => {
            frame.render_widget(header(state, paint), head);
            draw_body(state, paint, frame, body);
            frame.render_widget(footer(state, paint), foot);
        }
    }
}

/// Colours, or attributes alone.
#[derive(Clone, Copy)]
struct Paint {
    has_color: bool,
}

impl Paint {
    fn bold(self, color: Color) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        if self.has_color { bold.fg(color) } else { bold }
    }

    fn plain(self, color: Color) -> Style {
        let plain = Style::new();
        if self.has_color {
            plain.fg(color)
        } else {
            plain
        }
    }
}

fn draw_page(page: &Page, paint: Paint, frame: &mut Frame<'_>, areas: [Rect; 3]) {
    let [head, body, foot] = areas;
    let title = Span::styled(printable(&page.title), paint.bold(Color::Cyan));
    frame.render_widget(Line::from(title), head);
    let height = usize::from(body.height);
    let lines = page.shown(height).iter();
    // A tab is a control character too.
    let lines: Vec<Line<'_>> = lines
        .map(|line| Line::from(printable(&line.replace('\t', "        "))))
        .collect();
    frame.render_widget(Paragraph::new(lines), body);
    let (first, last, n) = page.place(height);
    let place = format!("lines {first} to {last} of {n}  ↑↓ PgUp PgDn Home End  q back");
    frame.render_widget(Line::styled(place, paint.bold(Color::Cyan)), foot);
}

fn header(state: &State, paint: Paint) -> Line<'static> {
    let (figures, order) = (state.figures(), state.order());
    let word = word(order.statistic);
    let sort = order.sort.name();
    let reversed = if order.is_reversed { " reversed" } else { "" };
    let mut spans = vec![
        Span::styled("nestrace top", paint.bold(Color::Cyan)),
        Span::raw(format!(
            "  {}  latency: {word}  sort: {sort}{reversed}",
            figures.clock
        )),
    ];
    if state.is_paused() {
        spans.push(Span::raw("  "));
        spans.push(Span::styled("PAUSED", paint.bold(Color::Yellow)));
    }
    if !order.filter.is_empty() && !state.is_filter_edited() {
        spans.push(Span::raw(format!("  filter: {}", order.filter)));
    }
    if figures.lost > 0 {
        let lost = format!("  {} requests could not be summed", figures.lost);
        spans.push(Span::styled(lost, paint.bold(Color::Red)));
    }
    Line::from(spans)
}

fn footer(state: &State, paint: Paint) -> Line<'static> {
    if state.is_filter_edited() {
        let filter = &state.order().filter;
        let text = format!("filter: {filter}▏ Enter keeps it, Esc clears it");
        return Line::styled(text, paint.bold(Color::Yellow));
    }
    if let Some(message) = state.message() {
        return Line::styled(printable(message), paint.bold(Color::Yellow));
    }
    if let Some(recording) = state.recording() {
        let guest = printable(&recording.guest);
        let text = match recording.phase {
            Phase::Begins => format!("recording {guest}: attaching probes  x ends it"),
            Phase::Left(left) => format!("recording {guest}: {left} s left  x ends it now"),
            Phase::Analyzes => format!("recording {guest}: done, analyzing"),
        };
        return Line::styled(text, paint.bold(Color::Yellow));
    }
    Line::styled(KEYS, paint.plain(Color::DarkGray))
}

fn draw_body(state: &State, paint: Paint, frame: &mut Frame<'_>, body: Rect) {
    let has_detail = state.figures().selected.is_some();
    let tables = if !has_detail || body.height + 2 < MIN_LINES_WITH_DETAIL {
        body
    } else if body.width >= WIDE {
        let [tables, _, detail] = Layout::horizontal([
            Constraint::Min(0),
            Constraint::Length(2),
            Constraint::Length(DETAIL_WIDTH),
        ])
        .areas(body);
        draw_detail(state, paint, frame, detail);
        tables
    } else {
        let lines = (body.height / 3).max(DETAIL_LINES);
        let [tables, detail] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(lines)]).areas(body);
        draw_detail(state, paint, frame, detail);
        tables
    };
    draw_tables(state, paint, frame, tables);
}

fn draw_tables(state: &State, paint: Paint, frame: &mut Frame<'_>, area: Rect) {
    let (figures, order) = (state.figures(), state.order());
    let [disks, devices] = order.of(figures);
    let all: Vec<&Row> = disks.iter().chain(&devices).copied().collect();
    let columns = Columns::fit(&all, usize::from(area.width));
    let [wanted_disks, wanted_devices] =
        [&disks, &devices].map(|rows| u16::try_from(rows.len()).unwrap_or(u16::MAX).max(1) + 1);
    // Devices have a third, and what disks leave.
    let left = area.height.saturating_sub(wanted_disks);
    let for_devices = wanted_devices.min((area.height / 3).max(left));
    let [above, below] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(for_devices)]).areas(area);
    let empty = match figures.disks.is_empty() {
        true => "no guest is running",
        false => "no disk has this in its name",
    };
    for (title, rows, is_device, area, empty) in [
        ("guest disk", disks, false, above, empty),
        ("device", devices, true, below, "no device"),
    ] {
        let table = Table {
            title,
            rows,
            is_device,
            empty,
            columns: &columns,
        };
        frame.render_widget(Paragraph::new(table.lines(state, paint, area.height)), area);
    }
}

struct Table<'a> {
    title: &'static str,
    rows: Vec<&'a Row>,
    is_device: bool,
    empty: &'static str,
    columns: &'a Columns,
}

impl Table<'_> {
    /// A heading, and the rows around the selected one.
    fn lines(&self, state: &State, paint: Paint, height: u16) -> Vec<Line<'static>> {
        let room = usize::from(height.saturating_sub(1));
        let selected = state.figures().selected.as_ref();
        let is_selected = |row: &&Row| selected.is_some_and(|place| self.is_at(place, row));
        let at = self.rows.iter().position(is_selected).unwrap_or(0);
        let top = at
            .saturating_sub(room / 2)
            .min(self.rows.len().saturating_sub(room));
        let mut lines = vec![self.heading(paint, top, room)];
        if self.rows.is_empty() {
            lines.push(Line::raw(self.empty));
        }
        for row in self.rows.iter().skip(top).take(room) {
            let mut line = self.row(row, state.order().statistic, paint);
            if is_selected(row) {
                line = line.style(Style::new().add_modifier(Modifier::REVERSED));
            }
            lines.push(line);
        }
        lines
    }

    fn is_at(&self, place: &Place, row: &Row) -> bool {
        place.is_device == self.is_device && place.subject == row.subject
    }

    /// With the place in the table where not all rows are seen.
    fn heading(&self, paint: Paint, top: usize, room: usize) -> Line<'static> {
        let n = self.rows.len();
        let (first, last) = (top + 1, (top + room).min(n));
        let place = [
            format!("{} {first}-{last}/{n}", self.title),
            format!("{first}-{last}/{n}"),
            format!("{first}/{n}"),
        ];
        let title = match n > room {
            true => place
                .into_iter()
                .find(|it| it.len() <= self.columns.name_width),
            false => None,
        };
        let title = title.unwrap_or_else(|| self.title.to_owned());
        let mut text = cut(&title, self.columns.name_width);
        for (column, width) in &self.columns.columns {
            let heading = column.heading();
            text.push_str(&match column {
                Column::On => format!(" {heading:width$}"),
                _ => format!(" {heading:>width$}"),
            });
        }
        Line::styled(text, paint.bold(Color::Cyan))
    }

    fn row(&self, row: &Row, statistic: Statistic, paint: Paint) -> Line<'static> {
        let is_idle =
            row.reads + row.writes + row.flushes == 0.0 && row.in_flight.unwrap_or(0) == 0;
        let style = match is_idle {
            true => paint.plain(Color::DarkGray),
            false => Style::new(),
        };
        let name = name_in(&shown_name(row), self.columns.name_width);
        let mut spans = vec![Span::styled(name, style)];
        let cells = self.columns.cells(row, statistic, self.is_device);
        for (cell, (column, _)) in cells.into_iter().zip(&self.columns.columns) {
            let is_long = row.oldest_ns.is_some_and(|ns| ns >= LONG_NS);
            let style = match column {
                Column::Oldest if is_long => paint.bold(Color::Red),
                _ => style,
            };
            spans.push(Span::styled(format!(" {cell}"), style));
        }
        Line::from(spans)
    }
}

/// A name in just this width of a terminal: letters may be wide, or have none.
fn name_in(name: &str, width: usize) -> String {
    let mut text = cut(name, width);
    while Span::raw(text.as_str()).width() > width && text.pop().is_some() {}
    let room = width.saturating_sub(Span::raw(text.as_str()).width());
    text.push_str(&" ".repeat(room));
    text
}

fn draw_detail(state: &State, paint: Paint, frame: &mut Frame<'_>, area: Rect) {
    let figures = state.figures();
    let Some(place) = &figures.selected else {
        return;
    };
    let Some((row, layer)) = figures.row(place).zip(state.layer()) else {
        return;
    };
    let width = usize::from(area.width);
    let has_layers = area.height >= LINES_WITH_LAYERS;
    let n_layers = row.layers.iter().flatten().count();
    let for_layers = match has_layers {
        true => u16::try_from(n_layers + 2).unwrap_or(0),
        false => 0,
    };
    // In a high screen the minute is not higher than the histogram.
    let rest = area.height.saturating_sub(for_layers + 3);
    let for_minute = (rest / 4).clamp(1, 4);
    let for_bars = rest.saturating_sub(2 * for_minute).min(16);
    let [title, line, bars, axis, requests, latencies, _, layers] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(for_bars),
        Constraint::Length(1),
        Constraint::Length(for_minute),
        Constraint::Length(for_minute),
        Constraint::Length(u16::from(has_layers)),
        Constraint::Min(0),
    ])
    .areas(area);
    let sums = figures.histograms.sum(layer).unwrap_or_default();
    let on = row.device.as_ref();
    let on = on.map_or_else(String::new, |device| format!(" on {}", printable(device)));
    let name = format!("{}{on}", shown_name(row));
    let of = format!(
        "  {}: reads and writes of {} s",
        layer.name(),
        figures.histograms.covered_s()
    );
    let name = name_in(
        &name,
        Span::raw(name.as_str())
            .width()
            .min(width.saturating_sub(of.len())),
    );
    let heading = Line::from(vec![
        Span::styled(name, paint.bold(Color::Cyan)),
        Span::raw(of),
    ]);
    frame.render_widget(heading, title);
    frame.render_widget(Line::raw(summary(&latency(&sums))), line);
    let columns = chart::histogram(&sums, width);
    let bars_style = paint.plain(Color::Green);
    columns_of(&columns, bars_style, frame, bars);
    frame.render_widget(Line::raw(chart::axis(width)), axis);
    let Some(minute) = figures.minute(place) else {
        return;
    };
    let statistic = state.order().statistic;
    let values = minute.requests();
    let most = format!("{}/s", rate(largest(&values)));
    spark("requests", &most, &values, paint, frame, requests);
    let values = minute.latencies(statistic);
    let most = match largest(&values) {
        0.0 => "-".to_owned(),
        most => time(most),
    };
    spark(word(statistic), &most, &values, paint, frame, latencies);
    if has_layers {
        let heading = Line::styled("layers, last interval", paint.bold(Color::Cyan));
        let recorded = Layer::ALL.into_iter();
        let lines = recorded.filter_map(|layer| {
            let latency = row.latency(layer)?;
            Some(Line::raw(format!(
                "{:10} {}",
                layer.name(),
                summary(&latency)
            )))
        });
        let lines: Vec<Line<'_>> = std::iter::once(heading).chain(lines).collect();
        frame.render_widget(Paragraph::new(lines), layers);
    }
}

/// `n`, mean, percentiles and maximum on a line.
// Nanoseconds of a century need no more than 53 bits.
#[expect(clippy::cast_precision_loss)]
fn summary(latency: &nestrace_sums::interval::Latency) -> String {
    let in_words = |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), time);
    format!(
        "n {:<7} mean {:>7}  p50 {:>7}  p99 {:>7}  max {:>7}",
        latency.n,
        in_words(latency.mean),
        in_words(latency.p50.map(|ns| ns as f64)),
        in_words(latency.p99.map(|ns| ns as f64)),
        in_words(latency.max.map(|ns| ns as f64)),
    )
}

const fn word(statistic: Statistic) -> &'static str {
    match statistic {
        Statistic::Mean => "mean",
        Statistic::P99 => "p99",
    }
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// A minute: the newest second at the right, and the highest one in words at the left.
fn spark(what: &str, most: &str, values: &[f64], paint: Paint, frame: &mut Frame<'_>, area: Rect) {
    let seconds = u16::try_from(SECONDS).unwrap_or_default();
    let [label, line] =
        Layout::horizontal([Constraint::Length(19), Constraint::Length(seconds)]).areas(area);
    let text = vec![
        Line::raw(format!("{what} ≤ {most}")),
        Line::raw("of a minute"),
    ];
    frame.render_widget(Paragraph::new(text), label);
    // Requests and nanoseconds, which are not negative.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let values: Vec<u64> = values.iter().map(|value| value.ceil() as u64).collect();
    let missing = values.len().saturating_sub(usize::from(line.width));
    let values = values.get(missing..).unwrap_or_default();
    columns_of(values, paint.plain(Color::Blue), frame, line);
}

fn columns_of(values: &[u64], style: Style, frame: &mut Frame<'_>, area: Rect) {
    let bars = Sparkline::default()
        .data(chart::heights(values, area.height))
        .max(chart::full(area.height))
        .style(style);
    frame.render_widget(bars, area);
}
