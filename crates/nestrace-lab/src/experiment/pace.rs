//! How long steps really take, beside what was foreseen.

/// Seconds of the estimate after which the pace so far says more than the estimate.
const IS_KNOWN: f64 = 20.0;
/// How many times longer than usual a step counts at most. One that hangs takes forty times as long and says nothing of
/// the next; a boot, which others of its kind will have too, takes three or four.
const MOST: f64 = 5.0;

/// The steps that were done.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// Seconds that were foreseen, and that it took.
    steps: Vec<(f64, f64)>,
}

impl Pace {
    /// One more.
    pub(super) fn note(&mut self, foreseen: f64, took: f64) {
        self.steps.push((foreseen, took));
    }

    /// How many times longer than foreseen a step takes.
    pub(super) fn factor(&self) -> f64 {
        let foreseen: f64 = self.steps.iter().map(|(foreseen, _)| foreseen).sum();
        if foreseen <= IS_KNOWN {
            return 1.0;
        }
        let ratios = self.steps.iter().map(|(foreseen, took)| took / foreseen);
        let mut ratios: Vec<f64> = ratios.filter(|ratio| ratio.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        // Of two the smaller: one of them may have hung.
        let median = ratios.len().saturating_sub(1) / 2;
        let most = MOST * ratios.get(median).copied().unwrap_or(1.0);
        let counted = |(foreseen, took): &(f64, f64)| took.min(most * foreseen);
        self.steps.iter().map(counted).sum::<f64>() / foreseen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factor(took: &[f64]) -> f64 {
        let mut pace = Pace::default();
        for seconds in took {
            pace.note(10.0, *seconds);
        }
        pace.factor()
    }

    #[test]
    fn the_pace_corrects_the_estimate_once_it_is_known() {
        assert_eq!(factor(&[]), 1.0);
        assert_eq!(factor(&[50.0, 50.0]), 1.0);
        assert_eq!(factor(&[20.0, 20.0, 20.0]), 2.0);
        assert_eq!(factor(&[0.0, 0.0, 0.0]), 0.0);
    }

    #[test]
    fn a_boot_counts_and_a_hang_hardly_does() {
        assert_eq!(factor(&[10.0, 10.0, 40.0, 10.0]), 1.75);
        // Of six steps one hung for ten minutes.
        let hung = factor(&[10.0, 10.0, 600.0, 10.0, 10.0, 10.0]);
        assert!(hung < 2.0, "{hung}");
        assert_eq!(factor(&[600.0, 10.0, 10.0]), 7.0 / 3.0);
        let mut pace = Pace::default();
        pace.note(5.0, 200.0);
        pace.note(25.0, 25.0);
        assert!(pace.factor() < 2.0);
    }
}
