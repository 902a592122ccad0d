//! Bars along one axis of time: one call or bio, layer by layer.

mod bar;

use super::field::{self, EDGE, Field, TEXT, key_places, legend, legend_height};
use super::surface::{Align, Surface};
use crate::plots::axis::{Axis, Scale, Unit};
use crate::plots::palette::{GRID, INK, MUTED};
use crate::plots::{Bar, Hue, Lane, Waterfall};
use bar::{PALE, Row, hatch};

/// Below this width, a layer's name goes above its bars.
const NARROW: f32 = 500.0;
/// Room for the names of layers where they stand to the left.
const NAMES: f32 = 178.0;
/// Rows of a layer with at most so many are high enough for text; of others, those with a bar of this share of the axis.
const MAX_HIGH_ROWS: usize = 2;
const WORTH_A_TEXT: f64 = 0.08;
/// Height of a row with text, and of one without.
const HIGH: f32 = 20.0;
const LOW: f32 = 10.0;
/// Between rows, and around the rows of a layer.
const ROW_GAP: f32 = 1.0;
const LANE_GAP: f32 = 5.0;

/// How high the chart is in this width.
pub(super) fn height(chart: &Waterfall, width: u32) -> u32 {
    let width = width as f32;
    let keys = keys(chart);
    let legend = legend_height(keys.iter().map(|key| key.label), width);
    let lanes: f32 = chart
        .lanes
        .iter()
        .map(|lane| lane_height(chart, lane, width))
        .sum();
    (legend + TEXT + lanes + TEXT * 2.4).ceil() as u32
}

fn row_height(chart: &Waterfall, lane: &Lane, row: usize) -> f32 {
    let long = (chart.to - chart.from) * WORTH_A_TEXT;
    let is_worth = |bar: &Bar| bar.n_merged > 1 || bar.to - bar.from >= long;
    let mut bars = lane.bars.iter().filter(|bar| bar.row == row);
    match lane.n_rows <= MAX_HIGH_ROWS || bars.any(is_worth) {
        true => HIGH,
        false => LOW,
    }
}

fn rows_height(chart: &Waterfall, lane: &Lane) -> f32 {
    let rows = 0..lane.n_rows;
    rows.map(|row| row_height(chart, lane, row) + ROW_GAP).sum()
}

fn lane_height(chart: &Waterfall, lane: &Lane, width: f32) -> f32 {
    let rows = rows_height(chart, lane);
    let names = if lane.detail.is_empty() {
        TEXT
    } else {
        TEXT * 2.0
    };
    let height = if width < NARROW {
        TEXT + rows
    } else {
        rows.max(names)
    };
    height + LANE_GAP * 2.0
}

/// An entry of the legend.
struct Key {
    label: &'static str,
    hue: Hue,
    alpha: f64,
    is_hatched: bool,
}

/// Only what occurs.
fn keys(chart: &Waterfall) -> Vec<Key> {
    let key = |label, hue, alpha, is_hatched| Key {
        label,
        hue,
        alpha,
        is_hatched,
    };
    let mut keys = vec![
        key("the layer's own time", Hue::Neutral, 1.0, false),
        key("it waits for the layer below", Hue::Neutral, PALE, false),
    ];
    if chart.bars().any(|bar| bar.is_shared) {
        keys.push(key("others wait for it too", Hue::Neutral, 1.0, true));
    }
    if chart.bars().any(|bar| bar.hue == Hue::Flush) {
        keys.push(key("flush of the device", Hue::Flush, 1.0, false));
    }
    keys
}

pub(super) fn draw(chart: &Waterfall, top: f32, surface: &mut dyn Surface) {
    let top = draw_legend(&keys(chart), top, surface);
    let (width, height) = surface.size();
    let narrow = width < NARROW;
    let area = Field {
        left: if narrow { EDGE } else { NAMES },
        top: top + TEXT,
        right: width - EDGE * 3.0,
        bottom: height - TEXT * 2.4,
    };
    let scale = Scale::exact(chart.from, chart.to);
    area.draw_x(
        &Axis::linear(chart.title.as_str(), Unit::Nanoseconds),
        &scale,
        surface,
    );
    draw_end(chart, &area, &scale, surface);
    let mut y = area.top;
    for lane in &chart.lanes {
        surface.line(&[(EDGE, y), (area.right, y)], GRID, 1.0, 1);
        let lane_top = y + LANE_GAP;
        y += lane_height(chart, lane, width);
        let rows_top = if narrow {
            draw_names_above(lane, lane_top, &area, surface);
            lane_top + TEXT
        } else {
            draw_names_beside(lane, lane_top, surface);
            lane_top + ((y - LANE_GAP - lane_top - rows_height(chart, lane)) / 2.0).max(0.0)
        };
        let mut row_top = rows_top;
        for row in 0..lane.n_rows {
            let height = row_height(chart, lane, row);
            let bars: Vec<&Bar> = lane.bars.iter().filter(|bar| bar.row == row).collect();
            let row = Row {
                top: row_top.round(),
                bottom: (row_top + height).round(),
                has_text: height >= HIGH,
            };
            row.draw(&bars, &area, &scale, surface);
            row_top += height + ROW_GAP;
        }
    }
}

fn draw_names_beside(lane: &Lane, top: f32, surface: &mut dyn Surface) {
    swatch(lane, top + TEXT * 0.5, surface);
    let x = EDGE + 14.0;
    surface.text(&lane.label, (x, top + TEXT * 0.5), Align::Left, INK);
    surface.text(&lane.detail, (x, top + TEXT * 1.5), Align::Left, MUTED);
}

fn draw_names_above(lane: &Lane, top: f32, field: &Field, surface: &mut dyn Surface) {
    let middle = top + TEXT * 0.5 - 1.0;
    swatch(lane, middle, surface);
    surface.text(&lane.label, (EDGE + 14.0, middle), Align::Left, INK);
    surface.text(&lane.detail, (field.right, middle), Align::Right, MUTED);
}

fn swatch(lane: &Lane, middle: f32, surface: &mut dyn Surface) {
    let (from, to) = ((EDGE, middle - 7.0), (EDGE + 5.0, middle + 7.0));
    surface.rect(from, to, lane.hue.colour(), 1.0);
}

/// Where the call ends: what lies to the right was not waited for.
fn draw_end(chart: &Waterfall, field: &Field, scale: &Scale, surface: &mut dyn Surface) {
    let x = field.x(scale, chart.end);
    surface.line(&[(x, field.top - 4.0), (x, field.bottom)], INK, 0.7, 1);
    let at = (x, field.top - TEXT * 0.6);
    surface.text(&chart.end_label, at, Align::Right, INK);
}

fn draw_legend(keys: &[Key], top: f32, surface: &mut dyn Surface) -> f32 {
    let plain: Vec<field::Key<'_>> = keys
        .iter()
        .map(|key| field::Key {
            label: key.label,
            colour: key.hue.colour(),
            alpha: key.alpha,
        })
        .collect();
    let end = legend(&plain, top, surface);
    let (places, _) = key_places(&plain, top, surface);
    for (key, (x, y)) in keys.iter().zip(places) {
        if key.is_hatched {
            hatch((x, x + 14.0), (y - 5.0, y + 5.0), 1.0, surface);
        }
    }
    end
}
