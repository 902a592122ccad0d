//! `programs` of a plan: what guests get besides what they hold anyway.

use std::path::{Path, PathBuf};

use super::error::{Place, PlanError};
use super::section::Section;

/// The key.
pub(super) const KEY: &str = "programs";
/// Where guests have those that are named by a word.
const FOLDER: &str = "/usr/bin";

/// A program of this machine that a plan puts into guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name, or its path from `/` on.
    pub word: String,
    /// Where the plan says it.
    pub place: Place,
}

/// Where guests have a program: one that is named by its path at the same place.
#[must_use]
pub fn place_in_guest(program: &str) -> PathBuf {
    Path::new(FOLDER).join(program)
}

/// Reads it, where the plan has it.
///
/// # Errors
/// A word is no program's name, or there twice.
pub(super) fn read(top: &Section<'_>) -> Result<Vec<Program>, PlanError> {
    let mut programs: Vec<Program> = Vec::new();
    for (word, span) in top.words(KEY)?.into_iter().flatten() {
        if !is_program(&word) {
            let message = format!(
                "\"{word}\" is not a program: give a name in PATH, or a path that begins with /, without spaces"
            );
            return Err(top.error(&span, message));
        }
        let place = place_in_guest(&word);
        let mut others = programs.iter();
        if others.any(|other| place_in_guest(&other.word) == place) {
            let message = format!("guests would have two programs {}", place.display());
            return Err(top.error(&span, message));
        }
        programs.push(Program {
            place: Place::of(top.text, span.start),
            word,
        });
    }
    Ok(programs)
}

/// A file's name, or a path from `/` on that is written without detours.
fn is_program(word: &str) -> bool {
    let (is_path, rest) = match word.strip_prefix('/') {
        Some(rest) => (true, rest),
        None => (false, word),
    };
    let mut parts = rest.split('/');
    parts.all(|part| !["", ".", ".."].contains(&part))
        && (is_path || !rest.contains('/'))
        && !word.contains(|c: char| c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::*;

    fn plan(programs: &str) -> Result<Plan, PlanError> {
        Plan::read(&format!(
            "name = 'p'\nprograms = {programs}\n[[workload]]\nname = 'x'\ncommand = 'true'\n"
        ))
    }

    #[test]
    fn guests_have_the_programs_that_a_plan_names() {
        let own = plan("['sqlite3', '/bin/bash']").unwrap();
        let programs = own.guest_programs();
        assert!(programs.iter().eq(&["/bin/bash", "sqlite3"]));
        let places = programs.into_iter().map(place_in_guest);
        assert!(places.eq(["/bin/bash", "/usr/bin/sqlite3"].map(PathBuf::from)));
        own.check_programs(|_| true).unwrap();
        let error = own.check_programs(|program| program == "sqlite3");
        assert_eq!(
            error.unwrap_err().to_string(),
            "line 2, column 24: find the program /bin/bash for the guests"
        );
        let without = Plan::read("name = 'p'\n[[workload]]\nname = 'randwrite'\n").unwrap();
        assert!(without.guest_programs().is_empty());
        without.check_programs(|_| false).unwrap();
    }

    #[test]
    fn what_is_no_program_is_refused_with_its_place() {
        for (programs, expected) in [
            ("'a b'", "line 2, column 12: \"a b\" is not a program"),
            ("['sh', '']", "line 2, column 19: \"\" is not a program"),
            ("'bin/a'", "is not a program"),
            ("'/'", "is not a program"),
            ("'/usr/../bin/a'", "is not a program"),
            ("'.'", "is not a program"),
            ("['a', 'a']", "line 2, column 18: programs has \"a\" twice"),
            ("['a', '/usr/bin/a']", "two programs /usr/bin/a"),
            ("[]", "programs is empty"),
            (
                "'a'\n[guest]\ndomain = 'vm1'",
                "programs is only for guests that the lab boots",
            ),
        ] {
            let error = plan(programs).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\nexpected {expected}");
        }
    }
}
