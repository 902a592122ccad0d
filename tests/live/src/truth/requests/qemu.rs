//! QEMU's requests: the recording's against those of QEMU's own log.
//!
//! Both name a request by its address, which is used again for later requests. The k-th that the
//! recording has at an address is the k-th that the log has there: no time is compared.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::Context;
use nestrace_trace::{Event, Kind};
use xtask::case::Case;

use super::key::{Key, Operation};
use crate::truth::qemu_log;

/// Types of QEMU's accounting.
const ACCT_READ: u8 = 1;
const ACCT_WRITE: u8 = 2;
const ACCT_FLUSH: u8 = 3;

/// How many requests that differ from the log are printed one by one.
const TOLD: usize = 5;

/// A request that the recording and the log agree on.
#[derive(Clone, Copy, Debug)]
pub struct QemuRequest {
    /// Its begin in the recording: `block_acct_start`, of discards the `blk_aio_*` call.
    pub ts_ns: u64,
    /// Address of its virtqueue.
    pub queue: u64,
    /// What it asks for.
    pub key: Key,
    /// Address in QEMU of the page that its data begins in.
    pub page: Option<u64>,
}

/// A request as the recording has it.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    ts_ns: u64,
    /// `block_acct_start`: type and bytes.
    accounted: Option<(u8, u64)>,
    /// `blk_aio_*`: what it asks for, and the page of its data.
    call: Option<(Key, Option<u64>)>,
}

/// The requests of a disk that recording and log have in common, in the order of the log.
///
/// QEMU must not merge requests: a merged one has no call, and so no buffer, of its own.
pub fn requests(
    case: &mut Case,
    events: &[Event],
    log: &[qemu_log::Request],
) -> anyhow::Result<Vec<QemuRequest>> {
    let distance = cookie_above_request(events, log)?;
    let recorded = recorded(events, distance);
    let n_recorded: usize = recorded.values().map(Vec::len).sum();
    case.equal("requests in QEMU's log", log.len(), n_recorded);
    let open = log.iter().filter(|request| !request.completed).count();
    case.equal("requests whose end is not in QEMU's log", open, 0);
    let mut used: HashMap<u64, usize> = HashMap::new();
    let (mut common, mut strange) = (Vec::new(), Vec::new());
    for entry in log {
        let k = used.entry(entry.address).or_default();
        let of_address = recorded.get(&entry.address);
        let request = of_address.and_then(|requests| requests.get(*k));
        *k += 1;
        match request.and_then(|request| agreed(entry, request)) {
            Some(request) => common.push(request),
            None => strange.push((entry, request)),
        }
    }
    for (entry, request) in strange.iter().take(TOLD) {
        let figures = format!("{entry:?} against {request:?}");
        case.holds("a request that the log has otherwise", false, &figures);
    }
    case.equal("requests that the log has otherwise", strange.len(), 0);
    Ok(common)
}

/// How far the cookie of QEMU's accounting lies above the request's address: a member of it. Only the
/// true distance takes every cookie to an address that the log has.
fn cookie_above_request(events: &[Event], log: &[qemu_log::Request]) -> anyhow::Result<u64> {
    let addresses: HashSet<u64> = log.iter().map(|request| request.address).collect();
    let starts = events
        .iter()
        .filter(|event| event.kind() == Some(Kind::AcctStart));
    let cookies: HashSet<u64> = starts.map(|event| event.object).collect();
    let some_cookie = cookies
        .iter()
        .next()
        .context("find a request of QEMU's accounting")?;
    let possible = addresses
        .iter()
        .map(|address| some_cookie.wrapping_sub(*address));
    let known = |distance: &u64| {
        let there = |cookie: &&u64| addresses.contains(&cookie.wrapping_sub(*distance));
        cookies.iter().filter(there).count()
    };
    possible
        .max_by_key(known)
        .context("find a request in QEMU's log")
}

/// The recording's requests by address, each in the order of time.
fn recorded(events: &[Event], distance: u64) -> BTreeMap<u64, Vec<Recorded>> {
    let mut requests: BTreeMap<u64, Vec<Recorded>> = BTreeMap::new();
    for event in events {
        if event.kind() == Some(Kind::AcctStart) {
            let address = event.object.wrapping_sub(distance);
            requests.entry(address).or_default().push(Recorded {
                ts_ns: event.ts_ns,
                accounted: Some((event.sub, event.bytes)),
                call: None,
            });
            continue;
        }
        let Some(operation) = operation_of_call(event) else {
            continue;
        };
        let key = match operation {
            Operation::Flush => Key {
                operation,
                offset: 0,
                bytes: 0,
            },
            _ => Key {
                operation,
                offset: event.offset,
                bytes: event.bytes,
            },
        };
        let call = Some((key, (event.iocb != 0).then_some(event.iocb & !0xfff)));
        let of_address = requests.entry(event.object).or_default();
        match of_address.last_mut().filter(|last| last.call.is_none()) {
            Some(accounted) => accounted.call = call,
            None => of_address.push(Recorded {
                ts_ns: event.ts_ns,
                accounted: None,
                call,
            }),
        }
    }
    requests
}

fn operation_of_call(event: &Event) -> Option<Operation> {
    match event.kind()? {
        Kind::AioPreadv => Some(Operation::Read),
        Kind::AioPwritev => Some(Operation::Write),
        Kind::AioPwriteZeroes => Some(Operation::WriteZeroes),
        Kind::AioPdiscard => Some(Operation::Discard),
        Kind::AioFlush => Some(Operation::Flush),
        _ => None,
    }
}

/// The request, if log, accounting and call say the same of it.
fn agreed(entry: &qemu_log::Request, request: &Recorded) -> Option<QemuRequest> {
    let (key, page) = request.call?;
    let logged = entry.data.map(|data| Key {
        operation: if data.write {
            Operation::Write
        } else {
            Operation::Read
        },
        offset: data.offset,
        bytes: data.bytes,
    });
    let as_logged = match key.operation {
        Operation::Read | Operation::Write => logged == Some(key),
        _ => logged.is_none(),
    };
    let as_accounted = match request.accounted {
        Some((ACCT_READ, bytes)) => key.operation == Operation::Read && bytes == key.bytes,
        Some((ACCT_WRITE, bytes)) => {
            let writes = [Operation::Write, Operation::WriteZeroes];
            writes.contains(&key.operation) && bytes == key.bytes
        }
        Some((ACCT_FLUSH, _)) => key.operation == Operation::Flush,
        Some(_) => key.operation == Operation::Discard,
        // QEMU 7.2 does not account discards of virtio-blk.
        None => key.operation == Operation::Discard,
    };
    (as_logged && as_accounted).then_some(QemuRequest {
        ts_ns: request.ts_ns,
        queue: entry.queue,
        key,
        page,
    })
}
