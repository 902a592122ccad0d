//! The field between the axes, with its grid, labels and legend.

use plotters::style::RGBColor;

use super::surface::{Align, Surface};
use crate::plots::axis::{Axis, Scale};
use crate::plots::palette::{GRID, INK, MUTED};

/// Height of a line of text.
pub(super) const TEXT: f32 = 19.0;
/// Room around everything.
pub(super) const EDGE: f32 = 6.0;
/// A letter's width, roughly.
const LETTER: f32 = 7.6;

/// A rectangle of pixels in which values are drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub left: f32,
    pub top: f32,
    pub right: f32,
    pub bottom: f32,
}

impl Field {
    pub(super) fn x(&self, scale: &Scale, value: f64) -> f32 {
        self.left + (self.right - self.left) * scale.place(value) as f32
    }

    pub(super) fn y(&self, scale: &Scale, value: f64) -> f32 {
        self.bottom - (self.bottom - self.top) * scale.place(value) as f32
    }

    /// Grid and labels of the axis to the left, which needs its room.
    pub(super) fn with_y(mut self, axis: &Axis, scale: &Scale, surface: &mut dyn Surface) -> Self {
        let rows = ((self.bottom - self.top) / (TEXT * 2.2)) as usize;
        let ticks = scale.ticks(rows.clamp(2, 6), axis.unit);
        let labels: Vec<String> = ticks.iter().map(|tick| axis.unit.text(*tick)).collect();
        let widest = labels
            .iter()
            .map(|label| surface.width_of(label))
            .fold(0.0, f32::max);
        self.left += widest + EDGE;
        for (tick, label) in ticks.iter().zip(&labels) {
            let y = self.y(scale, *tick);
            surface.line(&[(self.left, y), (self.right, y)], GRID, 1.0, 1);
            surface.text(label, (self.left - EDGE, y), Align::Right, MUTED);
        }
        self
    }

    /// Grid, labels and title of the axis below, which has its room.
    pub(super) fn draw_x(&self, axis: &Axis, scale: &Scale, surface: &mut dyn Surface) {
        let width = self.right - self.left;
        let ticks = scale.ticks((width / 75.0) as usize, axis.unit);
        let mut free_from = f32::MIN;
        for tick in &ticks {
            let x = self.x(scale, *tick);
            let label = axis.unit.text(*tick);
            let half = surface.width_of(&label) / 2.0;
            surface.line(&[(x, self.top), (x, self.bottom)], GRID, 1.0, 1);
            let at = x.min(surface.size().0 - half - 1.0).max(half + 1.0);
            if at - half > free_from {
                surface.text(&label, (at, self.bottom + TEXT * 0.7), Align::Middle, MUTED);
                free_from = at + half + EDGE;
            }
        }
        if !axis.title.is_empty() {
            let middle = (self.left + self.right) / 2.0;
            surface.text(
                &axis.title,
                (middle, self.bottom + TEXT * 1.7),
                Align::Middle,
                MUTED,
            );
        }
    }

    /// The line that values stand on.
    pub(super) fn draw_base(&self, surface: &mut dyn Surface) {
        surface.line(
            &[(self.left, self.bottom), (self.right, self.bottom)],
            MUTED,
            1.0,
            1,
        );
    }
}

/// One entry of a legend.
pub(super) struct Key<'a> {
    pub label: &'a str,
    pub colour: RGBColor,
    pub alpha: f64,
}

/// Draws colours and their meaning in as many lines as they need; where they end.
pub(super) fn legend(keys: &[Key<'_>], top: f32, surface: &mut dyn Surface) -> f32 {
    let (places, bottom) = key_places(keys, top, surface);
    for (key, (x, y)) in keys.iter().zip(places) {
        surface.rect((x, y - 5.0), (x + 14.0, y + 5.0), key.colour, key.alpha);
        surface.text(key.label, (x + 19.0, y), Align::Left, INK);
    }
    bottom
}

/// Where the colours of a legend lie (left edge, middle), and where the legend ends.
pub(super) fn key_places(
    keys: &[Key<'_>],
    top: f32,
    surface: &dyn Surface,
) -> (Vec<(f32, f32)>, f32) {
    let (width, _) = surface.size();
    let (mut x, mut y) = (EDGE, top + TEXT * 0.6);
    let mut places = Vec::new();
    for key in keys {
        let wide = surface.width_of(key.label) + 34.0;
        if x > EDGE && x + wide > width {
            (x, y) = (EDGE, y + TEXT);
        }
        places.push((x, y));
        x += wide;
    }
    (places, if keys.is_empty() { top } else { y + TEXT * 0.8 })
}

/// How high a legend is, roughly and at most: before anything is measured.
pub(super) fn legend_height<'a>(labels: impl Iterator<Item = &'a str>, width: f32) -> f32 {
    let (mut lines, mut x) = (0.0, f32::MAX);
    for label in labels {
        let wide = label.chars().count() as f32 * LETTER + 34.0;
        if x + wide > width {
            (x, lines) = (0.0, lines + 1.0);
        }
        x += wide;
    }
    if lines > 0.0 {
        (lines + 0.4) * TEXT
    } else {
        0.0
    }
}

/// The title of the axis to the left: above it, where it can be read without turning the head.
pub(super) fn y_title(axis: &Axis, top: f32, surface: &mut dyn Surface) -> f32 {
    if axis.title.is_empty() {
        return top;
    }
    surface.text(&axis.title, (EDGE, top + TEXT * 0.5), Align::Left, MUTED);
    top + TEXT * 1.3
}
