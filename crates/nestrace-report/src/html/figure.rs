//! A plot in the page: drawn twice, once for a phone, so that its letters can be read there.

use super::page::{Page, escape};
use crate::plots::{DrawError, Frame, Plot, svg, themed};

pub(super) fn write(plot: &Plot, page: &mut Page) -> Result<(), DrawError> {
    page.raw(&format!("<figure id=plot-{}>", plot.id));
    page.element("h3", &plot.question);
    for (class, frame) in [("wide", Frame::WIDE), ("narrow", Frame::NARROW)] {
        let drawn = themed(&svg(plot, &frame)?);
        let label = escape(&plot.question);
        // The page says how wide it is.
        let scaled = match drawn.split_once(" viewBox=") {
            Some((_, rest)) => {
                format!("<svg class={class} role=img aria-label=\"{label}\" viewBox={rest}")
            }
            None => drawn,
        };
        page.raw(&compact(&scaled));
    }
    page.element("figcaption", &plot.note);
    page.raw("</figure>");
    Ok(())
}

/// Leaves out what is the default, and words that every text repeats.
fn compact(svg: &str) -> String {
    svg.replace(" opacity=\"1\"", "")
        .replace(" stroke=\"none\"", "")
        .replace(" stroke-width=\"1\"", "")
        .replace(" font-family=\"sans-serif\"", "")
        .replace("/>\n", "/>")
}
