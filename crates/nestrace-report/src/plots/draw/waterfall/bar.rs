//! The bars of one row.

use super::super::field::Field;
use super::super::surface::{Align, Surface};
use crate::plots::Bar;
use crate::plots::axis::{Scale, Unit};
use crate::plots::palette::{INK, PAPER};

/// Strength of the colour where a layer waits for the one below.
pub(super) const PALE: f64 = 0.3;
/// Parts that are closer than this, in pixels, are drawn as one.
const APART: f32 = 2.0;
/// Bars that are narrower have no parts.
const NARROWEST: f32 = 4.0;
/// Around a text.
const MARGIN: f32 = 4.0;
/// Between the lines of a hatch.
const HATCH: f32 = 6.0;

/// Pixels of a row.
pub(super) struct Row {
    pub top: f32,
    pub bottom: f32,
    pub has_text: bool,
}

/// A part of a bar in one strength.
#[derive(Clone, Copy, Debug)]
struct Part {
    from: f32,
    to: f32,
    is_own: bool,
}

impl Part {
    fn width(&self) -> f32 {
        self.to - self.from
    }
}

impl Row {
    pub(super) fn draw(
        &self,
        bars: &[&Bar],
        field: &Field,
        scale: &Scale,
        surface: &mut dyn Surface,
    ) {
        let pixels: Vec<(f32, f32)> = bars
            .iter()
            .map(|bar| {
                let from = field.x(scale, bar.from).round();
                // What is there at all is seen.
                (from, field.x(scale, bar.to).round().max(from + 1.0))
            })
            .collect();
        let mut drawn_to = f32::MIN;
        let mut free_from = field.left;
        for (place, (bar, (from, to))) in bars.iter().zip(&pixels).enumerate() {
            let free_to = pixels.get(place + 1).map_or(field.right, |next| next.0);
            if to - from < NARROWEST {
                if *to > drawn_to {
                    self.fill(bar, *from, *to, 1.0, surface);
                    drawn_to = to + APART - 1.0;
                }
            } else {
                let parts = parts(bar, (*from, *to), field, scale);
                self.draw_parts(bar, (*from, *to), &parts, surface);
            }
            if self.has_text {
                let parts = parts(bar, (*from, *to), field, scale);
                let room = (free_from.max(field.left), free_to);
                let text_to = self.label(bar, (*from, *to), &parts, room, surface);
                free_from = to.max(text_to);
            }
        }
    }

    fn fill(&self, bar: &Bar, from: f32, to: f32, alpha: f64, surface: &mut dyn Surface) {
        let colour = bar.hue.colour();
        surface.rect((from, self.top), (to, self.bottom), colour, alpha);
    }

    fn draw_parts(
        &self,
        bar: &Bar,
        (from, to): (f32, f32),
        parts: &[Part],
        surface: &mut dyn Surface,
    ) {
        let is_own = |part: &&Part| part.is_own;
        if !parts.iter().all(|part| part.is_own) {
            self.fill(bar, from, to, PALE, surface);
        }
        for part in parts.iter().filter(is_own) {
            // Two that follow each other stay two.
            let end = if part.to >= to && part.width() > NARROWEST {
                part.to - 1.0
            } else {
                part.to
            };
            self.fill(bar, part.from, end, 1.0, surface);
        }
        // Edges: where one ends and the next begins.
        if parts.iter().any(|part| !part.is_own) {
            self.fill(bar, from, from + 1.0, 1.0, surface);
        }
        if bar.is_shared {
            for part in parts.iter().filter(|part| part.width() >= HATCH) {
                hatch((part.from, part.to), (self.top, self.bottom), 0.8, surface);
            }
        }
    }

    /// Writes on the bar what it is, or beside it; where the text ends.
    fn label(
        &self,
        bar: &Bar,
        (from, to): (f32, f32),
        parts: &[Part],
        (free_from, free_to): (f32, f32),
        surface: &mut dyn Surface,
    ) -> f32 {
        let texts = texts(bar);
        let fits = |room: f32, surface: &dyn Surface| {
            let mut fitting = texts.iter().map(|text| (text, surface.width_of(text)));
            fitting.find(|(_, width)| width + MARGIN * 2.0 <= room)
        };
        let middle = (self.top + self.bottom) / 2.0;
        let longest = parts.iter().max_by(|a, b| a.width().total_cmp(&b.width()));
        if let Some(part) = longest.filter(|part| part.width() >= NARROWEST)
            && let Some((text, width)) = fits(part.width(), surface)
        {
            let x = part.from + MARGIN;
            if bar.is_shared {
                let (left, right) = (part.from + 1.0, x + width + MARGIN / 2.0);
                let (a, b) = ((left, self.top), (right, self.bottom));
                surface.rect(a, b, PAPER, 1.0);
                let alpha = if part.is_own { 1.0 } else { PALE };
                self.fill(bar, left, right, alpha, surface);
            }
            let colour = if part.is_own { PAPER } else { INK };
            surface.text(text, (x, middle), Align::Left, colour);
            return to;
        }
        if let Some((text, width)) = fits(free_to - to, surface) {
            surface.text(text, (to + MARGIN, middle), Align::Left, INK);
            return to + MARGIN + width;
        }
        if let Some((text, _)) = fits(from - free_from, surface) {
            surface.text(text, (from - MARGIN, middle), Align::Right, INK);
        }
        to
    }
}

/// From the most that can be said of a bar to the least.
fn texts(bar: &Bar) -> Vec<String> {
    let took = Unit::Nanoseconds.text(bar.to - bar.from);
    let mut texts = Vec::new();
    if !bar.detail.is_empty() {
        texts.push(format!("{} {}, {took}", bar.what, bar.detail));
    }
    texts.push(format!("{}, {took}", bar.what));
    texts.push(took);
    texts
}

/// The bar from its begin to its end, in parts.
fn parts(bar: &Bar, (from, to): (f32, f32), field: &Field, scale: &Scale) -> Vec<Part> {
    let mut own: Vec<(f32, f32)> = Vec::new();
    for (a, b) in &bar.own {
        let a = field.x(scale, *a).round().clamp(from, to - 1.0);
        let b = field.x(scale, *b).round().clamp(a + 1.0, to);
        match own.last_mut() {
            Some(last) if a - last.1 < APART => last.1 = last.1.max(b),
            _ => own.push((a, b)),
        }
    }
    let mut parts = Vec::new();
    let mut at = from;
    let part = |from, to, is_own| Part { from, to, is_own };
    for (a, b) in own {
        if a > at {
            parts.push(part(at, a, false));
        }
        parts.push(part(a, b, true));
        at = b;
    }
    if to > at {
        parts.push(part(at, to, false));
    }
    parts
}

/// Slanted lines, in one stroke along the edges.
pub(super) fn hatch(
    (from, to): (f32, f32),
    (top, bottom): (f32, f32),
    alpha: f64,
    surface: &mut dyn Surface,
) {
    let slant = HATCH.min(to - from);
    let mut points = Vec::new();
    let mut x = from;
    while x + slant <= to {
        let (low, high) = ((x, bottom), (x + slant, top));
        // Up, along the edge, down, along the edge.
        match points.len() % 4 {
            0 => points.extend([low, high]),
            _ => points.extend([high, low]),
        }
        x += HATCH;
    }
    if points.len() > 1 {
        surface.line(&points, PAPER, alpha, 1);
    }
}
