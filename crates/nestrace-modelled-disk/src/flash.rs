//! A solid-state disk: dies of flash behind a controller, a bus and a cache.
//!
//! Data is mapped in units of 4 KiB. A write is done when the cache has it; full pages are programmed on the dies in
//! turn. A die that has no free block left collects the one with the least valid data: it moves that and erases. A read
//! waits for its dies, also while they program or erase. A flush programs what the cache holds, where a loss of power
//! would lose it.
//!
//! The disk begins trimmed: everything can be overwritten. A read of a unit that was never written still takes the
//! flash's time, from the die on which a disk written once in order has it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use crate::parameters::{FlashParameters, MAX_DISK_BYTES, ParametersError};
use crate::request::{Completion, DiskNs, Operation, Request, SECTOR_BYTES, sectors};

/// What the controller maps.
const UNIT_BYTES: u64 = 4096;
const UNIT_SECTORS: u64 = UNIT_BYTES / SECTOR_BYTES;
/// Blocks of a die besides its share of the disk and of the reserve: one is written, one takes in what is moved.
const SPARE_BLOCKS: u64 = 3;

/// A solid-state disk.
#[derive(Clone, Debug)]
pub struct Flash {
    parameters: FlashParameters,
    n_sectors: u64,
    units_per_page: u64,
    dies: Vec<Die>,
    next_die: usize,
    /// Where each unit lies that was written.
    map: HashMap<u32, Slot>,
    /// Units that wait for a full page.
    open_page: Vec<u32>,
    /// When what is being programmed will be done, and its bytes.
    programming: BinaryHeap<Reverse<(DiskNs, u64)>>,
    cached_bytes: u64,
    /// When a unit that was written last is on the flash; until then it is read from the cache.
    in_cache: HashMap<u32, DiskNs>,
    controller_free: DiskNs,
    bus_free: DiskNs,
    waiting: VecDeque<(DiskNs, Request)>,
    places: BinaryHeap<Reverse<DiskNs>>,
    last_completion: DiskNs,
    closed_until: DiskNs,
    done: BinaryHeap<Reverse<Completion>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    die: u32,
    block: u32,
}

#[derive(Clone, Debug)]
struct Die {
    free: DiskNs,
    blocks: Vec<Block>,
    /// Numbers of erased blocks.
    erased: Vec<u32>,
    /// The block that is written.
    open: u32,
    n_valid: u64,
}

#[derive(Clone, Debug, Default)]
struct Block {
    /// Units that were written into it, in order; some lie elsewhere by now.
    units: Vec<u32>,
    n_valid: u32,
}

impl Flash {
    /// A disk of `size_bytes`.
    ///
    /// # Errors
    /// It is empty or larger than units can be counted.
    pub fn new(parameters: &FlashParameters, size_bytes: u64) -> Result<Self, ParametersError> {
        if size_bytes < UNIT_BYTES {
            return Err(ParametersError::TooSmall {
                least_bytes: UNIT_BYTES,
            });
        }
        if size_bytes > MAX_DISK_BYTES {
            return Err(ParametersError::TooLarge);
        }
        let block_bytes = parameters.page_kib * 1024 * parameters.pages_per_block;
        let held = size_bytes as f64 * (1.0 + parameters.over_provisioning);
        let of_a_die = (held / parameters.dies as f64 / block_bytes as f64).ceil() as u64;
        let n_blocks = of_a_die + SPARE_BLOCKS;
        let die = Die {
            free: DiskNs(0),
            blocks: vec![Block::default(); n_blocks as usize],
            erased: (1..n_blocks as u32).rev().collect(),
            open: 0,
            n_valid: 0,
        };
        Ok(Self {
            n_sectors: size_bytes / SECTOR_BYTES,
            units_per_page: parameters.page_kib * 1024 / UNIT_BYTES,
            dies: vec![die; parameters.dies],
            next_die: 0,
            map: HashMap::new(),
            open_page: Vec::new(),
            programming: BinaryHeap::new(),
            cached_bytes: 0,
            in_cache: HashMap::new(),
            controller_free: DiskNs(0),
            bus_free: DiskNs(0),
            waiting: VecDeque::new(),
            places: BinaryHeap::new(),
            last_completion: DiskNs(0),
            closed_until: DiskNs(0),
            done: BinaryHeap::new(),
            parameters: parameters.clone(),
        })
    }

