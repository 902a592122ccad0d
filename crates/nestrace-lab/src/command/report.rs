//! `nestrace lab report`: recordings are analyzed one after the other, and the report is written beside them.

use std::path::Path;

use nestrace_lab::experiment::{self, FolderError};
use nestrace_lab::regular_file;
use nestrace_report::html;
use nestrace_report::lab::{Comparison, Explanation, Results, csv, json, text};
use nestrace_rig::interrupt;

use super::folder_failure;
use super::results_folder::put;
use nestrace_bundle::{Options, analyze_noting};
use nestrace_cli::exit::{DONE, FAILURE, Failure, INPUT, noted, print, say};

/// Bytes of an earlier report that are read at most; the largest here has some.
const MAX_BYTES: u64 = 256 << 20;

/// Reads what a run left, analyzes the recordings, and writes the report beside them.
pub fn write(folder: &Path) -> Result<u8, Failure> {
    let (header, cells) = experiment::read_results(folder).map_err(|error| match error {
        FolderError::OtherCell { .. } | FolderError::Content { .. } => folder_failure(&error),
        _ => Failure::caused(INPUT, &error).hint("nestrace lab run PLAN -o DIR makes one"),
    })?;
    let mut results = Results {
        header,
        cells,
        ..Results::default()
    };
    explain_all(folder, &mut results, &interrupt::is_interrupted)?;
    let comparison = Comparison::new(&results);
    let page = html::lab::render(&comparison).map_err(|error| Failure::caused(FAILURE, &error))?;
    put(&folder.join("report.html"), page.as_bytes())?;
    put(
        &folder.join("report.json"),
        json::render(&comparison).as_bytes(),
    )?;
    put(
        &folder.join("report.csv"),
        csv::render(&comparison).as_bytes(),
    )?;
    print(&text::render(&comparison))?;
    say(format_args!(
        "the report is {}",
        folder.join("report.html").display()
    ));
    Ok(DONE)
}

/// What the recordings say, each with its own page; of those that are gone, what the last report had read from them. A
/// signal is seen between two of them.
fn explain_all(
    folder: &Path,
    results: &mut Results,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<(), Failure> {
    let earlier = regular_file::read(&folder.join("report.json"), MAX_BYTES);
    let mut earlier = json::explanations(&earlier.unwrap_or_default());
    let mut n_gone = 0;
    for cell in &results.cells {
        if is_interrupted() {
            return Err(interrupted(folder));
        }
        let name = format!("{}.nest", cell.id);
        if cell.recording.as_ref() != Some(&name) {
            continue;
        }
        let bundle = folder.join(&name);
        if bundle.is_dir() {
            match explain(folder, &bundle, &cell.id, &cell.disk) {
                Ok(explanation) => {
                    results.explanations.insert(cell.id.clone(), explanation);
                }
                Err(failure) => say(format_args!("note: {}: {failure}", cell.id)),
            }
        } else {
            n_gone += 1;
            let kept = earlier.remove_entry(&cell.id);
            results.explanations.extend(kept);
        }
        let page = format!("{}.html", cell.id);
        if results.explanations.contains_key(&cell.id) && folder.join(&page).is_file() {
            results.pages.insert(cell.id.clone(), page);
        }
    }
    if n_gone > 0 {
        say(format_args!(
            "note: {n_gone} recordings are gone: the figures that the last report read from them are kept"
        ));
    }
    Ok(())
}

/// Pages of cells that are written stay, and so does the report of before.
fn interrupted(folder: &Path) -> Failure {
    Failure::new(
        FAILURE,
        "interrupted before the report was written; finished runs are kept",
    )
    .hint(format!("nestrace lab report {}", folder.display()))
}

/// The analysis of a cell's recording, and its own report.
fn explain(folder: &Path, bundle: &Path, id: &str, disk: &str) -> Result<Explanation, String> {
    let analysis = analyze_noting(bundle, &Options::default(), &mut noted);
    let analysis = analysis.map_err(|error| Failure::from(error).message().to_owned())?;
    let page = html::render(&analysis).map_err(|error| error.to_string())?;
    let file = folder.join(format!("{id}.html"));
    put(&file, page.as_bytes()).map_err(|failure| failure.message().to_owned())?;
    Ok(Explanation::of(&analysis, disk))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell as Counter;

    use nestrace_report::lab::{Cell, RUN_SCHEMA, RunHeader};

    use super::*;

    fn cell(id: &str) -> Cell {
        Cell {
            id: id.to_owned(),
            ..Cell::default()
        }
    }

    #[test]
    fn a_signal_ends_a_report_between_two_cells() {
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results {
            cells: ["one", "two", "three"].map(cell).to_vec(),
            ..Results::default()
        };
        let asked = Counter::new(0);
        let at_the_second = || {
            asked.set(asked.get() + 1);
            asked.get() == 2
        };
        let failure = explain_all(folder.path(), &mut results, &at_the_second).unwrap_err();
        assert_eq!((failure.code(), asked.get()), (FAILURE, 2));
        assert!(failure.message().contains("finished runs are kept"));
        explain_all(folder.path(), &mut results, &|| false).unwrap();
    }

    #[test]
    fn a_damaged_cell_is_told_with_what_helps() {
        let folder = tempfile::tempdir().unwrap();
        let header = RunHeader {
            schema: RUN_SCHEMA.to_owned(),
            cells: vec![String::from("one")],
            ..RunHeader::default()
        };
        let text = serde_json::to_string(&header).unwrap();
        std::fs::write(folder.path().join("run.json"), text).unwrap();
        std::fs::write(folder.path().join("one.json"), "{").unwrap();
        let failure = write(folder.path()).unwrap_err();
        assert_eq!(failure.code(), INPUT);
        let hint = failure.hint_text().unwrap_or_default();
        assert!(hint.ends_with("one.json its runs are made again"), "{hint}");
        let nothing = write(&folder.path().join("none")).unwrap_err();
        let hint = nothing.hint_text().unwrap_or_default();
        assert!(hint.contains("lab run PLAN"), "{hint}");
    }
}
