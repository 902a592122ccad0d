//! When a flight recorder writes what it keeps: `p99(write, guest) > 100ms for 2s`.
//!
//! [`Expression::parse`] reads the condition and points at what is wrong in it. A [`Meter`] gets every event as it
//! passes, follows the requests that the condition is about, and says ten times a second whether it holds.
//!
//! ```
//! use nestrace_condition::{Expression, Layer};
//! let expression = Expression::parse("p99(write) > 100ms for 2s or oldest(any, device) > 1s")?;
//! assert_eq!(expression.layers(Layer::Qemu), [Layer::Qemu, Layer::Device].into());
//! # Ok::<(), nestrace_condition::ParseError>(())
//! ```
//!
//! # Constraints
//!
//! - Pure: the caller gives the events and the time. The same events at the same times give the same answer.
//! - Bounded, whatever a guest sends: requests in flight, comparisons and the slots of a window have limits.
//! - What was not seen does not hold: a percentile of no request is neither above nor below a limit, and no window counts
//!   before it has been watched for its whole length.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic
    )
)]

mod expression;
mod in_flight;
mod meter;
mod parse;
mod window;

pub use expression::{Comparison, Expression, Layer, Limit, Relation, Side, Statistic, Subject};
pub use meter::{Held, Meter, Reading};
pub use nestrace_sums::snapshot::Op;
pub use parse::ParseError;
