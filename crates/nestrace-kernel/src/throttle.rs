//! Where the tracepoint of throttled writers has the length of a pause.

use crate::layout::Layout;

/// Places where the probes can read it.
const PLACES: [u8; 2] = [10, 6];

/// Which argument of `balance_dirty_pages` is the pause, in jiffies: its only signed one. Since 6.16 a structure stands for
/// some of those before it.
#[must_use]
pub fn pause_argument(layout: &Layout) -> Option<u8> {
    let arguments = layout.tracepoints.get("balance_dirty_pages")?;
    let place = arguments
        .iter()
        .position(|argument| argument.type_name == "long int")?;
    u8::try_from(place)
        .ok()
        .filter(|place| PLACES.contains(place))
}
