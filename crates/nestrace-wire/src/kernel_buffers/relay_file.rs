//! Records out of bytes that come in portions: a relay file of a trace that is running.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use nestrace_blktrace::{Front, Trace, take_native};

/// Takes records in this machine's byte order off bytes that come one portion after the other.
///
/// Holds at most the beginning of one record.
#[derive(Debug, Default)]
pub(super) struct RelayFile {
    begun: Vec<u8>,
    skipped: u64,
}

impl RelayFile {
    /// Takes bytes that follow the ones before, and gives the records that are whole then.
    pub(super) fn push(&mut self, bytes: &[u8], sink: impl FnMut(&Trace)) {
        if self.begun.is_empty() {
            let rest = self.take_records(bytes, sink);
            self.begun = bytes.get(rest..).unwrap_or_default().to_vec();
            return;
        }
        let mut whole = std::mem::take(&mut self.begun);
        whole.extend_from_slice(bytes);
        let rest = self.take_records(&whole, sink);
        // Not in the same memory, which was as large as the portion.
        self.begun = whole.get(rest..).unwrap_or_default().to_vec();
    }

    /// Gives the records; says where one begins that is not whole.
    fn take_records(&mut self, bytes: &[u8], mut sink: impl FnMut(&Trace)) -> usize {
        let mut trace = Trace::default();
        let mut at = 0_usize;
        loop {
            match take_native(bytes.get(at..).unwrap_or_default(), &mut trace) {
                Front::Record(n) => {
                    sink(&trace);
                    at = at.saturating_add(n);
                }
                Front::Other => {
                    at = at.saturating_add(1);
                    self.skipped = self.skipped.saturating_add(1);
                }
                Front::Begun => return at,
            }
        }
    }

    /// Bytes of a record that is not whole.
    pub(super) fn held(&self) -> usize {
        self.begun.len()
    }

    /// Bytes that were no record.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::arithmetic_side_effects)]

    use super::*;
    use nestrace_blktrace::Reader;

    const CPU_0: &[u8] =
        include_bytes!("../../../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.0");

    fn read(bytes: &[u8], portion: usize) -> (Vec<Trace>, u64) {
        let mut file = RelayFile::default();
        let mut traces = Vec::new();
        for part in bytes.chunks(portion) {
            file.push(part, |trace| traces.push(trace.clone()));
            assert!(file.held() < 48 + 64);
        }
        (traces, file.skipped())
    }

    #[test]
    fn any_portions_give_what_the_reader_gives() {
        let expected: Vec<Trace> = Reader::new(CPU_0).into_iter().flatten().collect();
        assert!(expected.len() > 100);
        for portion in [1, 47, 48, 100, 4096, CPU_0.len()] {
            assert_eq!(read(CPU_0, portion), (expected.clone(), 0), "{portion}");
        }
    }

    /// The same records as a kernel writes them that was asked for version 8 (`struct blk_io_trace2`).
    fn as_version_8(traces: &[Trace]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for trace in traces {
            bytes.extend_from_slice(&0x6561_7408_u32.to_ne_bytes());
            bytes.extend_from_slice(&trace.sequence.to_ne_bytes());
            bytes.extend_from_slice(&trace.time_ns.to_ne_bytes());
            bytes.extend_from_slice(&trace.sector.to_ne_bytes());
            bytes.extend_from_slice(&trace.bytes.to_ne_bytes());
            bytes.extend_from_slice(&trace.tid.to_ne_bytes());
            bytes.extend_from_slice(&trace.raw_action.to_ne_bytes());
            bytes.extend_from_slice(&trace.device.to_ne_bytes());
            bytes.extend_from_slice(&trace.cpu.to_ne_bytes());
            bytes.extend_from_slice(&trace.error.to_ne_bytes());
            let payload_len = u16::try_from(trace.payload.len()).unwrap_or(u16::MAX);
            bytes.extend_from_slice(&payload_len.to_ne_bytes());
            bytes.extend_from_slice(&[0; 12]);
            bytes.extend_from_slice(&trace.payload);
        }
        bytes
    }

    #[test]
    fn version_8_says_the_same() {
        let expected: Vec<Trace> = Reader::new(CPU_0).into_iter().flatten().collect();
        let bytes = as_version_8(&expected);
        for portion in [1, 47, 48, 63, 64, 100, bytes.len()] {
            let mut file = RelayFile::default();
            let mut traces = Vec::new();
            for part in bytes.chunks(portion) {
                file.push(part, |trace| traces.push(trace.clone()));
            }
            assert_eq!((&traces, file.skipped()), (&expected, 0), "{portion}");
        }
    }

    #[test]
    fn bytes_that_are_no_record_are_counted() {
        let rubbish = [&[0; 33][..], CPU_0].concat();
        let (traces, skipped) = read(&rubbish, 512);
        assert_eq!((traces.len() > 100, skipped), (true, 33));
    }
}
