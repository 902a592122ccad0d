//! The report: one HTML file that needs nothing else, for a screen, a phone and a printer.
//!
//! First the answer, then the slowest calls and I/Os, the calls of programs, where the time goes, what was found, the plots, and what is
//! missing. There is no script in it and nothing is fetched; names that come from a recording are escaped.

mod breakdown;
mod calls;
pub mod compare;
mod devices;
mod figure;
mod findings;
pub mod fleet;
pub mod lab;
mod page;

use maud::{Markup, html};
use nestrace_analyzer::Analysis;

use crate::plots::{self, Chart, DrawError, Plot};
use crate::text::{answer, chains, facts, gaps};
use crate::units::of;
use figure::{figure, figures};
pub use page::GENERATOR;
use page::{document, footer, list, more, note, paragraph, paragraphs, prose, section};

/// Lines of a kind that are listed; a report stays small whatever went wrong.
const MAX_LINES: usize = 40;

/// The report.
///
/// # Errors
/// If a plot cannot be drawn.
///
/// ```
/// use nestrace_analyzer::{Analyzer, Options};
/// let analysis = Analyzer::analyze(&Default::default(), Options::default(), []);
/// let report = nestrace_report::html::render(&analysis).unwrap();
/// assert!(report.starts_with("<!doctype html>") && report.contains("No I/O was recorded"));
/// ```
pub fn render(analysis: &Analysis) -> Result<String, DrawError> {
    let plots = plots::all(analysis);
    let n = plots::n_left_out(analysis);
    let left_out = of(n as u64, "disk or device", "disks or devices");
    let body = html! {
        header {
            h1 { (prose(name(&analysis.trace.path))) }
            (page::facts(&facts(analysis)))
        }
        (section("answer", "In short", &paragraphs(answer::sentences(analysis))))
        (slowest(&plots)?)
        (calls::calls(analysis))
        (where_the_time_goes(analysis, &plots)?)
        (findings::findings(analysis))
        (of_each_disk(&plots)?)
        @if n > 0 {
            (note(&format!("The plots show the disks and devices that took most time; {left_out} more have no plots. Choose one with --guest and --device.")))
        }
        (devices::devices(analysis))
        (missing(analysis))
        (footer(&format!("nestrace analyze {} --format json", analysis.trace.path)))
    };
    Ok(document(&analysis.trace.path, &body))
}

/// Of a path, the last part that tells something.
fn name(path: &str) -> &str {
    match path.trim_end_matches('/').rsplit('/').next() {
        None | Some("") => "recording",
        Some(name) => name,
    }
}

/// Single calls and bios to scale.
fn slowest(plots: &[Plot]) -> Result<Markup, DrawError> {
    let is_one = |plot: &&Plot| matches!(plot.chart, Chart::Waterfall(_));
    let plots: Vec<Plot> = plots.iter().filter(is_one).cloned().collect();
    if plots.is_empty() {
        return Ok(Markup::default());
    }
    let title = match plots.iter().any(|plot| plot.id.starts_with("call-")) {
        true => "The slowest calls and I/Os, to scale",
        false => "The slowest I/Os, to scale",
    };
    Ok(section("slowest", title, &figures(&plots)?))
}

fn where_the_time_goes(analysis: &Analysis, plots: &[Plot]) -> Result<Markup, DrawError> {
    let plot = plots.iter().find(|plot| plot.id == "segments");
    if plot.is_none() && analysis.chains.is_empty() {
        return Ok(Markup::default());
    }
    let body = html! {
        @if let Some(plot) = plot { (figure(plot)?) }
        (breakdown::disks(analysis))
    };
    Ok(section("breakdown", "Where the time goes", &body))
}

fn of_each_disk(plots: &[Plot]) -> Result<Markup, DrawError> {
    let of_subjects: Vec<Plot> = plots
        .iter()
        .filter(|plot| !plot.subject.is_empty())
        .cloned()
        .collect();
    let sections = of_subjects
        .chunk_by(|a, b| a.subject == b.subject)
        .map(|plots| Ok((&plots[0], figures(plots)?)))
        .collect::<Result<Vec<_>, DrawError>>()?;
    Ok(html! {
        @for (first, figures) in sections {
            (section(&format!("plots-{}", first.id), &first.subject, &figures))
        }
    })
}

fn missing(analysis: &Analysis) -> Markup {
    let gaps = gaps::lines(analysis);
    let body = html! {
        @if gaps.is_empty() {
            (paragraph("Nothing, as far as is known: no event was lost, every probe was attached, the recording was closed."))
        }
        (list(gaps.iter().take(MAX_LINES).map(|gap| format!("{gap}."))))
        (more(gaps.len(), MAX_LINES))
        @if !analysis.clocks.is_empty() {
            h3 { "The guests' clocks" }
            (paragraphs(analysis.clocks.iter().take(MAX_LINES).map(chains::of_clock)))
        }
    };
    section("missing", "What is missing", &body)
}
