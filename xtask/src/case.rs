//! A test case on a live guest: what was expected, what was found, and how it is printed.

use std::fmt::Display;
use std::time::Instant;

use nestrace_rig::interrupt;

/// Counts cases and prints each as it ends.
#[derive(Debug, Default)]
pub struct Report {
    passed: Vec<String>,
    failed: Vec<String>,
}

impl Report {
    /// Runs one case and prints `pass` or `FAIL` with its figures.
    ///
    /// An error of `body` fails the case, not the run; only Ctrl-C is handed on.
    pub fn case(
        &mut self,
        name: &str,
        body: impl FnOnce(&mut Case) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        interrupt::check()?;
        let start = Instant::now();
        let mut case = Case::default();
        if let Err(error) = body(&mut case) {
            interrupt::check()?;
            case.mismatches.push(format!("failed to {error:#}"));
        }
        let good = case.is_good();
        let word = if good { "pass" } else { "FAIL" };
        let figures = case.figures.join(", ");
        let mut told = format!(
            "{word}  {name}  ({:.1} s, {} checks) {figures}\n",
            start.elapsed().as_secs_f64(),
            case.checks
        );
        for mismatch in &case.mismatches {
            told.push_str(&format!("      {mismatch}\n"));
        }
        // At once: others tell theirs beside it.
        print!("{told}");
        if good {
            &mut self.passed
        } else {
            &mut self.failed
        }
        .push(name.to_owned());
        Ok(good)
    }

    /// Adds the results of another thread.
    pub fn absorb(&mut self, other: Self) {
        self.passed.extend(other.passed);
        self.failed.extend(other.failed);
    }

    /// Names of the cases that passed.
    pub fn passed(&self) -> &[String] {
        &self.passed
    }

    /// Names of the cases that failed.
    pub fn failed(&self) -> &[String] {
        &self.failed
    }
}

/// One case while it runs.
#[derive(Debug, Default)]
pub struct Case {
    checks: u32,
    figures: Vec<String>,
    mismatches: Vec<String>,
}

impl Case {
    /// Whether all has held so far.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.mismatches.is_empty()
    }

    /// What has not held so far.
    #[must_use]
    pub fn mismatches(&self) -> &[String] {
        &self.mismatches
    }

    /// A figure for the line of the case.
    pub fn figure(&mut self, text: impl Into<String>) {
        self.figures.push(text.into());
    }

    /// `actual` has to be `expected`.
    pub fn equal<T: PartialEq + Display>(&mut self, what: &str, actual: T, expected: T) {
        self.holds(
            what,
            actual == expected,
            &format!("{actual}, expected {expected}"),
        );
    }

    /// `good` has to be true; `figures` are shown when it is not.
    pub fn holds(&mut self, what: &str, good: bool, figures: &str) {
        self.checks += 1;
        if !good {
            self.mismatches.push(format!("{what}: {figures}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_and_an_error_fail_a_case() {
        let mut report = Report::default();
        let good = |case: &mut Case| {
            case.equal("n", 1, 1);
            Ok(())
        };
        assert!(report.case("good", good).unwrap());
        let wrong = |case: &mut Case| {
            case.equal("n", 1, 2);
            Ok(())
        };
        assert!(!report.case("wrong", wrong).unwrap());
        assert!(!report.case("broken", |_| anyhow::bail!("boot")).unwrap());
        assert_eq!((report.passed().len(), report.failed().len()), (1, 2));
    }
}
