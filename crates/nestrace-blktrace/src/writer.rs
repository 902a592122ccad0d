//! Writes files that blkparse and btt read.

use std::collections::HashMap;
use std::io::{self, Write};

use super::Trace;
use crate::trace::{RECORD_BYTES, magic_v7};

/// Writes the records of one processor (or of several in one file, as `blkparse -d` does): version 7,
/// little-endian.
///
/// Numbers of records are given here, for each device and processor from 1.
///
/// ```
/// use nestrace_blktrace::{Action, Reader, Trace, Writer};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut issue = Trace::default();
/// (issue.time_ns, issue.bytes, issue.raw_action) = (5, 4096, Action::Issue as u64);
/// let mut writer = Writer::new(Vec::new());
/// writer.write(&issue)?;
/// let bytes = writer.into_inner();
/// let read: Vec<Trace> = Reader::new(&bytes[..])?.collect();
/// assert_eq!((read[0].action(), read[0].sequence), (Some(Action::Issue), 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    /// By device and processor.
    numbers: HashMap<(u32, u32), u32>,
}

impl<W: Write> Writer<W> {
    /// Writes to `output`, which is best buffered.
    pub fn new(output: W) -> Self {
        Self {
            output,
            numbers: HashMap::new(),
        }
    }

    /// Writes one record; its `sequence` and cgroup are not used.
    ///
    /// # Errors
    /// The output's.
    pub fn write(&mut self, trace: &Trace) -> io::Result<()> {
        let number = if trace.notify().is_some() {
            0
        } else {
            let number = self.numbers.entry((trace.device, trace.cpu)).or_default();
            *number = number.wrapping_add(1);
            *number
        };
        let payload_len = trace.payload.len().min(usize::from(u16::MAX));
        let payload = trace.payload.get(..payload_len).unwrap_or_default();
        let mut record = Vec::with_capacity(RECORD_BYTES + payload_len);
        record.extend(magic_v7().to_le_bytes());
        record.extend(number.to_le_bytes());
        record.extend(trace.time_ns.to_le_bytes());
        record.extend(trace.sector.to_le_bytes());
        record.extend(trace.bytes.to_le_bytes());
        record.extend((trace.raw_action as u32).to_le_bytes());
        record.extend(trace.tid.to_le_bytes());
        record.extend(trace.device.to_le_bytes());
        record.extend(trace.cpu.to_le_bytes());
        record.extend(trace.error.to_le_bytes());
        record.extend((payload_len as u16).to_le_bytes());
        record.extend(payload);
        self.output.write_all(&record)
    }

    /// Leaves out `n` numbers of a device on a processor: events that were lost.
    pub fn lose(&mut self, device: u32, cpu: u32, n: u64) {
        let number = self.numbers.entry((device, cpu)).or_default();
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        *number = number.saturating_add(n);
    }

    /// Makes the output write what it holds back.
    ///
    /// # Errors
    /// The output's.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// The output.
    pub fn into_inner(self) -> W {
        self.output
    }
}
