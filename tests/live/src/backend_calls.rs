//! QEMU's calls of its block layer against its accounting: every byte that `block_acct_start` counted
//! went into a `blk_aio_*` call, merged or not.

use nestrace_trace::{Event, Kind};
use xtask::case::Case;

/// Reads and writes, as `block_acct_start` numbers them.
const READ_OR_WRITE: [u8; 2] = [1, 2];

/// Sums both over a recording, for workloads that read or write, without discards.
pub fn bytes_are_accounted(case: &mut Case, events: &[Event]) {
    let (mut accounted, mut called) = (0_u64, 0_u64);
    for event in events {
        match event.kind() {
            Some(Kind::AcctStart) if READ_OR_WRITE.contains(&event.sub) => accounted += event.bytes,
            Some(Kind::AioPreadv | Kind::AioPwritev | Kind::AioPwriteZeroes) => {
                called += event.bytes
            }
            _ => {}
        }
    }
    // Probes that saw nothing would agree too.
    case.holds(
        "bytes of blk_aio_* calls, more than none",
        called > 0,
        &called.to_string(),
    );
    case.equal("bytes of blk_aio_* calls", called, accounted);
}
