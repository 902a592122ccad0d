//! What a stream itself says of its losses, source by source.

use nestrace_abi::Source;
use nestrace_trace::Event;

/// Events that a stream's recorder dropped, in total by [`Source`], as the stream's newest `Loss` events have them.
/// [`crate::losses`] says what they come to.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossCounts([u64; Source::ALL.len()]);

impl LossCounts {
    /// Takes a `Loss` event. Says whether anything was lost since the last one of that source.
    pub(crate) fn grow(&mut self, event: &Event) -> bool {
        let Some(total) = self.0.get_mut(usize::from(event.sub)) else {
            return false;
        };
        let more = event.lost_so_far() > *total || event.is_gap();
        *total = (*total).max(event.lost_so_far());
        more
    }

    /// Whether a `Loss` event is about the block layer's own events.
    pub(crate) fn is_of_blocks(event: &Event) -> bool {
        [Source::Block as u8, Source::Walk as u8].contains(&event.sub)
    }

    /// In the order of [`Source::ALL`].
    pub(crate) const fn totals(self) -> [u64; Source::ALL.len()] {
        self.0
    }
}
