//! The log of `call-writer`: a line for each call.

use std::fmt;
use std::str::FromStr;

/// Bits of a stamp's address that hold the offset in the file; the file's number stands above them.
pub const OFFSET_BITS: u32 = 40;

/// A call of `call-writer`. Times are the guest's `CLOCK_MONOTONIC` in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallLine {
    /// Line of the script, from 1.
    pub step: u32,
    /// Thread.
    pub tid: u32,
    /// `read`, `write`, `fsync`, `fdatasync` or `msync`.
    pub op: String,
    /// How the script calls the open file.
    pub file: String,
    /// Inode number.
    pub inode: u64,
    /// Byte offset in the file; 0 for a sync.
    pub offset: u64,
    /// Bytes; 0 for a sync.
    pub bytes: u64,
    /// What it returned.
    pub result: i64,
    /// Serial number in the stamps of its data; 0 for all but writes.
    pub serial: u64,
    /// Before the call or its submission.
    pub begin_ns: u64,
    /// After its return or completion.
    pub end_ns: u64,
}

impl fmt::Display for CallLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step,
            tid,
            op,
            file,
            inode,
            offset,
            bytes,
            result,
            serial,
            begin_ns,
            end_ns,
        } = self;
        write!(
            f,
            "{step},{tid},{op},{file},{inode},{offset},{bytes},{result},{serial},{begin_ns},{end_ns}"
        )
    }
}

/// A line that is none of `call-writer`'s.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read {0:?} as a line of call-writer's log")]
pub struct NotACall(pub String);

impl FromStr for CallLine {
    type Err = NotACall;

    fn from_str(line: &str) -> Result<Self, NotACall> {
        let words: Vec<&str> = line.trim().split(',').collect();
        let parsed = || {
            let [
                step,
                tid,
                op,
                file,
                inode,
                offset,
                bytes,
                result,
                serial,
                begin,
                end,
            ] = words.as_slice()
            else {
                return None;
            };
            Some(Self {
                step: step.parse().ok()?,
                tid: tid.parse().ok()?,
                op: (*op).to_owned(),
                file: (*file).to_owned(),
                inode: inode.parse().ok()?,
                offset: offset.parse().ok()?,
                bytes: bytes.parse().ok()?,
                result: result.parse().ok()?,
                serial: serial.parse().ok()?,
                begin_ns: begin.parse().ok()?,
                end_ns: end.parse().ok()?,
            })
        };
        parsed().ok_or_else(|| NotACall(line.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_back() {
        let call = CallLine {
            step: 3,
            tid: 9,
            op: "write".into(),
            file: "a".into(),
            inode: 12,
            offset: 4096,
            bytes: 512,
            result: -5,
            serial: 77,
            begin_ns: 10,
            end_ns: 20,
        };
        assert_eq!(call.to_string().parse(), Ok(call));
        assert_eq!(
            "1,2,write".parse::<CallLine>(),
            Err(NotACall("1,2,write".into()))
        );
    }
}
