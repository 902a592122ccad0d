//! What md does in the stripes of RAID4, 5 and 6.
//!
//! A stripe is a block at the same place of each member. A write of it is a round: md reads the old blocks that it lacks for the
//! parity, then writes data and parity at once, and ends the bios of the array when all of that has been written. It begins to
//! write only when nothing else of the stripe is under way (`handle_stripe_dirtying()`, `s->locked == 0`), so whoever waits for
//! a block of the round waits for the whole round.
//!
//! All bios of a stripe have the same `bi_private`. md's cache uses that address again for other stripes, and the same stripe may
//! be written again while a large bio of the first round waits for its other stripes: a round ends where the place on the
//! members is another one, and before the first bio after its writes.

use nestrace_trace::Event;

use crate::model::operation::Operation;
use crate::model::pointer::PointerMap;
use crate::result::analysis::StripeIo;

/// Stripes remembered. A cache of md has 256, unless somebody raises that.
const MAX_STRIPES: usize = 1 << 14;
/// Arrays: damaged input may name any number.
const MAX_ARRAYS: usize = 256;

/// The round of a stripe that is under way, or was the last.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    number: u64,
    /// On the members.
    offset: u64,
    has_written: bool,
    /// Writes under way.
    writing: u32,
    /// It writes data of a bio of the array: its counts are the array's.
    counts: bool,
    io: StripeIo,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Stripes {
    /// By `bi_private`.
    rounds: PointerMap<u64, Round>,
    /// How many there were.
    begun: u64,
    /// By the arrays' device numbers.
    arrays: PointerMap<u32, StripeIo>,
}

impl Stripes {
    /// A bio of a stripe goes to a member; `for_bio`: it has data of a bio of the array. Gives the number of its round.
    pub(super) fn remapped(&mut self, event: &Event, for_bio: bool) -> u64 {
        if self.rounds.len() >= MAX_STRIPES && !self.rounds.contains_key(&event.related) {
            self.rounds.clear();
        }
        let is_read = Operation::of(event.op()) == Operation::Read;
        let round = self.rounds.entry(event.related).or_default();
        // Blocks for the next round may be read while this one writes; it writes when this one has.
        let is_over = round.has_written && (is_read || round.writing == 0);
        if round.number == 0 || round.offset != event.offset || is_over {
            self.begun += 1;
            *round = Round {
                number: self.begun,
                offset: event.offset,
                ..Round::default()
            };
        }
        if is_read {
            round.io.extra_reads += 1;
            round.io.extra_read_bytes += event.bytes;
        } else {
            round.has_written = true;
            round.writing += 1;
            // A block of parity has no place in the array.
            if event.former_offset() == 0 {
                round.io.parity_writes += 1;
                round.io.parity_write_bytes += event.bytes;
            }
            if for_bio && !round.counts {
                round.counts = true;
                round.io.writes = 1;
                round.io.partial_writes = u64::from(round.io.extra_reads > 0);
            }
        }
        let number = round.number;
        if round.counts {
            let io = std::mem::take(&mut round.io);
            self.count(event.former_dev(), io);
        }
        number
    }

    fn count(&mut self, array: u32, io: StripeIo) {
        if self.arrays.len() < MAX_ARRAYS || self.arrays.contains_key(&array) {
            self.arrays.entry(array).or_default().add(io);
        }
    }

    /// A write of a round has ended.
    pub(super) fn written(&mut self, stripe: u64, number: u64) {
        if let Some(round) = self.rounds.get_mut(&stripe)
            && round.number == number
        {
            round.writing = round.writing.saturating_sub(1);
        }
    }

    /// What an array did.
    pub(super) fn of_array(&self, dev: u32) -> Option<StripeIo> {
        self.arrays.get(&dev).copied()
    }
}
