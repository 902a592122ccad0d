//! Events as text, one a line, for tests.
//!
//! `TIME WHAT OBJECT [OPERATION] [OFFSET+BYTES] [KEY=VALUE …]`, where TIME is in ns or with the
//! suffix `u` or `m`, WHAT is btt's letter or a short word of [`kind`], OBJECT a name (each name is
//! one address) or a hexadecimal number, OPERATION letters as blktrace prints them (`R` `W` `D` `F`,
//! `f` preflush, `u` FUA, `m` metadata, `r` read-ahead, `s` flush sequence, `n` not to wait), OFFSET and BYTES in
//! bytes. Keys are columns; `links=b2,b3` adds `Link` events to a D.

use nestrace_abi::flags::{self, op};
use nestrace_trace::{Event, Kind};

/// Device of block events that name none: 7:0.
pub const DEV: u32 = 7 << 20;

/// Parses a list; comments begin with `#`.
pub fn events(text: &str) -> Vec<Event> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .flat_map(event)
        .collect()
}

fn event(line: &str) -> Vec<Event> {
    let mut words = line.split_whitespace();
    let ts_ns = time(words.next().expect("time"));
    let (kind, sub) = kind(words.next().expect("what"));
    let file = matches!(
        kind.source(),
        nestrace_trace::Source::File | nestrace_trace::Source::Qemu
    );
    let mut event = Event {
        ts_ns,
        kind: kind as u8,
        sub,
        dev: if file { 0 } else { DEV },
        tid: 100,
        ..Event::default()
    };
    let mut links = Vec::new();
    for word in words {
        if let Some((key, value)) = word.split_once('=') {
            if key == "links" {
                links = value.split(',').map(address).collect();
            } else {
                set(&mut event, key, value);
            }
        } else if let Some((offset, bytes)) = word.split_once('+') {
            event.offset = offset.parse().expect("offset");
            event.bytes = bytes.parse().expect("bytes");
        } else if let Some(flags) = operation(word, kind) {
            event.flags = flags;
        } else {
            event.object = address(word);
        }
    }
    let mut all = vec![event];
    if !links.is_empty() {
        all[0].sub = links.len() as u8;
    }
    for three in links.chunks(3) {
        let at = |i: usize| three.get(i).copied().unwrap_or(0);
        all.push(Event {
            kind: Kind::Link as u8,
            related: at(0),
            offset: at(1),
            bytes: at(2),
            flags: 0,
            sub: 0,
            ..event
        });
    }
    all
}

fn time(word: &str) -> u64 {
    let (digits, unit) = match word.as_bytes().last() {
        Some(b'u') => (&word[..word.len() - 1], 1_000),
        Some(b'm') => (&word[..word.len() - 1], 1_000_000),
        _ => (word, 1),
    };
    digits.parse::<u64>().expect("time") * unit
}

fn kind(word: &str) -> (Kind, u8) {
    let kind = match word {
        "Q" => Kind::Queue,
        "G" => Kind::GetRequest,
        "M" => Kind::BackMerge,
        "F" => Kind::FrontMerge,
        "X" => Kind::Split,
        "A" => Kind::BioRemap,
        "made" => Kind::BioMade,
        "BC" => Kind::BioComplete,
        "I" => Kind::Insert,
        "D" => Kind::Issue,
        "RQ" => Kind::Requeue,
        "C" => Kind::Complete,
        "RM" => Kind::RequestMerge,
        "RD" => Kind::RequestDone,
        "aio-submit-read" => return (Kind::AioSubmit, op::READ),
        "aio-submit-write" => return (Kind::AioSubmit, op::WRITE),
        "aio-submit-fdsync" => return (Kind::AioSubmit, op::FDATASYNC),
        "read" => return (Kind::SyscallEnter, op::READ),
        "write" => return (Kind::SyscallEnter, op::WRITE),
        "fsync" => return (Kind::SyscallEnter, op::FSYNC),
        "fdatasync" => return (Kind::SyscallEnter, op::FDATASYNC),
        "msync" => return (Kind::SyscallEnter, op::MSYNC),
        "exit-msync" => return (Kind::SyscallExit, op::MSYNC),
        "exit-read" => return (Kind::SyscallExit, op::READ),
        "exit-write" => return (Kind::SyscallExit, op::WRITE),
        "exit-fsync" => return (Kind::SyscallExit, op::FSYNC),
        "log-force" => Kind::LogForce,
        "log-wait" => return (Kind::LogWait, 2),
        "log-space-sleep" => return (Kind::LogSpace, 1),
        "log-space-wake" => return (Kind::LogSpace, 2),
        "commit-wait" => return (Kind::CommitWait, 1),
        "throttle" => Kind::DirtyThrottle,
        "page-fault" => Kind::PageFault,
        "unlinked" => return (Kind::CallDone, op::UNLINK),
        "fallocate" => return (Kind::SyscallEnter, op::FALLOCATE),
        "io_submit" => return (Kind::SyscallEnter, op::IO_SUBMIT),
        "io_submit-exit" => return (Kind::SyscallExit, op::IO_SUBMIT),
        "exit" => Kind::SyscallExit,
        "uring-read" => return (Kind::UringSubmit, op::READ),
        "uring-write" => return (Kind::UringSubmit, op::WRITE),
        "uring-fdatasync" => return (Kind::UringSubmit, op::FDATASYNC),
        "uring-done" => Kind::UringComplete,
        "uring-async" => Kind::UringAsync,
        "dio-begin" => Kind::DioBegin,
        "dio-done" => Kind::DioComplete,
        "sync-enter" => return (Kind::SyncEnter, op::FDATASYNC),
        "sync-exit" => Kind::SyncExit,
        "rpc-read" => return (Kind::RpcBegin, op::READ),
        "rpc-write" => return (Kind::RpcBegin, op::WRITE),
        "rpc-commit" => return (Kind::RpcBegin, op::FSYNC),
        "rpc-end" => Kind::RpcEnd,
        "journal-start" => Kind::JournalCommitStart,
        "journal-end" => Kind::JournalCommitEnd,
        "acct-read" => return (Kind::AcctStart, 1),
        "acct-write" => return (Kind::AcctStart, 2),
        "acct-flush" => return (Kind::AcctStart, 3),
        "acct-unmap" => return (Kind::AcctStart, 4),
        "acct-done" => Kind::AcctDone,
        "acct-failed" => Kind::AcctFailed,
        "acct-invalid" => Kind::AcctInvalid,
        "preadv" => Kind::AioPreadv,
        "pwritev" => Kind::AioPwritev,
        "pwrite-zeroes" => Kind::AioPwriteZeroes,
        "aio-flush" => Kind::AioFlush,
        "pdiscard" => Kind::AioPdiscard,
        "push" => Kind::VirtqueuePush,
        "thread" => Kind::Thread,
        "loss" => Kind::Loss,
        other => panic!("no such event: {other}"),
    };
    (kind, 0)
}

