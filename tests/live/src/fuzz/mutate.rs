//! Makes damaged inputs from sound ones: what disks, careless copies and people with intent do to a
//! file.

/// An input is never longer.
const MAX_BYTES: usize = 64 << 10;
/// Numbers that readers stumble over.
const NUMBERS: [u64; 12] = [
    0,
    1,
    7,
    8,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    u64::MAX / 2,
    u64::MAX,
];

/// Gives one input after the other; the same ones for the same seed.
pub struct Mutator<'a> {
    seeds: &'a [Vec<u8>],
    state: u64,
}

impl<'a> Mutator<'a> {
    /// Starts with sound inputs, at least one.
    pub fn new(seeds: &'a [Vec<u8>], seed: u64) -> Self {
        Self { seeds, state: seed }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.any_seed().to_vec();
        for _ in 0..=self.below(6) {
            self.mutate(&mut input);
        }
        input.truncate(MAX_BYTES);
        input
    }

    fn any_seed(&mut self) -> &'a [u8] {
        let place = self.below(self.seeds.len());
        &self.seeds[place]
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let len = input.len();
        let at = self.below(len + 1);
        match self.below(9) {
            0 | 1 if at < len => input[at] ^= 1 << self.below(8),
            2 if at < len => input[at] = self.number() as u8,
            3 => {
                let width = [2, 4, 8][self.below(3)];
                let mut bytes = NUMBERS[self.below(NUMBERS.len())].to_le_bytes();
                if self.below(4) == 0 {
                    bytes[..width].reverse();
                }
                let end = (at + width).min(len);
                input[at..end].copy_from_slice(&bytes[..end - at]);
            }
            4 => input.truncate(at),
            5 => {
                let end = (at + self.below(200)).min(len);
                input.drain(at..end);
            }
            6 => {
                let bytes: Vec<u8> = (0..self.below(40)).map(|_| self.number() as u8).collect();
                input.splice(at..at, bytes);
            }
            // A part comes twice, or in another place.
            7 => {
                let end = (at + self.below(300)).min(len);
                let part = input[at..end].to_vec();
                let to = self.below(len + 1);
                input.splice(to..to, part);
            }
            // The end of another.
            8 => {
                let other = self.any_seed();
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => {}
        }
    }

    fn below(&mut self, n: usize) -> usize {
        (self.number() % n.max(1) as u64) as usize
    }

    /// splitmix64 (Steele, Lea and Flood, 2014).
    fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
