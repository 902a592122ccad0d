//! The secrets that hide addresses: drawn when a recording begins, and never written anywhere.

use std::io;

use nestrace_trace::address::Shift;

/// A shift of new secrets, for the addresses of one machine in one recording. Draw it before privileges are given up:
/// afterwards the system call may not be allowed any more.
///
/// # Errors
/// Where the system has no random bytes, which no Linux since 3.17 lacks.
pub fn new_shift() -> io::Result<Shift> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(Shift::of_random(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recording_has_its_own() {
        let address = 0xffff_8880_1234_5000;
        let shifted = |_| new_shift().unwrap().address(address);
        let mut seen: Vec<u64> = (0..100).map(shifted).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 100);
    }
}
