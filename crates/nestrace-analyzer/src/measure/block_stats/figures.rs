//! The curves of what is counted here, for plots.

use super::StatsMeter;
use crate::measure::histogram::CURVE_STEPS;
use crate::result::analysis::DeviceFigures;

impl StatsMeter {
    /// Adds the curves of sizes and of the wait for D.
    pub(crate) fn add_curves(&self, figures: &mut DeviceFigures) {
        figures.q2d = self.q2d.cdf(CURVE_STEPS);
        figures.queued_sectors = self.queued_sectors.cdf(CURVE_STEPS);
        figures.issued_sectors = self.issued_sectors.cdf(CURVE_STEPS);
    }
}