    /// Takes a request in. Times do not go back.
    pub fn submit(&mut self, at: DiskNs, request: Request) {
        self.waiting.push_back((at, request));
    }

    /// When the next command will be taken.
    #[must_use]
    pub fn next_decision(&self) -> Option<DiskNs> {
        let (at, request) = self.waiting.front()?;
        let ready = (*at).max(self.closed_until);
        if request.operation == Operation::Flush && self.parameters.is_flush_exclusive {
            return Some(ready.max(self.last_completion));
        }
        if self.places.len() < self.parameters.queue_depth {
            return Some(ready);
        }
        self.places.peek().map(|first| ready.max(first.0))
    }

    /// Decides what is due at `at`.
    pub fn decide(&mut self, at: DiskNs) {
        while self.places.peek().is_some_and(|first| first.0 <= at) {
            self.places.pop();
        }
        while self.next_decision().is_some_and(|due| due <= at) {
            let Some((_, request)) = self.waiting.pop_front() else {
                return;
            };
            let done = self.serve(&request, at);
            if request.operation == Operation::Flush && self.parameters.is_flush_exclusive {
                self.closed_until = done;
            }
            self.places.push(Reverse(done));
            self.last_completion = self.last_completion.max(done);
            self.done.push(Reverse(Completion {
                at: done,
                id: request.id,
            }));
        }
    }

    /// When the next completion that is known comes.
    #[must_use]
    pub fn next_completion(&self) -> Option<DiskNs> {
        self.done.peek().map(|first| first.0.at)
    }

    /// Takes completions up to `until`, in order of time.
    pub fn take_completions(&mut self, until: DiskNs, into: &mut Vec<Completion>) {
        while self.next_completion().is_some_and(|at| at <= until) {
            into.extend(self.done.pop().map(|first| first.0));
        }
    }

    fn serve(&mut self, request: &Request, at: DiskNs) -> DiskNs {
        let started = self.controller_free.max(at);
        self.controller_free = started.plus(us(self.parameters.command_us));
        let (first, end) = sectors(request, self.n_sectors);
        let units = (first / UNIT_SECTORS) as u32..end.div_ceil(UNIT_SECTORS) as u32;
        let bytes = (end - first) * SECTOR_BYTES;
        match request.operation {
            Operation::Read => self.read(units, bytes, started),
            Operation::Write => self.write(units, bytes, started),
            Operation::Flush => self.flush(started),
            Operation::Discard => {
                // Only whole units are free then.
                let whole = first.div_ceil(UNIT_SECTORS) as u32..(end / UNIT_SECTORS) as u32;
                for unit in whole {
                    self.forget(unit);
                }
                started.plus(us(self.parameters.write_latency_us))
            }
        }
    }

    fn read(&mut self, units: std::ops::Range<u32>, bytes: u64, started: DiskNs) -> DiskNs {
        let mut ready = started;
        let mut last_page = None;
        for (number, unit) in units.enumerate() {
            if self.in_cache.get(&unit).is_some_and(|&done| done > started) {
                continue;
            }
            let page = u64::from(unit) / self.units_per_page;
            let die = match self.map.get(&unit) {
                Some(slot) => slot.die as usize,
                None => (page % self.dies.len() as u64) as usize,
            };
            // Units that follow one another on a die share a page.
            let is_same = last_page == Some((page, die)) && number > 0;
            last_page = Some((page, die));
            if !is_same && let Some(die) = self.dies.get_mut(die) {
                die.free = die.free.max(started).plus(us(self.parameters.read_us));
                ready = ready.max(die.free);
            }
        }
        let sent = self.send(bytes, self.parameters.read_mb_per_s, ready);
        sent.plus(us(self.parameters.read_latency_us))
    }

    fn write(&mut self, units: std::ops::Range<u32>, bytes: u64, started: DiskNs) -> DiskNs {
        let mut taken = self.send(bytes, self.parameters.write_mb_per_s, started);
        for unit in units {
            if self.open_page.contains(&unit) {
                // Written again before its page was full.
                continue;
            }
            taken = taken.max(self.make_room(taken));
            self.cached_bytes += UNIT_BYTES;
            self.in_cache.insert(unit, DiskNs::MAX);
            self.open_page.push(unit);
            if self.open_page.len() as u64 >= self.units_per_page {
                self.program(taken);
            }
        }
        taken.plus(us(self.parameters.write_latency_us))
    }

