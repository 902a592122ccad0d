//! A plot in the page: drawn twice, once for a phone, so that its letters can be read there.

use maud::{Markup, PreEscaped, html};

use super::page::prose;
use crate::plots::{DrawError, Frame, Plot, svg, themed};

pub(super) fn figure(plot: &Plot) -> Result<Markup, DrawError> {
    let wide = drawing(plot, "wide", &Frame::WIDE)?;
    let narrow = drawing(plot, "narrow", &Frame::NARROW)?;
    Ok(html! {
        figure id={ "plot-" (plot.id) } {
            h3 { (prose(&plot.question)) }
            (wide)
            (narrow)
            figcaption { (prose(&plot.note)) }
        }
    })
}

/// All of them, one below the other.
pub(super) fn figures(plots: &[Plot]) -> Result<Markup, DrawError> {
    let figures = plots.iter().map(figure).collect::<Result<Vec<_>, _>>()?;
    Ok(html! { @for figure in figures { (figure) } })
}

/// The drawing without its own size: the page says how wide it is.
fn drawing(plot: &Plot, class: &str, frame: &Frame) -> Result<Markup, DrawError> {
    let drawn = compact(&themed(&svg(plot, frame)?));
    let view_box = drawn
        .split_once(" viewBox=\"")
        .and_then(|(_, rest)| rest.split_once('"'));
    let inside = drawn
        .split_once('>')
        .and_then(|(_, rest)| rest.rsplit_once("</svg>"));
    let (Some((view_box, _)), Some((inside, _))) = (view_box, inside) else {
        return Ok(PreEscaped(drawn));
    };
    Ok(html! {
        svg class=(class) role="img" aria-label=(plot.question) viewBox=(view_box) xmlns="http://www.w3.org/2000/svg" {
            // The drawing escapes its own texts.
            (PreEscaped(inside))
        }
    })
}

/// Leaves out what is the default, and words that every text repeats.
fn compact(svg: &str) -> String {
    svg.replace(" opacity=\"1\"", "")
        .replace(" stroke=\"none\"", "")
        .replace(" stroke-width=\"1\"", "")
        .replace(" font-family=\"sans-serif\"", "")
        .replace("/>\n", "/>")
}
