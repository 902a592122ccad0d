//! The report: one HTML file that needs nothing else, for a screen, a phone and a printer.
//!
//! First the answer, then where the time goes, what was found, the plots, and what is missing. There is
//! no script in it and nothing is fetched; names that come from a recording are escaped.

mod breakdown;
pub mod compare;
mod devices;
mod figure;
mod findings;
pub mod lab;
mod page;

use nestrace_analyzer::Analysis;

use crate::plots::{self, DrawError, Plot};
use crate::text::{answer, chains, facts, gaps};
use crate::units::of;
use page::{Page, escape};

/// Lines of a kind that are listed; a report stays small whatever went wrong.
const MOST_LINES: usize = 40;

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
    let mut page = Page::new(&analysis.trace.path);
    page.raw("<header>");
    let name = match analysis.trace.path.trim_end_matches('/').rsplit('/').next() {
        None | Some("") => "recording",
        Some(name) => name,
    };
    page.element("h1", name);
    page.element("p class=facts", &facts(analysis));
    page.raw("</header>");
    page.section("answer", "In short");
    answer::sentences(analysis)
        .iter()
        .for_each(|sentence| page.element("p", sentence));
    page.end_section();
    where_the_time_goes(analysis, &plots, &mut page)?;
    findings::write(analysis, &mut page);
    of_each_disk(&plots, &mut page)?;
    let n = plots::n_left_out(analysis);
    if n > 0 {
        let left_out = of(n as u64, "disk or device", "disks or devices");
        page.element("p class=note", &format!("Plots are of those on which most time was spent; {left_out} more have none: choose one with --guest and --device."));
    }
    devices::write(analysis, &mut page);
    missing(analysis, &mut page);
    Ok(page.finish())
}

fn where_the_time_goes(
    analysis: &Analysis,
    plots: &[Plot],
    page: &mut Page,
) -> Result<(), DrawError> {
    let plot = plots.iter().find(|plot| plot.id == "segments");
    if plot.is_none() && analysis.chains.is_empty() {
        return Ok(());
    }
    page.section("breakdown", "Where the time goes");
    if let Some(plot) = plot {
        figure::write(plot, page)?;
    }
    breakdown::write(analysis, page);
    page.end_section();
    Ok(())
}

fn of_each_disk(plots: &[Plot], page: &mut Page) -> Result<(), DrawError> {
    let mut subject = "";
    for plot in plots.iter().filter(|plot| !plot.subject.is_empty()) {
        if plot.subject != subject {
            if !subject.is_empty() {
                page.end_section();
            }
            page.section(&format!("plots-{}", plot.id), &plot.subject);
            subject = &plot.subject;
        }
        figure::write(plot, page)?;
    }
    if !subject.is_empty() {
        page.end_section();
    }
    Ok(())
}

fn missing(analysis: &Analysis, page: &mut Page) {
    let gaps = gaps::lines(analysis);
    page.section("missing", "What is missing");
    if gaps.is_empty() {
        page.element("p", "Nothing that is known: no event was lost, every probe was attached, the recording was closed.");
    }
    if !gaps.is_empty() {
        page.raw("<ul>");
        let shown = gaps.iter().take(MOST_LINES);
        shown.for_each(|gap| page.element("li", &format!("{gap}.")));
        page.raw("</ul>");
    }
    if gaps.len() > MOST_LINES {
        page.element(
            "p",
            &format!("{} more: see --format json.", gaps.len() - MOST_LINES),
        );
    }
    if !analysis.clocks.is_empty() {
        page.element("h3", "The guests' clocks");
        let clocks = analysis.clocks.iter().take(MOST_LINES);
        clocks.for_each(|clock| page.element("p", &chains::of_clock(clock)));
    }
    page.end_section();
    let command = format!("nestrace analyze {} --format json", analysis.trace.path);
    page.raw(&format!(
        "<footer><p>Every number: <code>{}</code></p></footer>",
        escape(&command)
    ));
}