    fn flush(&mut self, started: DiskNs) -> DiskNs {
        let mut done = started;
        if self.parameters.is_cache_volatile {
            self.program(started);
            let last = self.programming.iter().map(|it| it.0.0).max();
            done = done.max(last.unwrap_or(started));
        }
        done.plus(us(self.parameters.flush_us))
    }

    /// When `bytes` have gone over the bus.
    fn send(&mut self, bytes: u64, mb_per_s: f64, from: DiskNs) -> DiskNs {
        let ns = (bytes as f64 / mb_per_s * 1e3).ceil() as u64;
        self.bus_free = self.bus_free.max(from).plus(ns);
        self.bus_free
    }

    /// When the cache has room for another unit.
    fn make_room(&mut self, at: DiskNs) -> DiskNs {
        let room = self.parameters.cache_kib << 10;
        let mut free_at = at;
        while let Some(&Reverse((done, bytes))) = self.programming.peek() {
            if done > at && self.cached_bytes + UNIT_BYTES <= room {
                break;
            }
            self.programming.pop();
            self.cached_bytes = self.cached_bytes.saturating_sub(bytes);
            free_at = free_at.max(done);
        }
        // What is on the flash is not looked for in the cache any more.
        if self.in_cache.len() as u64 * UNIT_BYTES > 4 * room {
            self.in_cache.retain(|_, done| *done > at);
        }
        free_at
    }

    /// Programs the open page on the next die that has room.
    fn program(&mut self, at: DiskNs) {
        if self.open_page.is_empty() {
            return;
        }
        let units = std::mem::take(&mut self.open_page);
        let block_units = self.parameters.pages_per_block * self.units_per_page;
        let n = self.dies.len();
        let full =
            |die: &Die| die.n_valid + 2 * block_units > die.blocks.len() as u64 * block_units;
        let dies = (0..n).map(|step| (self.next_die + step) % n);
        let number = dies.into_iter().find(|&die| !full(&self.dies[die]));
        let number = number.unwrap_or(self.next_die);
        self.next_die = (number + 1) % n;
        let moved_ns = self.open_block(number, block_units);
        for &unit in &units {
            self.forget_on_flash(unit);
        }
        let die = &mut self.dies[number];
        let open = die.open;
        let block = &mut die.blocks[open as usize];
        // The rest of a page that is not full is lost to the block.
        for _ in units.len() as u64..self.units_per_page {
            block.units.push(u32::MAX);
        }
        block.units.extend(&units);
        block.n_valid += units.len() as u32;
        die.n_valid += units.len() as u64;
        let begun = die.free.max(at);
        die.free = begun.plus(moved_ns + us(self.parameters.program_us));
        let done = die.free;
        for &unit in &units {
            self.in_cache.insert(unit, done);
            let slot = Slot {
                die: number as u32,
                block: open,
            };
            self.map.insert(unit, slot);
        }
        self.programming
            .push(Reverse((done, units.len() as u64 * UNIT_BYTES)));
    }

    /// Has a die write into a block with room for a page; the nanoseconds that collecting takes.
    fn open_block(&mut self, number: usize, block_units: u64) -> u64 {
        let mut ns = 0;
        let die = &mut self.dies[number];
        // Each round that collects wins room, as long as a block is not all valid.
        for _ in 0..die.blocks.len() {
            if (die.blocks[die.open as usize].units.len() as u64) + self.units_per_page
                <= block_units
            {
                return ns;
            }
            let Some(next) = die.erased.pop() else {
                break;
            };
            let full = std::mem::replace(&mut die.open, next);
            if !die.erased.is_empty() {
                continue;
            }
            // `full` is a candidate too: nothing is written into it any more.
            let candidates = (0..die.blocks.len() as u32).filter(|&block| block != next);
            let least = candidates.min_by_key(|&block| die.blocks[block as usize].n_valid);
            let victim = least.unwrap_or(full);
            let units = std::mem::take(&mut die.blocks[victim as usize].units);
            let here = Slot {
                die: number as u32,
                block: victim,
            };
            let mut moved: Vec<u32> = units
                .into_iter()
                .filter(|unit| self.map.get(unit) == Some(&here))
                .collect();
            // A unit written twice into a block is in its list twice.
            moved.sort_unstable();
            moved.dedup();
            for &unit in &moved {
                self.map.insert(
                    unit,
                    Slot {
                        block: next,
                        ..here
                    },
                );
            }
            let pages = (moved.len() as u64).div_ceil(self.units_per_page);
            let each = us(self.parameters.read_us) + us(self.parameters.program_us);
            ns += pages * each + us(self.parameters.erase_ms * 1e3);
            die.blocks[victim as usize].n_valid = 0;
            die.blocks[next as usize].n_valid += moved.len() as u32;
            let tail = pages * self.units_per_page - moved.len() as u64;
            die.blocks[next as usize].units.extend(moved);
            let filler = std::iter::repeat_n(u32::MAX, tail as usize);
            die.blocks[next as usize].units.extend(filler);
            die.erased.push(victim);
        }
        ns
    }

