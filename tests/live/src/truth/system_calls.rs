//! QEMU's writes as strace saw them, with the first bytes of what was written.

use anyhow::Context;
use nestrace_stamp::{STAMP_BYTES, Stamp};

/// strace's arguments after the process and the file: all writes with a position, and enough of the
/// data for a stamp.
pub fn arguments() -> Vec<String> {
    let stamp = STAMP_BYTES.to_string();
    let words = [
        "-f",
        "-qq",
        "-e",
        "signal=none",
        "-e",
        "trace=pwrite64,pwritev,pwritev2",
        "-xx",
        "-s",
        &stamp,
    ];
    words.map(str::to_owned).to_vec()
}

/// A write of one thread; the k-th of the thread in strace's file is its k-th of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteCall {
    /// Thread.
    pub tid: u32,
    /// What each part of its vector begins with; `None` for data without a stamp.
    pub parts: Vec<Option<Stamp>>,
}

impl WriteCall {
    /// The serial number that was written at an address of the guest's disk.
    pub fn serial_at(&self, address: u64) -> Option<u64> {
        let mut stamps = self.parts.iter().flatten();
        Some(stamps.find(|stamp| stamp.address == address)?.serial)
    }
}

/// Every write in strace's file, in its order.
pub fn parse(text: &str) -> anyhow::Result<Vec<WriteCall>> {
    let calls = text.lines().filter(|line| {
        ["pwrite64(", "pwritev(", "pwritev2("]
            .iter()
            .any(|call| line.contains(call))
    });
    calls
        .map(|line| parse_line(line).with_context(|| format!("read strace's line {line:?}")))
        .collect()
}

fn parse_line(line: &str) -> anyhow::Result<WriteCall> {
    let tid = line.split_whitespace().next().context("find the thread")?;
    let tid = tid.parse().context("read the thread")?;
    // Between quotation marks stand the data; -xx leaves no quotation mark within.
    let data = line.split('"').skip(1).step_by(2);
    let parts: Vec<Option<Stamp>> = data.map(|text| Stamp::read(&bytes(text))).collect();
    anyhow::ensure!(!parts.is_empty(), "find the data");
    Ok(WriteCall { tid, parts })
}

/// `\x4e\x53` as bytes.
fn bytes(text: &str) -> Vec<u8> {
    let hex = text.split("\\x").skip(1);
    hex.map_while(|digits| u8::from_str_radix(digits.get(..2)?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_in_single_vectored_and_unfinished_calls() {
        let mut data = vec![0; 512];
        Stamp::fill(&mut data, 4096, 5);
        let hex = |data: &[u8]| -> String {
            let each = data[..STAMP_BYTES].iter();
            each.map(|byte| format!("\\x{byte:02x}")).collect()
        };
        let first = hex(&data);
        Stamp::fill(&mut data, 8192, 6);
        let second = hex(&data);
        let text = format!(
            "31855 pwrite64(3, \"{first}\"..., 4096, 4096) = 4096\n\
             7 pwritev(12, [{{iov_base=\"{first}\"..., iov_len=4096}}, {{iov_base=\"{second}\"..., \
             iov_len=4096}}], 2, 4096 <unfinished ...>\n\
             7 <... pwritev resumed>) = 8192\n\
             8 pwrite64(3, \"\\x00\\x01\"..., 512, 0) = 512\n"
        );
        let calls = parse(&text).unwrap();
        assert_eq!(calls.len(), 3);
        assert_eq!((calls[0].tid, calls[0].serial_at(4096)), (31855, Some(5)));
        assert_eq!(calls[1].serial_at(8192), Some(6));
        assert_eq!(calls[1].serial_at(0), None);
        assert_eq!(calls[2].parts, [None]);
    }
}
