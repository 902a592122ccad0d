//! E4.

use nestrace_report::lab::{Cell, CellRun, Row, Spread};

use super::{Page, has_finding, median, percent, performance, range, segment_ms, spread, times};
use crate::lab::{comparison, results};

const RUN: &str = "image-format-cache-bus";

/// `82 %, 59 to 121 %`: one word's performance to another's, and in how many pairs it is slower.
struct Pairs {
    slower: usize,
    of: Spread,
}

/// Cells under a workload that differ in one axis alone, the second word's performance being the whole.
fn pairs(
    cells: &[Cell],
    workload: &str,
    axis: &str,
    [own, other]: [&str; 2],
    fits: &dyn Fn(&Cell) -> bool,
) -> Pairs {
    let with = |word: &str| -> Vec<&Cell> {
        let under = cells
            .iter()
            .filter(|cell| cell.workload == workload && fits(cell));
        under.filter(|cell| cell.word(axis) == word).collect()
    };
    let whole = with(other);
    let ratios: Vec<f64> = with(own)
        .into_iter()
        .filter_map(|cell| {
            let alike = |one: &&&Cell| {
                let mut axes = cell.axes.iter();
                axes.all(|(name, word)| name == axis || one.word(name) == word)
            };
            let one = whole.iter().find(alike)?;
            Some(performance(cell) / performance(one))
        })
        .collect();
    Pairs {
        slower: ratios.iter().filter(|ratio| **ratio < 1.0).count(),
        of: spread(ratios),
    }
}

/// qcow2 with a preallocation to a sparse raw image: over the six pairs of bus and cache mode.
fn to_raw(cells: &[Cell], workload: &str, preallocation: &str) -> Spread {
    let find = |format: &str, preallocation: &str, like: &Cell| {
        let mut under = cells.iter().filter(|cell| cell.workload == workload);
        let cell = under.find(|cell| {
            cell.word("host_fs") == "ext4"
                && (cell.word("format"), cell.word("preallocation")) == (format, preallocation)
                && ["bus", "cache"]
                    .iter()
                    .all(|axis| cell.word(axis) == like.word(axis))
        });
        performance(cell.expect("a cell"))
    };
    let raw = cells.iter().filter(|cell| {
        cell.workload == workload
            && cell.word("host_fs") == "ext4"
            && (cell.word("format"), cell.word("preallocation")) == ("raw", "off")
    });
    spread(raw.map(|raw| find("qcow2", preallocation, raw) / performance(raw)))
}

