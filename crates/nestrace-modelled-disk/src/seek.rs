//! How long a seek takes, by its distance.
//!
//! Short seeks accelerate all the way, so their time grows with the square root of the distance; long ones coast, so
//! theirs grows with the distance (Ruemmler and Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3),
//! 1994). The curve changes from one to the other at a third of the stroke. Data sheets give three figures: one track,
//! the average of all pairs of tracks, and the full stroke. The time at a third follows from them.

/// Where the square root ends, as a share of the stroke.
const KNEE: f64 = 1.0 / 3.0;

/// A curve, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct SeekCurve {
    single_ns: f64,
    knee_ns: f64,
    full_ns: f64,
}

impl SeekCurve {
    /// The curve with the mean `average_ns` over all pairs of tracks; `None` if there is none that rises.
    ///
    /// A pair at distance f of the stroke has the density 2 (1 − f). The mean is then single/5 + 88/135 knee +
    /// 20/135 full.
    #[must_use]
    pub fn new(single_ns: f64, average_ns: f64, full_ns: f64) -> Option<Self> {
        let knee_ns = (average_ns - single_ns / 5.0 - full_ns * 20.0 / 135.0) * 135.0 / 88.0;
        let rises = single_ns >= 0.0 && single_ns <= knee_ns && knee_ns <= full_ns;
        rises.then_some(Self {
            single_ns,
            knee_ns,
            full_ns,
        })
    }

    /// Nanoseconds of a seek over this share of the stroke, settling included; 0 for none.
    #[must_use]
    pub fn ns(&self, share_of_stroke: f64) -> f64 {
        let share = share_of_stroke.clamp(0.0, 1.0);
        if share == 0.0 {
            0.0
        } else if share <= KNEE {
            self.single_ns + (self.knee_ns - self.single_ns) * (share / KNEE).sqrt()
        } else {
            self.knee_ns + (self.full_ns - self.knee_ns) * (share - KNEE) / (1.0 - KNEE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_goes_through_the_data_sheets_figures() {
        let curve = SeekCurve::new(0.8e6, 8.5e6, 18.0e6).unwrap();
        let n = 20_000;
        let mean: f64 = (0..n)
            .map(|step| (f64::from(step) + 0.5) / f64::from(n))
            .map(|share| 2.0 * (1.0 - share) * curve.ns(share) / f64::from(n))
            .sum();
        assert!((mean / 8.5e6 - 1.0).abs() < 1e-3, "{mean}");
        assert_eq!(curve.ns(1.0), 18.0e6);
        assert!((curve.ns(1e-9) / 0.8e6 - 1.0).abs() < 0.01);
        assert_eq!(curve.ns(0.0), 0.0);
    }

    #[test]
    fn a_longer_seek_takes_no_less_time() {
        let curve = SeekCurve::new(1.0e6, 12.0e6, 20.0e6).unwrap();
        let times: Vec<f64> = (0..=1000)
            .map(|it| curve.ns(f64::from(it) / 1000.0))
            .collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn figures_that_contradict_one_another_make_no_curve() {
        assert!(SeekCurve::new(5.0e6, 4.0e6, 18.0e6).is_none());
        assert!(SeekCurve::new(1.0e6, 12.0e6, 8.0e6).is_none());
    }
}
