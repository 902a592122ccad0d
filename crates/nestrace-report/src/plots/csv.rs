//! A plot's data as a table.

use std::fmt::Write;

use super::{Chart, Plot};

/// The data of a plot: RFC 4180, a heading first, numbers with a point.
#[must_use]
pub fn csv(plot: &Plot) -> String {
    let mut text = String::new();
    match &plot.chart {
        Chart::Lines(chart) => {
            let (x, y) = (chart.x.unit.name(), chart.y.unit.name());
            line(&mut text, &["series", &format!("x_{x}"), &format!("y_{y}")]);
            for series in &chart.lines {
                for (x, y) in &series.points {
                    line(&mut text, &[&series.label, &x.to_string(), &y.to_string()]);
                }
            }
        }
        Chart::Columns(chart) => {
            line(&mut text, &["series", "class", chart.y.unit.name()]);
            for group in &chart.groups {
                for (class, value) in chart.classes.iter().zip(&group.values) {
                    line(&mut text, &[&group.label, class, &value.to_string()]);
                }
            }
        }
        Chart::Spans(chart) => {
            let unit = chart.unit.name();
            line(
                &mut text,
                &[
                    "row",
                    "part",
                    &format!("from_{unit}"),
                    &format!("to_{unit}"),
                ],
            );
            for row in &chart.rows {
                for span in &row.spans {
                    let (from, to) = (span.from.to_string(), span.to.to_string());
                    line(&mut text, &[&row.label, &span.name, &from, &to]);
                }
            }
        }
        Chart::Waterfall(chart) => {
            let head = [
                "layer", "row", "what", "detail", "from_ns", "to_ns", "own_ns", "shared", "merged",
            ];
            line(&mut text, &head);
            for lane in &chart.lanes {
                for bar in &lane.bars {
                    let own: f64 = bar.own.iter().map(|(from, to)| to - from).sum();
                    let (row, own) = (bar.row.to_string(), own.to_string());
                    let (from, to) = (bar.from.to_string(), bar.to.to_string());
                    let (shared, merged) = (bar.is_shared.to_string(), bar.n_merged.to_string());
                    let cells: [&str; 9] = [
                        &lane.label,
                        &row,
                        &bar.what,
                        &bar.detail,
                        &from,
                        &to,
                        &own,
                        &shared,
                        &merged,
                    ];
                    line(&mut text, &cells);
                }
            }
        }
        Chart::Points(chart) => {
            line(&mut text, &["panel", "s", "address_bytes", "is_write"]);
            for panel in &chart.panels {
                for (x, y, is_write) in &panel.points {
                    let (x, y) = (x.to_string(), (y + panel.base).to_string());
                    line(&mut text, &[&panel.label, &x, &y, &is_write.to_string()]);
                }
            }
        }
    }
    text
}

fn line(text: &mut String, cells: &[&str]) {
    for (i, cell) in cells.iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        if cell.contains(['"', ',', '\n', '\r']) {
            let _ = write!(text, "\"{}\"", cell.replace('"', "\"\""));
        } else {
            text.push_str(cell);
        }
    }
    text.push('\n');
}