#[test]
fn what_is_said_of_the_run_is_in_its_files() {
    let cells = results(RUN).cells;
    let under = |workload: &'static str| cells.iter().filter(move |cell| cell.workload == workload);
    // The runs of the first day; the text reports those of the second day separately.
    let day = |run: &&CellRun| run.started_unix_s < 1_795_400_000;
    let metadata = |cell: &&Cell| cell.word("preallocation") == "metadata";
    let of = |cell: &'static str| {
        move |one: &&Cell| (one.word("preallocation") == "metadata") == (cell == "metadata")
    };
    let all = |cells: Vec<&'_ Cell>| -> Vec<CellRun> {
        cells
            .into_iter()
            .flat_map(|cell| cell.runs.iter().chain(&cell.recorded))
            .cloned()
            .collect()
    };
    let rest = all(under("unpack").filter(of("rest")).collect());
    let again = all(under("unpack").filter(of("metadata")).collect());
    assert_eq!(under("unpack").filter(metadata).count(), 6);
    let (rest_from, rest_to, _) = times(rest.iter().filter(day));
    let (again_from, again_to, _) = times(again.iter().filter(day));
    let late = || under("unpack").filter(|cell| cell.recorded.iter().any(|run| !day(&run)));
    assert_eq!(late().count(), 4);
    assert!(late().all(|cell| cell.word("format") == "qcow2"
        && cell.word("cache") == "writeback"
        && cell.word("preallocation") != "off"));
    let (late_from, late_to, _) = times(late().flat_map(|cell| &cell.recorded));
    let mails = all(under("mailserver").collect());
    let (mails_from, mails_to, _) = times(&mails);
    let run = comparison(RUN);
    let told = || run.rows.iter().filter_map(|row| row.explanation.as_ref());
    assert_eq!(
        (told().count(), told().map(|told| told.lost).sum()),
        (72, 0)
    );
    let linked = spread(told().filter_map(|told| told.linked));
    assert!(linked.min > 0.998, "{linked:?}");
    let seconds = spread(under("unpack").map(|cell| median(cell.runs.iter().map(|run| run.value))));
    let bases = spread(run.run.bases.iter().map(|base| base.write_bytes_per_s));
    let busy = |workload| {
        let bare = under(workload).filter(|cell| cell.is_baseline());
        let mut busy: Vec<f64> = bare
            .flat_map(|cell| &cell.runs)
            .map(|run| run.host.disk_utilisation)
            .collect();
        busy.sort_by(f64::total_cmp);
        busy
    };
    let mut unpacking = busy("unpack");
    let longest = unpacking.pop().unwrap();
    let timed = || under("mailserver").flat_map(|cell| &cell.runs);
    Page::read().check(&[
        format!("The tree was unpacked on 2026-11-22 from {rest_from} to {rest_to}; in the six cells with preallocated metadata it was unpacked again when the others had ended, from {again_from} to {again_to}"),
        format!("The mail servers ran on 2026-11-23 from {mails_from} to {mails_to}, and with them four recordings of unpacking were made anew, from {late_from} to {late_to}"),
        format!("at least {:.1} % of a guest's bios were followed", (linked.min * 1000.0).floor() / 10.0),
        format!("Unpacking the tree takes {:.1} to {:.1} s on every stack.", seconds.min, seconds.max),
        format!("Bare devices differed by a factor of {:.1} in a sequential write", bases.max / bases.min),
        format!("kept their device busy for {} % of the time under mails, and for {} % while unpacking, but for one run with {} %", range(spread(busy("mailserver"))), range(spread(unpacking)), percent(longest)),
        format!("under mails {} % of the guest's processors are busy, the device {} % of the time", range(spread(timed().map(|run| run.guest.cpu_user + run.guest.cpu_system))), range(spread(timed().map(|run| run.host.disk_utilisation)))),
    ]);
}

