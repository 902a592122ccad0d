//! Rows of bars, their names above them so that they fit on a phone.

use super::field::{EDGE, Field, Key, TEXT, legend, legend_height};
use super::surface::{Align, Surface};
use crate::plots::axis::{Axis, Scale};
use crate::plots::palette::{GRID, INK, MUTED};
use crate::plots::{Spans, Unit};

/// Height of a bar.
const BAR: f32 = 18.0;
/// Room between rows.
const GAP: f32 = 10.0;
/// Below this width, what stands to the right of a name goes under it.
const NARROW: f32 = 500.0;

/// How high the chart is in this width.
pub(super) fn height(chart: &Spans, width: u32) -> u32 {
    let width = width as f32;
    let labels = chart.keys.iter().map(|(label, ..)| label.as_str());
    let legend = legend_height(labels, width);
    let rows = chart.rows.len() as f32 * (heading(width) + BAR + GAP);
    (legend + rows + TEXT * 2.4 + EDGE).ceil() as u32
}

fn heading(width: f32) -> f32 {
    if width < NARROW { TEXT * 2.0 } else { TEXT }
}

pub(super) fn draw(chart: &Spans, top: f32, surface: &mut dyn Surface) {
    let keys: Vec<Key<'_>> = chart
        .keys
        .iter()
        .map(|(label, hue, tint)| Key {
            label,
            colour: hue.colour(),
            alpha: *tint,
        })
        .collect();
    let top = legend(&keys, top, surface);
    let (width, height) = surface.size();
    let ends = chart
        .rows
        .iter()
        .flat_map(|row| &row.spans)
        .flat_map(|span| [span.from, span.to]);
    let scale = match chart.unit {
        Unit::Share => Scale::exact(0.0, 1.0),
        _ => Scale::over(ends, false),
    };
    let field = Field {
        left: EDGE,
        top,
        right: width - EDGE * 2.0,
        bottom: height - TEXT * 2.4,
    };
    field.draw_x(
        &Axis::linear(chart.title.as_str(), chart.unit),
        &scale,
        surface,
    );
    let mut y = top + EDGE;
    for row in &chart.rows {
        let narrow = width < NARROW;
        let middle = y + TEXT * 0.5;
        let lines = if narrow { 2.0 } else { 1.0 };
        let label = fitted(&row.label, width - EDGE * 2.0, surface);
        surface.text(&label, (EDGE, middle), Align::Left, INK);
        if narrow {
            surface.text(&row.detail, (EDGE, middle + TEXT), Align::Left, MUTED);
        } else {
            surface.text(&row.detail, (field.right, middle), Align::Right, MUTED);
        }
        y += TEXT * lines;
        if chart.unit == Unit::Share {
            surface.rect((field.left, y), (field.right, y + BAR), GRID, 0.6);
        }
        for span in &row.spans {
            let (a, b) = (field.x(&scale, span.from), field.x(&scale, span.to));
            // What is there at all is seen.
            let (from, to) = (a.min(b), a.max(b).max(a.min(b) + 1.0));
            surface.rect((from, y), (to, y + BAR), span.hue.colour(), span.tint);
        }
        y += BAR + GAP;
    }
}

/// A text that is cut to its room.
fn fitted(text: &str, room: f32, surface: &dyn Surface) -> String {
    let mut text = text.to_owned();
    if surface.width_of(&text) <= room {
        return text;
    }
    // The end says more than the beginning: disk and operation.
    while !text.is_empty() && surface.width_of(&format!("…{text}")) > room {
        text.remove(0);
    }
    format!("…{text}")
}
