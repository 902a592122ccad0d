//! QEMU's own trace log of virtio-blk requests.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::Context;

/// What QEMU is asked to write to its log.
const EVENTS: [&str; 4] = [
    "virtqueue_pop",
    "virtio_blk_handle_read",
    "virtio_blk_handle_write",
    "virtio_blk_req_complete",
];

/// QEMU's arguments for a log at `path`.
pub fn arguments(path: &Path) -> Vec<String> {
    let mut words = vec!["-D".to_owned(), path.display().to_string()];
    for event in EVENTS {
        words.extend(["-trace".to_owned(), event.to_owned()]);
    }
    words
}

/// A request that QEMU took from a queue of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Address of the request in QEMU: used again for later ones.
    pub address: u64,
    /// Address of the virtqueue that it came on.
    pub queue: u64,
    /// What it moves, of reads and writes: other operations are not logged any further.
    pub data: Option<Data>,
    /// Its completion notification was recorded.
    pub completed: bool,
}

/// Shifts the log's addresses as the recording's are shifted. The shift is the one distance that nearly all completion
/// notifications of the recording (`virtqueue_push`) have from requests of the log. The secret itself is not stored.
///
/// # Errors
/// Where there is no such distance.
pub fn shift_to(log: &mut [Request], pushed: &HashSet<u64>) -> anyhow::Result<()> {
    let addresses: HashSet<u64> = log.iter().map(|request| request.address).collect();
    let first = pushed
        .iter()
        .min()
        .context("find an element with a completion notification")?;
    let n_found = |distance: u64| {
        let is_logged = |element: &&u64| addresses.contains(&element.wrapping_sub(distance));
        pushed.iter().filter(is_logged).count()
    };
    let distances = addresses.iter().map(|address| first.wrapping_sub(*address));
    // Secrets are whole pages, and no distance of two requests in one heap is as large.
    let whole = distances.filter(|distance| distance.is_multiple_of(4096));
    let best = whole.max_by_key(|distance| n_found(*distance));
    let shift = best.filter(|distance| n_found(*distance) * 10 >= pushed.len() * 9);
    let shift = shift.context("find the shift of the recording's addresses")?;
    for request in log {
        request.address = request.address.wrapping_add(shift);
        request.queue = request.queue.wrapping_add(shift);
    }
    Ok(())
}

/// A read or write of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Whether it is a write.
    pub write: bool,
    /// First byte on the disk.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// QEMU took something from a queue of any device.
    Popped { queue: u64 },
    /// It is a read or write of a disk.
    Handled(Data),
    /// QEMU handed a disk's request back.
    Complete,
}

/// Every request of a disk, in the order in which QEMU took them. Queues that no read or write came on
/// belong to other devices.
pub fn parse(text: &str) -> anyhow::Result<Vec<Request>> {
    let mut requests: Vec<Request> = Vec::new();
    let mut latest: HashMap<u64, usize> = HashMap::new();
    let ours = text
        .lines()
        .filter(|line| EVENTS.iter().any(|event| line.starts_with(event)));
    for line in ours {
        let read = parse_line(line).with_context(|| format!("read QEMU's line {line:?}"));
        let (address, step) = read?;
        if let Step::Popped { queue } = step {
            latest.insert(address, requests.len());
            requests.push(Request {
                address,
                queue,
                data: None,
                completed: false,
            });
            continue;
        }
        let request = latest.get(&address).and_then(|at| requests.get_mut(*at));
        let request = request.with_context(|| format!("find the request of {line:?}"))?;
        match step {
            Step::Handled(data) => request.data = Some(data),
            _ => request.completed = true,
        }
    }
    let of_data = requests.iter().filter(|request| request.data.is_some());
    let queues: HashSet<u64> = of_data.map(|request| request.queue).collect();
    requests.retain(|request| queues.contains(&request.queue));
    Ok(requests)
}

/// `virtio_blk_handle_write vdev 0x1 req 0x2 sector 8 nsectors 8`: the address of the request (an
/// element of a queue is its first member), and what happened. There is no time in it: none is needed.
fn parse_line(line: &str) -> anyhow::Result<(u64, Step)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |name: &str| {
        let at = words.iter().position(|word| *word == name);
        let value = at.and_then(|at| words.get(at + 1).copied());
        value.with_context(|| format!("find {name}"))
    };
    let address = |name: &str| -> anyhow::Result<u64> {
        let digits = after(name)?.trim_start_matches("0x");
        Ok(u64::from_str_radix(digits, 16)?)
    };
    let sectors = |name: &str| -> anyhow::Result<u64> { Ok(after(name)?.parse::<u64>()? * 512) };
    Ok(match *words.first().context("find the event")? {
        "virtqueue_pop" => {
            let queue = address("vq")?;
            (address("elem")?, Step::Popped { queue })
        }
        "virtio_blk_req_complete" => (address("req")?, Step::Complete),
        event => {
            let data = Data {
                write: event == "virtio_blk_handle_write",
                offset: sectors("sector")?,
                bytes: sectors("nsectors")?,
            };
            (address("req")?, Step::Handled(data))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_the_disks_queues_are_read() {
        let text = "qemu: something else\n\
            virtqueue_pop vq 0xa0 elem 0x7f in_num 1 out_num 2\n\
            virtio_blk_handle_write vdev 0x55 req 0x7f sector 8 nsectors 16\n\
            virtqueue_pop vq 0xb0 elem 0x8f in_num 0 out_num 1\n\
            virtio_blk_req_complete vdev 0x55 req 0x7f status 0\n\
            virtqueue_pop vq 0xa0 elem 0x7f in_num 1 out_num 1\n";
        let write = Request {
            address: 0x7f,
            queue: 0xa0,
            data: Some(Data {
                write: true,
                offset: 4096,
                bytes: 8192,
            }),
            completed: true,
        };
        let flush = Request {
            data: None,
            completed: false,
            ..write
        };
        assert_eq!(parse(text).unwrap(), [write, flush]);
        assert!(parse("virtio_blk_handle_read vdev 0x1").is_err());
        let stray = "virtio_blk_req_complete vdev 0x1 req 0x2 status 0";
        assert!(parse(stray).is_err());
    }
}
