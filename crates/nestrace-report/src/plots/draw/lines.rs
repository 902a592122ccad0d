//! Curves.

use super::field::{EDGE, Field, Key, TEXT, legend, y_title};
use super::surface::Surface;
use crate::plots::axis::Scale;
use crate::plots::{Line, Lines, Unit};

/// Strength of a companion.
const FAINT: f64 = 0.5;

pub(super) fn draw(chart: &Lines, top: f32, surface: &mut dyn Surface) {
    // Companions are drawn first, so that they lie behind, but are named after what they belong to.
    let (faint, strong): (Vec<&Line>, Vec<&Line>) =
        chart.lines.iter().partition(|line| line.is_faint);
    let named = strong.iter().flat_map(|line| {
        let companions = faint.iter().filter(|it| it.hue == line.hue);
        std::iter::once(*line).chain(companions.copied())
    });
    let keys: Vec<Key<'_>> = named
        .map(|line| Key {
            label: &line.label,
            colour: line.hue.colour(),
            alpha: alpha(line),
        })
        .collect();
    let top = legend(&keys, top, surface);
    let top = y_title(&chart.y, top, surface);
    let (width, height) = surface.size();
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let x = Scale::over(points().map(|point| point.0), chart.x.is_log);
    let y = match chart.y.unit {
        Unit::Share => Scale::exact(0.0, 1.0),
        _ => Scale::over(points().map(|point| point.1), chart.y.is_log),
    };
    let field = Field {
        left: EDGE,
        top: top + EDGE,
        right: width - EDGE * 2.0,
        bottom: height - TEXT * 2.4,
    };
    let field = field.with_y(&chart.y, &y, surface);
    field.draw_x(&chart.x, &x, surface);
    field.draw_base(surface);
    for line in faint.into_iter().chain(strong) {
        let place = |(a, b): (f64, f64)| (field.x(&x, a), field.y(&y, b));
        for joined in line.points.chunk_by(|a, b| b.0 - a.0 <= line.joined_within) {
            let points: Vec<(f32, f32)> = joined.iter().copied().map(place).collect();
            stroke(line, points, surface);
        }
    }
}

fn stroke(line: &Line, points: Vec<(f32, f32)>, surface: &mut dyn Surface) {
    let points = if line.is_step { steps(&points) } else { points };
    let width = if line.is_faint { 1 } else { 2 };
    let colour = line.hue.colour();
    match without_repeats(points).as_slice() {
        [] => {}
        [(a, b)] => {
            let half = width as f32 + 1.0;
            surface.rect(
                (a - half, b - half),
                (a + half, b + half),
                colour,
                alpha(line),
            );
        }
        points => surface.line(points, colour, alpha(line), width),
    }
}

fn alpha(line: &Line) -> f64 {
    if line.is_faint { FAINT } else { 1.0 }
}

/// Each value lasts up to the next point.
fn steps(points: &[(f32, f32)]) -> Vec<(f32, f32)> {
    let mut steps = Vec::with_capacity(points.len() * 2);
    for point in points {
        if let Some((_, y)) = steps.last().copied() {
            steps.push((point.0, y));
        }
        steps.push(*point);
    }
    steps
}

/// Points on one pixel are one, and of three on a straight step the middle one is not needed.
fn without_repeats(points: Vec<(f32, f32)>) -> Vec<(f32, f32)> {
    let mut kept: Vec<(f32, f32)> = Vec::with_capacity(points.len());
    for (x, y) in points {
        let (x, y) = (x.round(), y.round());
        if kept.last() == Some(&(x, y)) {
            continue;
        }
        if let [.., a, b] = kept.as_slice()
            && ((a.0 == b.0 && b.0 == x) && (a.1 - b.1) * (b.1 - y) >= 0.0
                || (a.1 == b.1 && b.1 == y) && (a.0 - b.0) * (b.0 - x) >= 0.0)
        {
            kept.pop();
        }
        kept.push((x, y));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_go_sideways_first() {
        assert_eq!(
            steps(&[(0.0, 0.0), (2.0, 1.0)]),
            [(0.0, 0.0), (2.0, 0.0), (2.0, 1.0)]
        );
    }

    #[test]
    fn what_cannot_be_seen_is_not_drawn() {
        let points = vec![
            (0.0, 0.0),
            (0.2, 0.1),
            (1.0, 0.0),
            (2.0, 0.0),
            (2.0, 5.0),
            (2.0, 3.0),
        ];
        assert_eq!(
            without_repeats(points),
            [(0.0, 0.0), (2.0, 0.0), (2.0, 5.0), (2.0, 3.0)]
        );
    }
}