/// Only block events have an operation, in capital letters first: objects begin with a small letter.
fn operation(word: &str, kind: Kind) -> Option<u32> {
    if kind.source() != nestrace_trace::Source::Block
        || !word.starts_with(['R', 'W', 'D', 'F', 'O'])
    {
        return None;
    }
    let mut bits = match word.as_bytes()[0] {
        b'R' => flags::OP_READ,
        b'W' => flags::OP_WRITE,
        b'D' => flags::OP_DISCARD,
        b'F' => flags::OP_FLUSH,
        _ => flags::OP_OTHER,
    };
    for letter in word[1..].chars() {
        bits |= match letter {
            'f' => flags::PREFLUSH,
            'u' => flags::FUA,
            'm' => flags::META,
            'r' => flags::RAHEAD,
            's' => flags::FLUSH_SEQ,
            'n' => flags::NOWAIT,
            other => panic!("no such flag: {other}"),
        };
    }
    Some(bits)
}

fn set(event: &mut Event, key: &str, value: &str) {
    match key {
        "dev" => event.dev = device(value),
        "tid" => event.tid = value.parse().expect("tid"),
        "sub" => event.sub = value.parse().expect("sub"),
        "rel" | "left" | "issued" => event.related = address(value),
        "of" => event.owner_dev = device(value),
        "inode" => event.inode = value.parse().expect("inode"),
        "origin" => event.origin = address(value),
        "iocb" => event.iocb = address(value),
        "end_io" => event.end_io = value.parse().expect("end_io"),
        "aux" => event.aux = value.parse().expect("aux"),
        "flags" => event.flags = value.parse().expect("flags"),
        "at" => event.file_offset = value.parse().expect("file offset"),
        "bytes" => event.bytes = value.parse().expect("bytes"),
        "result" => event.offset = value.parse::<i64>().expect("result").cast_unsigned(),
        "name" => {
            let mut comm = [0u8; 16];
            comm[..value.len()].copy_from_slice(value.as_bytes());
            event.related = u64::from_le_bytes(comm[..8].try_into().expect("8"));
            event.offset = u64::from_le_bytes(comm[8..].try_into().expect("8"));
        }
        "tgid" | "total" => event.object = value.parse().expect("number"),
        other => panic!("no such column: {other}"),
    }
}

fn device(value: &str) -> u32 {
    match value.split_once(':') {
        Some((major, minor)) => {
            major.parse::<u32>().expect("major") << 20 | minor.parse::<u32>().expect("minor")
        }
        None => value.parse().expect("guest"),
    }
}

/// A hexadecimal number is itself, digits are a time; a name is an address made of its letters.
pub fn address(word: &str) -> u64 {
    if let Some(hex) = word.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).expect("address");
    }
    if word.starts_with(|first: char| first.is_ascii_digit()) {
        return time(word);
    }
    let letters = word.bytes().fold(0u64, |address, byte| {
        (address * 37 + u64::from(byte)) & 0xff_ffff_ffff
    });
    0xffff_0000_0000_0000 | letters << 6
}
