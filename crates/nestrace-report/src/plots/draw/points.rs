//! Panels of points above each other.

use super::field::{EDGE, Field, TEXT};
use super::surface::{Align, Surface};
use crate::plots::axis::{Axis, Scale, Unit};
use crate::plots::palette::INK;
use crate::plots::{Panel, Points};

/// Points of a panel on a narrow surface, and on a wide one.
const MOST: (usize, usize) = (500, 1500);
const NARROW: f32 = 500.0;

pub(super) fn draw(chart: &Points, top: f32, surface: &mut dyn Surface) {
    let (width, height) = surface.size();
    let points = || chart.panels.iter().flat_map(|panel| &panel.points);
    let x = Scale::over(points().map(|point| point.0), false);
    let each = (height - top - TEXT * 2.4) / chart.panels.len().max(1) as f32;
    let widest = chart
        .panels
        .iter()
        .flat_map(|panel| panel_ticks(panel, each))
        .map(|label| surface.width_of(&label))
        .fold(0.0, f32::max);
    let last = chart.panels.len().saturating_sub(1);
    for (number, panel) in chart.panels.iter().enumerate() {
        let top = top + each * number as f32;
        surface.text(&panel.label, (EDGE, top + TEXT * 0.6), Align::Left, INK);
        let scale = Scale::exact(panel.range.0, panel.range.1);
        let own = panel_ticks(panel, each);
        let own = own
            .iter()
            .map(|label| surface.width_of(label))
            .fold(0.0, f32::max);
        let field = Field {
            // Panels begin at the same pixel whatever their labels are.
            left: EDGE + widest - own,
            top: top + TEXT * 1.4,
            right: width - EDGE * 2.0,
            bottom: top + each - EDGE,
        };
        let field = field.with_y(&panel.y, &scale, surface);
        field.draw_base(surface);
        if number == last {
            field.draw_x(&chart.x, &x, surface);
        } else {
            let unlabelled = Axis::linear("", Unit::Seconds);
            for tick in x.ticks(
                ((field.right - field.left) / 75.0) as usize,
                unlabelled.unit,
            ) {
                let at = field.x(&x, tick);
                surface.line(
                    &[(at, field.top), (at, field.bottom)],
                    crate::plots::palette::GRID,
                    1.0,
                    1,
                );
            }
        }
        marks(panel, &field, (&x, &scale), surface);
    }
}

fn panel_ticks(panel: &Panel, height: f32) -> Vec<String> {
    let rows = ((height - TEXT * 1.4 - EDGE) / (TEXT * 2.2)) as usize;
    let scale = Scale::exact(panel.range.0, panel.range.1);
    let ticks = scale.ticks(rows.clamp(2, 6), panel.y.unit);
    ticks
        .into_iter()
        .map(|tick| panel.y.unit.text(tick))
        .collect()
}

fn marks(panel: &Panel, field: &Field, (x, y): (&Scale, &Scale), surface: &mut dyn Surface) {
    let most = if surface.size().0 < NARROW {
        MOST.0
    } else {
        MOST.1
    };
    let right = if surface.size().0 < NARROW { 1.0 } else { 2.0 };
    let every = panel.points.len().div_ceil(most).max(1);
    // Reads last: there are often fewer of them.
    for wanted in [true, false] {
        let alpha = if wanted { 0.5 } else { 1.0 };
        let kept = panel.points.iter().step_by(every);
        for (a, b, _) in kept.filter(|(.., is_write)| *is_write == wanted) {
            let (a, b) = (field.x(x, *a), field.y(y, *b));
            let (from, to) = ((a - 1.0, b - 1.0), (a + right, b + right));
            surface.rect(from, to, panel.hue.colour(), alpha);
        }
    }
}
