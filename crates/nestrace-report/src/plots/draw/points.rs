//! Panels of points above each other.

use std::collections::BTreeSet;

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
    let side = if surface.size().0 < NARROW { 2.0 } else { 3.0 };
    let every = panel.points.len().div_ceil(most).max(1);
    let cell = |(a, b): (f32, f32)| ((a / side).round() as i32, (b / side).round() as i32);
    let cells = |wanted: bool| -> BTreeSet<(i32, i32)> {
        let kept = panel.points.iter().step_by(every);
        let kept = kept.filter(|(.., is_write)| *is_write == wanted);
        kept.map(|(a, b, _)| cell((field.x(x, *a), field.y(y, *b))))
            .collect()
    };
    // Each place is drawn once: pale marks that lay on each other would look like strong ones. Where both were, it is
    // a read's: there are often fewer of them.
    let reads = cells(false);
    let writes = cells(true);
    for (marks, alpha) in [
        (writes.difference(&reads).collect(), 0.45),
        (reads.iter().collect::<Vec<_>>(), 1.0),
    ] {
        for (a, b) in marks {
            let (a, b) = (*a as f32 * side, *b as f32 * side);
            let from = (a - side / 2.0, b - side / 2.0);
            surface.rect(
                from,
                (from.0 + side, from.1 + side),
                panel.hue.colour(),
                alpha,
            );
        }
    }
}
