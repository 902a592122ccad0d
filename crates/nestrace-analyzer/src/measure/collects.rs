//! How much is collected of a device.

use crate::measure::histogram::Histogram;

/// How much is collected of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Collects {
    #[default]
    All,
    /// Neither what plots and comparisons are made of nor vscsiStats' histograms, sizes before C and, of devices with
    /// requests, who uses them.
    WhatBttHas,
}

impl Collects {
    /// Whether nothing is collected that btt has not.
    #[inline]
    pub(crate) fn only_what_btt_has(self) -> bool {
        self == Self::WhatBttHas
    }

    /// For a distribution that btt's view shows no quantile of.
    pub(crate) fn histogram(self) -> Histogram {
        match self {
            Self::All => Histogram::default(),
            Self::WhatBttHas => Histogram::of_sums(),
        }
    }
}
