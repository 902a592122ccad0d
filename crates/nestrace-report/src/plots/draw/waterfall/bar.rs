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
    /// Of the layer's own time.
    ns: f64,
}

impl Part {
    const fn waiting(from: f32, to: f32) -> Self {
        Self {
            from,
            to,
            is_own: false,
            ns: 0.0,
        }
    }

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

    /// Of a text: bitmaps have their letters a little higher than pages.
    fn middle(&self) -> f32 {
        (self.top + self.bottom) / 2.0 + 1.0
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

    /// Writes on the bar, or beside it, what it is and how long it took. A time alone is that of the part that it stands
    /// on. Returns where the text ends.
    fn label(
        &self,
        bar: &Bar,
        (from, to): (f32, f32),
        parts: &[Part],
        (free_from, free_to): (f32, f32),
        surface: &mut dyn Surface,
    ) -> f32 {
        // A bar for many says so, whatever its parts.
        let has_parts = parts.len() > 1 && bar.n_merged == 1;
        let texts = texts(bar, has_parts);
        let middle = self.middle();
        if has_parts {
            for part in parts.iter().filter(|part| part.is_own) {
                let own = [Unit::Nanoseconds.text(part.ns)];
                if let Some(text) = fitting(&own, part.width(), surface) {
                    self.text_on(bar, part, text, surface);
                }
            }
        }
        let of_whole = parts.iter().filter(|part| !has_parts || !part.is_own);
        let longest = of_whole.max_by(|a, b| a.width().total_cmp(&b.width()));
        if let Some(part) = longest
            && let Some(text) = fitting(&texts, part.width(), surface)
        {
            self.text_on(bar, part, text, surface);
            return to;
        }
        if let Some(text) = fitting(&texts, free_to - to - MARGIN, surface) {
            surface.text(text, (to + MARGIN, middle), Align::Left, INK);
            return to + MARGIN * 2.0 + surface.width_of(text);
        }
        if let Some(text) = fitting(&texts, from - free_from - MARGIN, surface) {
            surface.text(text, (from - MARGIN, middle), Align::Right, INK);
        }
        to
    }

    fn text_on(&self, bar: &Bar, part: &Part, text: &str, surface: &mut dyn Surface) {
        let x = part.from + MARGIN;
        if bar.is_shared {
            // No lines of the hatch behind letters.
            let (left, right) = (part.from + 1.0, x + surface.width_of(text) + MARGIN / 2.0);
            surface.rect((left, self.top), (right, self.bottom), PAPER, 1.0);
            let alpha = if part.is_own { 1.0 } else { PALE };
            self.fill(bar, left, right, alpha, surface);
        }
        let colour = if part.is_own { PAPER } else { INK };
        let middle = self.middle();
        surface.text(text, (x, middle), Align::Left, colour);
    }
}

/// The first that has room.
fn fitting<'t>(texts: &'t [String], room: f32, surface: &dyn Surface) -> Option<&'t str> {
    let has_room = |text: &&String| surface.width_of(text) + MARGIN * 2.0 <= room;
    texts.iter().find(has_room).map(String::as_str)
}

/// From the most that can be said of a bar to the least.
fn texts(bar: &Bar, has_parts: bool) -> Vec<String> {
    let took = Unit::Nanoseconds.text(bar.to - bar.from);
    if bar.n_merged > 1 {
        let of_many = [format!("{}, {took}", bar.what), bar.what.clone()];
        return of_many.into();
    }
    let mut texts = Vec::new();
    if !bar.detail.is_empty() {
        texts.push(format!("{} {}, {took}", bar.what, bar.detail));
    }
    texts.push(format!("{}, {took}", bar.what));
    if !has_parts {
        texts.push(took);
    }
    texts
}

/// The bar from its begin to its end, in parts.
fn parts(bar: &Bar, (from, to): (f32, f32), field: &Field, scale: &Scale) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut at = from;
    for (own_from, own_to) in &bar.own {
        let a = field.x(scale, *own_from).round().clamp(from, to - 1.0);
        let b = field.x(scale, *own_to).round().clamp(a + 1.0, to);
        let ns = own_to - own_from;
        match parts.last_mut() {
            Some(last) if a - at < APART => {
                last.to = last.to.max(b);
                last.ns += ns;
            }
            _ => {
                let waits = (a > at).then(|| Part::waiting(at, a));
                parts.extend(waits);
                parts.push(Part {
                    from: a,
                    to: b,
                    is_own: true,
                    ns,
                });
            }
        }
        at = at.max(b);
    }
    let waits = (to > at).then(|| Part::waiting(at, to));
    parts.extend(waits);
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
