//! Which bios got an identity that nothing proves: an event fitted several I/Os that are all the same to it.
//!
//! Latencies of such I/Os are right as a set, so they count. But each of them may stand for another one of the set, and
//! then no request is proven to be a bio's.

use super::line::Line;
use crate::model::pointer::PointerMap;

/// Marks that are kept. There are no more bios in flight; what remains is of bios whose end was not seen.
const MAX_MARKS: usize = 1 << 17;

/// Bios, by the addresses that they got at Q, that may be another one's.
#[derive(Debug, Default)]
pub(super) struct Guesses(PointerMap<u64, ()>);

/// Bios that were queued, and are in something whole or in part.
pub(super) trait OfBios {
    fn bios(&self) -> impl Iterator<Item = u64>;
}

impl Guesses {
    /// `taken` was one of several, and these are the `others`.
    pub(super) fn mark<'a, T: OfBios + 'a>(
        &mut self,
        taken: &T,
        others: impl Iterator<Item = &'a T>,
    ) {
        let mut is_one_of_several = false;
        for other in others {
            is_one_of_several = true;
            self.0.extend(other.bios().map(|bio| (bio, ())));
        }
        if is_one_of_several {
            self.0.extend(taken.bios().map(|bio| (bio, ())));
        }
        if self.0.len() > MAX_MARKS {
            self.forget_the_older();
        }
    }

    /// Whether a bio that has ended may have been another one. Its mark is gone then.
    pub(super) fn take(&mut self, bio: u64) -> bool {
        !self.0.is_empty() && self.0.remove(&bio).is_some()
    }

    /// Addresses ascend.
    #[cold]
    fn forget_the_older(&mut self) {
        let mut bios: Vec<u64> = self.0.keys().copied().collect();
        let (_, middle, _) = bios.select_nth_unstable(MAX_MARKS / 2);
        let middle = *middle;
        self.0.retain(|bio, ()| *bio > middle);
    }
}

/// Takes out of a line the oldest that is the one. Where others in it are the same to whoever asks, all are marked.
pub(super) fn take_guessing<T: OfBios>(
    line: &mut Line<T>,
    guesses: &mut Guesses,
    is_it: impl Fn(&T) -> bool,
) -> Option<T> {
    let taken = line.take(&is_it)?;
    guesses.mark(&taken, line.iter().filter(|other| is_it(other)));
    Some(taken)
}

#[cfg(test)]
impl Guesses {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