    /// A unit's data is not needed any more.
    fn forget(&mut self, unit: u32) {
        self.forget_on_flash(unit);
        self.in_cache.remove(&unit);
        if let Some(number) = self.open_page.iter().position(|it| *it == unit) {
            self.open_page.remove(number);
            self.cached_bytes = self.cached_bytes.saturating_sub(UNIT_BYTES);
        }
    }

    fn forget_on_flash(&mut self, unit: u32) {
        if let Some(slot) = self.map.remove(&unit)
            && let Some(die) = self.dies.get_mut(slot.die as usize)
        {
            die.n_valid = die.n_valid.saturating_sub(1);
            let block = &mut die.blocks[slot.block as usize];
            block.n_valid = block.n_valid.saturating_sub(1);
        }
    }
}

fn us(microseconds: f64) -> u64 {
    (microseconds * 1e3) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;
    use crate::split_mix::SplitMix;

    fn small() -> FlashParameters {
        let Ok(Parameters::Flash(parameters)) = Parameters::built_in("sata-ssd") else {
            panic!("flash");
        };
        FlashParameters {
            dies: 4,
            pages_per_block: 8,
            ..parameters
        }
    }

    /// What the blocks say is what the map says, and nothing is lost.
    fn check(flash: &Flash) {
        let valid: u64 = flash.dies.iter().map(|die| die.n_valid).sum();
        assert_eq!(valid, flash.map.len() as u64);
        for die in &flash.dies {
            let of_blocks: u64 = die
                .blocks
                .iter()
                .map(|block| u64::from(block.n_valid))
                .sum();
            assert_eq!(of_blocks, die.n_valid);
            assert!(!die.erased.is_empty());
        }
    }

    #[test]
    fn collecting_keeps_every_unit_and_makes_overwriting_slower() {
        let size = 16 << 20;
        let mut flash = Flash::new(&small(), size).unwrap();
        let mut random = SplitMix(3);
        let mut rates = Vec::new();
        let mut at = DiskNs(0);
        for round in 0..4 {
            let begun = at;
            for id in 0..size / UNIT_BYTES {
                let unit = match round {
                    0 => id,
                    _ => random.below(size / UNIT_BYTES),
                };
                let write = Request {
                    id,
                    operation: Operation::Write,
                    offset_bytes: unit * UNIT_BYTES,
                    length_bytes: UNIT_BYTES,
                };
                flash.submit(at, write);
                flash.decide(at);
                let mut done = Vec::new();
                flash.take_completions(DiskNs::MAX, &mut done);
                at = done[0].at;
            }
            check(&flash);
            rates.push(at.since(begun));
        }
        let is_there = |unit| flash.map.contains_key(&unit) || flash.open_page.contains(&unit);
        assert!((0..(size / UNIT_BYTES) as u32).all(is_there));
        assert!(rates[3] > rates[0] * 3 / 2, "{rates:?}");
    }

    #[test]
    fn a_discard_makes_room() {
        let mut flash = Flash::new(&small(), 1 << 20).unwrap();
        let request = |operation| Request {
            id: 1,
            operation,
            offset_bytes: 0,
            length_bytes: 1 << 20,
        };
        for operation in [Operation::Write, Operation::Flush, Operation::Discard] {
            flash.submit(DiskNs(0), request(operation));
        }
        while let Some(at) = flash.next_decision() {
            flash.decide(at);
        }
        check(&flash);
        assert!(flash.map.is_empty());
    }
}