#[test]
fn pairs_of_cells_say_what_is_written_of_them() {
    let cells = results(RUN).cells;
    let cache = |workload, words| pairs(&cells, workload, "cache", words, &|_| true);
    let bus = |workload, mode: &str| {
        let of = pairs(&cells, workload, "bus", ["ide", "virtio"], &|cell| {
            cell.word("cache") == mode
        });
        assert_eq!(of.of.n, 6);
        of
    };
    let unpack = ["writeback", "none"].map(|other| cache("unpack", ["writethrough", other]));
    let mails = ["writeback", "none"].map(|other| cache("mailserver", ["writethrough", other]));
    let none = cache("mailserver", ["none", "writethrough"]);
    let flushes = |fits: &dyn Fn(&str) -> bool| {
        let own = cells
            .iter()
            .filter(|cell| cell.workload == "unpack" && fits(cell.word("cache")));
        spread(
            own.flat_map(|cell| &cell.runs)
                .map(|run| run.host.disk_flushes as f64),
        )
    };
    let (through, others) = (
        flushes(&|mode| mode == "writethrough"),
        flushes(&|mode| mode != "writethrough"),
    );
    let whole = |n: f64| {
        if n < 1000.0 {
            n.to_string()
        } else {
            format!("{},{:03}", n as u64 / 1000, n as u64 % 1000)
        }
    };
    let told = |of: &Pairs| {
        format!(
            "{} of {} pairs (median {} % of its speed, {} %)",
            of.slower,
            of.of.n,
            percent(of.of.median),
            range(of.of)
        )
    };
    let in_short = |of: &Pairs| {
        format!(
            "{} of {} ({} %, {} %)",
            of.slower,
            of.of.n,
            percent(of.of.median),
            range(of.of)
        )
    };
    let middle = |of: Spread| (range(of), percent(of.median));
    let (off, off_mails) = (
        middle(to_raw(&cells, "unpack", "off")),
        middle(to_raw(&cells, "mailserver", "off")),
    );
    let (meta, meta_mails) = (
        middle(to_raw(&cells, "unpack", "metadata")),
        middle(to_raw(&cells, "mailserver", "metadata")),
    );
    assert_eq!(bus("unpack", "writethrough").slower, 6);
    Page::read().check(&[
        format!("Mails with `cache=none` are slower than with `writethrough` in {} of {} pairs, with a median of {} % and a range of {} %", none.slower, none.of.n, percent(none.of.median), range(none.of)),
        format!("Unpacking is slower than with writeback in {} and than with none in {}", told(&unpack[0]), in_short(&unpack[1])),
        format!("Mails are slower than with writeback in {} of {} pairs ({} %, {} %) and than with none in {}", mails[0].slower, mails[0].of.n, percent(mails[0].of.median), range(mails[0].of), in_short(&mails[1])),
        format!("{} to {} flushes while the tree is unpacked in a timed run, {} to {} with the other modes", whole(through.min), whole(through.max), others.min, others.max),
        format!("unpacking has {} % of raw's speed (median {} %), mails {} % ({} %). The recordings", off.0, off.1, off_mails.0, off_mails.1),
        format!("unpacking has {} % of raw's speed in the six pairs (median {} %), mails {} % ({} %). The unpacking", meta.0, meta.1, meta_mails.0, meta_mails.1),
        format!("{} % of virtio's speed in all six pairs under writethrough, {} % with none and {} % with writeback", range(bus("unpack", "writethrough").of), range(bus("unpack", "none").of), range(bus("unpack", "writeback").of)),
        format!("{} % under writethrough, {} % with none", range(bus("mailserver", "writethrough").of), range(bus("mailserver", "none").of)),
    ]);
}

#[test]
fn what_a_mail_costs_guest_and_device_is_counted() {
    let cells = results(RUN).cells;
    type Of = fn(&CellRun) -> u64;
    let each = |runs: &dyn Fn(&Cell) -> Vec<CellRun>, bus: &str, mode: &str, of: Of| {
        let under = cells.iter().filter(|cell| cell.workload == "mailserver");
        let own = under.filter(|cell| cell.word("bus") == bus && cell.word("cache") == mode);
        spread(own.flat_map(runs).map(|run| {
            let mails: u64 = run.latency.values().map(|latency| latency.n).sum();
            of(&run) as f64 / mails as f64
        }))
    };
    let recorded = |cell: &Cell| cell.recorded.iter().cloned().collect::<Vec<_>>();
    let timed = |cell: &Cell| cell.runs.clone();
    let guest: Of = |run| run.guest.disk_writes;
    let [writes, flushes]: [Of; 2] = [|run| run.host.disk_writes, |run| run.host.disk_flushes];
    for (bus, mode, least, most) in [
        ("virtio", "none", 0.6, 0.72),
        ("virtio", "writethrough", 0.6, 0.72),
        ("ide", "none", 0.95, 1.1),
        ("ide", "writethrough", 0.58, 0.7),
    ] {
        let of = each(&recorded, bus, mode, guest);
        assert!(of.min > least && of.max < most, "{bus} {mode} {of:?}");
    }
    let half = each(&recorded, "ide", "none", |run| run.guest.disk_flushes);
    assert!(half.min > 0.45 && half.max < 0.55, "{half:?}");
    // Those of a mode, and of none: writes and flushes of the device.
    let of = |runs: &dyn Fn(&Cell) -> Vec<CellRun>, bus: &str| {
        ["writethrough", "none"].map(|mode| {
            [writes, flushes].map(|of| format!("{:.2}", each(runs, bus, mode, of).median))
        })
    };
    let [[vw, vf], [vw0, vf0]] = of(&recorded, "virtio");
    let [[iw, jf], [iw0, jf0]] = of(&recorded, "ide");
    let [[tvw, tvf], [tvw0, tvf0]] = of(&timed, "virtio");
    let [[tiw, tif], [tiw0, tif0]] = of(&timed, "ide");
    Page::read().check(&[
        format!("on virtio {vw} writes and {vf} flushes of a mail against {vw0} and {vf0} with `none`, on IDE {iw} and {jf} against {iw0} and {jf0}"),
        format!("it is {tvw} and {tvf} against {tvw0} and {tvf0} on virtio, {tiw} and {tif} against {tiw0} and {tif0} on IDE"),
    ]);
}

