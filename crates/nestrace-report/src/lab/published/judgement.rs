//! Whether a published statement held in a run.

use serde::Serialize;

use super::super::spread::Spread;

/// What a run says of a published statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Judgement {
    /// It is so here.
    Held,
    /// The direction is the published one, the effect has less than half of its size (by logarithm).
    Weaker,
    /// It is otherwise here, or no values allow half of the effect.
    DidNotHold,
    /// The repetitions lie too far apart, or are too few.
    NotDecidable,
}

impl Judgement {
    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Weaker => "held, but weaker",
            Self::DidNotHold => "did not hold",
            Self::NotDecidable => "not decidable here",
        }
    }
}

/// What a publication claims of a ratio of two performances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Claim {
    /// This ratio.
    Ratio(f64),
    /// The first is slower, and how much was not said.
    Slower,
    /// The first is no faster.
    NotFaster,
    /// Both are alike.
    Equal,
    /// Nothing that could be right or wrong.
    Nothing,
}

/// Differences up to this are none where a publication calls two things equal.
const EQUAL: f64 = 0.1;
/// Published ratios that are nearer to 1 than this claim no difference.
const PUBLISHED_EQUAL: f64 = 0.05;

/// The ratio of two performances: of the medians, and from what the values allow at least to what they allow at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RatioRange {
    pub(super) least: f64,
    pub(super) median: f64,
    pub(super) most: f64,
    /// Whether a difference is reported.
    pub(super) is_apart: bool,
}

impl RatioRange {
    pub(super) fn of(above: &Spread, below: &Spread) -> Option<Self> {
        let part = |value: f64, of: f64| (of > 0.0).then(|| value / of);
        Some(Self {
            least: part(above.min, below.max)?,
            median: part(above.median, below.median)?,
            most: part(above.max, below.min)?,
            is_apart: above.is_apart_from(below),
        })
    }

    fn is_within(&self, limit: f64) -> bool {
        self.least >= 1.0 - limit && self.most <= 1.0 + limit
    }

    /// Whether no values allow half of an effect, by its logarithm.
    fn excludes(&self, effect: f64) -> bool {
        if effect > 0.0 {
            self.most.ln() * 2.0 < effect
        } else {
            self.least.ln() * 2.0 > effect
        }
    }
}

impl Claim {
    /// `None` for a claim that claims nothing.
    pub(super) fn judge(self, ours: &RatioRange) -> Option<Judgement> {
        let (is_apart, median) = (ours.is_apart, ours.median);
        let judgement = match self {
            Self::Nothing => return None,
            Self::Ratio(ratio) if (ratio - 1.0).abs() < PUBLISHED_EQUAL => {
                return Self::Equal.judge(ours);
            }
            Self::Ratio(ratio) => {
                let (published, here) = (ratio.ln(), median.ln());
                if is_apart && published.signum() == here.signum() {
                    if here.abs() * 2.0 >= published.abs() {
                        Judgement::Held
                    } else {
                        Judgement::Weaker
                    }
                } else if is_apart || ours.is_within(PUBLISHED_EQUAL) || ours.excludes(published) {
                    Judgement::DidNotHold
                } else {
                    Judgement::NotDecidable
                }
            }
            Self::Slower if is_apart && median < 1.0 => Judgement::Held,
            Self::Slower if is_apart || ours.least > 1.0 - PUBLISHED_EQUAL => Judgement::DidNotHold,
            Self::NotFaster if ours.most < 1.0 + PUBLISHED_EQUAL || (is_apart && median < 1.0) => {
                Judgement::Held
            }
            Self::NotFaster if is_apart => Judgement::DidNotHold,
            Self::Equal if ours.is_within(EQUAL) => Judgement::Held,
            Self::Equal if is_apart && (median - 1.0).abs() > EQUAL => Judgement::DidNotHold,
            _ => Judgement::NotDecidable,
        };
        Some(judgement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(claim: Claim, above: [f64; 2], below: [f64; 2]) -> Option<Judgement> {
        let of = |values: [f64; 2]| Spread::of(values).unwrap();
        claim.judge(&RatioRange::of(&of(above), &of(below)).unwrap())
    }

    #[test]
    fn a_claim_is_held_against_what_the_values_allow() {
        use Judgement::{DidNotHold, Held, NotDecidable, Weaker};
        let hundred = [99.0, 101.0];
        for (claim, above, expected) in [
            (Claim::Ratio(0.2), [20.0, 22.0], Held),
            (Claim::Ratio(0.2), [80.0, 82.0], Weaker),
            (Claim::Ratio(0.2), [120.0, 130.0], DidNotHold),
            (Claim::Ratio(0.2), [99.5, 100.5], DidNotHold),
            (Claim::Ratio(0.2), [70.0, 110.0], DidNotHold),
            (Claim::Ratio(0.2), [40.0, 110.0], NotDecidable),
            (Claim::Ratio(3.0), [90.0, 150.0], DidNotHold),
            (Claim::Ratio(3.0), [90.0, 180.0], NotDecidable),
            (Claim::Ratio(1.6), [130.0, 140.0], Held),
            (Claim::Ratio(1.01), [99.0, 102.0], Held),
            (Claim::Slower, [97.0, 98.0], Held),
            (Claim::Slower, [90.0, 105.0], NotDecidable),
            (Claim::Slower, [99.0, 105.0], DidNotHold),
            (Claim::NotFaster, [50.0, 60.0], Held),
            (Claim::NotFaster, [98.0, 102.0], Held),
            (Claim::NotFaster, [98.0, 110.0], NotDecidable),
            (Claim::NotFaster, [105.0, 110.0], DidNotHold),
            (Claim::Equal, [95.0, 105.0], Held),
            (Claim::Equal, [95.0, 120.0], NotDecidable),
            (Claim::Equal, [103.0, 115.0], NotDecidable),
            (Claim::Equal, [80.0, 85.0], DidNotHold),
        ] {
            let judged = judged(claim, above, hundred);
            assert_eq!(judged, Some(expected), "{claim:?} {above:?}");
        }
        assert_eq!(judged(Claim::Nothing, hundred, hundred), None);
        // One value decides nothing.
        let one = Spread::of([20.0]).unwrap();
        let range = RatioRange::of(&one, &Spread::of([100.0]).unwrap()).unwrap();
        assert_eq!(Claim::Ratio(0.2).judge(&range), Some(NotDecidable));
    }
}
