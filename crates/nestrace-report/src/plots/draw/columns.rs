//! Groups of columns.

use super::field::{EDGE, Field, Key, TEXT, legend, y_title};
use super::surface::{Align, Surface};
use crate::plots::Columns;
use crate::plots::axis::Scale;
use crate::plots::palette::MUTED;

/// Part of a class that its columns fill.
const FILLED: f32 = 0.8;

pub(super) fn draw(chart: &Columns, top: f32, surface: &mut dyn Surface) {
    let keys: Vec<Key<'_>> = chart
        .groups
        .iter()
        .map(|group| Key {
            label: &group.label,
            colour: group.hue.colour(),
            alpha: group.tint,
        })
        .collect();
    let top = legend(&keys, top, surface);
    let top = y_title(&chart.y, top, surface);
    let (width, height) = surface.size();
    let values = chart
        .groups
        .iter()
        .flat_map(|group| group.values.iter().copied());
    let y = Scale::over(values, false);
    // Room for a title, or for a second line of names.
    let below = 2.4;
    let field = Field {
        left: EDGE,
        top: top + EDGE,
        right: width - EDGE,
        bottom: height - TEXT * below,
    };
    let field = field.with_y(&chart.y, &y, surface);
    let class = (field.right - field.left) / chart.classes.len().max(1) as f32;
    let column = class * FILLED / chart.groups.len().max(1) as f32;
    for (number, group) in chart.groups.iter().enumerate() {
        for (place, value) in group
            .values
            .iter()
            .enumerate()
            .filter(|(_, value)| **value > 0.0)
        {
            let left =
                field.left + class * (place as f32 + (1.0 - FILLED) / 2.0) + column * number as f32;
            // What is there at all is seen.
            let top = field.y(&y, *value).min(field.bottom - 1.0);
            let right = left + (column - 1.0).max(1.0);
            surface.rect(
                (left, top),
                (right, field.bottom),
                group.hue.colour(),
                group.tint,
            );
        }
    }
    field.draw_base(surface);
    names(chart, &field, class, surface);
}

/// Names of classes: in two lines where that is enough, else as many as there is room for.
fn names(chart: &Columns, field: &Field, class: f32, surface: &mut dyn Surface) {
    let widths = chart.classes.iter().map(|name| surface.width_of(name));
    let widest = widths.fold(0.0, f32::max);
    let needed = ((widest + EDGE) / class).ceil().max(1.0) as usize;
    let lines = if chart.x_title.is_empty() {
        needed.min(2)
    } else {
        1
    };
    let every = needed.div_ceil(lines);
    let mut free_from = [f32::MIN; 2];
    for (place, name) in chart.classes.iter().enumerate() {
        if place % every != 0 {
            continue;
        }
        let line = place / every % lines;
        let half = surface.width_of(name) / 2.0;
        let middle = (field.left + class * (place as f32 + 0.5))
            .min(field.right - half)
            .max(half);
        let height = field.bottom + TEXT * (0.7 + line as f32);
        if middle - half > free_from[line] {
            surface.text(name, (middle, height), Align::Middle, MUTED);
            free_from[line] = middle + half + EDGE;
        }
    }
    if !chart.x_title.is_empty() {
        let middle = (field.left + field.right) / 2.0;
        let height = field.bottom + TEXT * 1.7;
        surface.text(&chart.x_title, (middle, height), Align::Middle, MUTED);
    }
}