#[test]
fn what_the_recordings_say_is_in_the_report() {
    let run = comparison(RUN);
    let n = |id: &str, fits: &dyn Fn(&Row) -> bool| {
        run.rows
            .iter()
            .filter(|row| fits(row) && has_finding(row, id))
            .count()
    };
    let (ide, mails) = (
        |row: &Row| row.word("bus") == "ide",
        |row: &Row| row.workload == "mailserver",
    );
    let queue = |bus: &str| {
        let own = run
            .rows
            .iter()
            .filter(|row| mails(row) && row.word("bus") == bus);
        spread(own.map(|row| {
            let whole = row
                .explanation
                .as_ref()
                .and_then(|told| told.q2c_mean_ns)
                .unwrap();
            segment_ms(row, "guest_queue") * 1e6 / whole
        }))
    };
    assert_eq!(
        (n("emulated-bus", &ide), n("emulated-bus", &|row| !ide(row))),
        (36, 0)
    );
    for workload in ["mailserver", "unpack"] {
        assert_eq!(
            n("write-through-cache", &|row| row.workload == workload
                && row.word("cache") == "writethrough"),
            12
        );
    }
    let flushing = |row: &Row| mails(row) && ide(row) && row.word("cache") != "writethrough";
    assert_eq!(
        (
            n("flush-amplification", &flushing),
            n("flush-amplification", &|_| true)
        ),
        (12, 12)
    );
    let recording = |bus: &str, format: &str, preallocation: &str| {
        let mut rows = run.rows.iter();
        let row = rows.find(|row| {
            row.workload == "unpack"
                && row.word("host_fs") == "ext4"
                && row.word("cache") == "writethrough"
                && (
                    row.word("bus"),
                    row.word("format"),
                    row.word("preallocation"),
                ) == (bus, format, preallocation)
        });
        let told = row.and_then(|row| row.explanation.as_ref()).unwrap();
        (
            told.device_flushes.unwrap(),
            format!("{:.1}", told.q2c_mean_ns.unwrap() / 1e6),
        )
    };
    let [off, metadata, full] =
        ["off", "metadata", "full"].map(|how| recording("virtio", "qcow2", how));
    let [raw, raw_full] = ["off", "full"].map(|how| recording("virtio", "raw", how));
    let on_ide = ["off", "metadata", "full"].map(|how| recording("ide", "qcow2", how).1);
    Page::read().check(&[
        String::from("`emulated-bus` in all 36 recordings on IDE, in none on virtio."),
        format!("for {} % of the latency ({} % on virtio)", range(queue("ide")), range(queue("virtio"))),
        format!("(`queue-idle`, {} of 18; {} of 18 on virtio)", n("queue-idle", &|row| mails(row) && ide(row)), n("queue-idle", &|row| mails(row) && !ide(row))),
        String::from("(`write-through-cache` in all 12 recordings of each workload)"),
        String::from("`flush-amplification` in all 12 recordings of mails on IDE that have flushes, in none on virtio"),
        format!("under writethrough on virtio 1,062 without, {} with preallocated metadata and {} fully preallocated; raw has {} sparse and {} preallocated", metadata.0, full.0, raw.0, raw_full.0),
        format!("({}, {} and {} ms; raw {} and {})", off.1, metadata.1, full.1, raw.1, raw_full.1),
        format!("({})", on_ide.join(", ").replacen(", 1.8", " and 1.8", 1)),
    ]);
    assert_eq!(off.0, 1062);
}
