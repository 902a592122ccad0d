//! E4.

use nestrace_report::lab::{Cell, Row, Spread};

use super::{Page, has_finding, performance, range, segment_ms, spread};
use crate::lab::{comparison, results};

const RUN: &str = "image-format-cache-bus";

/// Performance of cells to that of those that differ from them in one axis alone.
fn pairs(
    cells: &[Cell],
    axis: &str,
    [own, other]: [&str; 2],
    fits: &dyn Fn(&Cell) -> bool,
) -> Spread {
    let own = cells
        .iter()
        .filter(|cell| cell.word(axis) == own && fits(cell));
    spread(own.filter_map(|cell| {
        let alike = |one: &&Cell| {
            let mut axes = cell.axes.iter();
            one.workload == cell.workload
                && one.word(axis) == other
                && axes.all(|(name, word)| name == axis || one.word(name) == word)
        };
        let one = cells.iter().find(alike)?;
        Some(performance(cell) / performance(one))
    }))
}

#[test]
fn what_is_said_of_e4_is_in_its_files() {
    let results = results(RUN);
    let mut sentences = Vec::new();
    let flushes = |fits: &dyn Fn(&Cell) -> bool| {
        let own = results.cells.iter();
        let own = own.filter(|cell| cell.workload == "unpack" && fits(cell));
        let runs = own.flat_map(|cell| &cell.runs);
        let n = spread(runs.map(|run| run.host.disk_flushes as f64));
        format!("{} to {}", n.min, n.max)
    };
    let through = |cell: &Cell| cell.workload == "unpack" && cell.word("cache") == "writethrough";
    let nested = |cell: &Cell| through(cell) && cell.word("host_fs") == "ext4";
    let is_full = |cell: &Cell| cell.word("preallocation") == "full";
    sentences.push(format!(
        "{} flushes reach the host's disk while the tree is unpacked, {} in the other modes",
        flushes(&through),
        flushes(&|cell| !through(cell))
    ));
    let whole = pairs(&results.cells, "preallocation", ["full", "off"], &through);
    sentences.push(format!(
        "{} flushes instead of {}, and unpacking runs at {} % of the speed without",
        flushes(&|cell| nested(cell) && is_full(cell)),
        flushes(&|cell| nested(cell) && cell.word("preallocation") == "off"),
        range(whole)
    ));
    let to_raw = |preallocation: &str| {
        let own = results.cells.iter().filter(|cell| {
            nested(cell)
                && (cell.word("format"), cell.word("preallocation")) == ("qcow2", preallocation)
        });
        range(spread(own.map(|cell| {
            let is_raw = |one: &&Cell| {
                nested(one)
                    && (one.word("format"), one.word("preallocation")) == ("raw", "off")
                    && one.word("bus") == cell.word("bus")
            };
            let raw = results.cells.iter().find(is_raw).expect("a raw image");
            performance(cell) / performance(raw)
        })))
    };
    sentences.push(format!(
        "unpacking has {} % of raw's speed without preallocated metadata, and {} % with it",
        to_raw("off"),
        to_raw("metadata")
    ));
    Page::read().check(&sentences);
}

#[test]
fn what_the_recordings_say_of_e4_is_in_the_report() {
    let run = comparison(RUN);
    let of = |fits: &dyn Fn(&Row) -> bool| -> Vec<&Row> {
        run.rows.iter().filter(|row| fits(row)).collect()
    };
    let n = |id: &str, rows: &[&Row]| rows.iter().filter(|row| has_finding(row, id)).count();
    let (mails, unpack) = ("mailserver", "unpack");
    let under = |workload: &str, axis: &str, word: &str| {
        of(&|row| row.workload == workload && row.word(axis) == word)
    };
    let share = |rows: &[&Row], name: &str| {
        range(spread(rows.iter().map(|row| {
            let explanation = row.explanation.as_ref().expect("it was recorded");
            segment_ms(row, name) * 1e6 / explanation.q2c_mean_ns.expect("a latency")
        })))
    };
    let ids = [
        ("emulated-bus", "bus", "ide"),
        ("write-through-cache", "cache", "writethrough"),
        ("qcow2-allocation", "format", "qcow2"),
    ];
    let mut sentences: Vec<String> = ids
        .iter()
        .map(|(id, axis, word)| {
            let (one, two) = (under(unpack, axis, word), under(mails, axis, word));
            format!(
                "`{id}` fires in {} of {} recordings of unpacking and in {} of {} of mails with {word}, and in {} others",
                n(id, &one),
                one.len(),
                n(id, &two),
                two.len(),
                n(id, &of(&|row| row.word(axis) != *word))
            )
        })
        .collect();
    let (ide, virtio) = (under(mails, "bus", "ide"), under(mails, "bus", "virtio"));
    sentences.push(format!(
        "Under mails the others wait in the guest's queue for {} % of the latency ({} % on virtio)",
        share(&ide, "guest_queue"),
        share(&virtio, "guest_queue")
    ));
    let through = under(unpack, "cache", "writethrough");
    sentences.push(format!(
        "While the tree is unpacked, the disk's flush is {} % of the latency",
        share(&through, "device_flush")
    ));
    Page::read().check(&sentences);
}
