//! E1.

use nestrace_report::lab::{Comparison, Metric, Outlier, Row, Spread, Verdict};

use super::{Page, has_finding, median, percent, range, segment_ms, spread, times};
use crate::lab::{comparison, results};

const HOSTS: [&str; 5] = ["ext2", "ext3", "ext4", "xfs", "btrfs"];
const GUESTS: [&str; 7] = ["ext2", "ext3", "ext4", "reiserfs", "xfs", "jfs", "btrfs"];

fn nested<'c>(
    run: &'c Comparison,
    workload: &'c str,
    host: &'c str,
) -> impl Iterator<Item = &'c Row> {
    run.rows.iter().filter(move |row| {
        row.baseline.is_some() && row.workload == workload && row.word("host_fs") == host
    })
}

fn relative(row: &Row) -> f64 {
    row.relative.expect("it has a result").median
}

/// Median over the guests.
fn middle(run: &Comparison, workload: &str, host: &str) -> f64 {
    median(nested(run, workload, host).map(relative))
}

#[test]
fn every_row_of_a_table_is_that_of_its_cells() {
    let run = comparison("fast12");
    for workload in run.workloads() {
        let mut table = format!(
            "#### {workload} | guest | bd | {} | median | |---|---|---|---|---|---|---|---|",
            HOSTS.join(" | ")
        );
        for guest in GUESTS {
            let row = |host: &str| {
                let mut under = run.rows.iter().filter(|row| row.workload == workload);
                under.find(|row| row.word("guest_fs") == guest && row.word("host_fs") == host)
            };
            let bare = row("bd").expect("a bare device");
            let value = bare.value.expect("it has a result").median;
            let value = match bare.metric {
                Metric::BytesPerSecond => format!("{:.1} MiB/s", value / f64::from(1 << 20)),
                _ => format!("{value:.0} op/s"),
            };
            table += &format!(" | {guest} | {value}");
            let rows = HOSTS.map(|host| row(host).expect("a nested cell"));
            for row in rows {
                let mark = match row.verdict {
                    Verdict::Slower => " −",
                    Verdict::Faster => " +",
                    _ => "",
                };
                table += &format!(" | {}{mark}", percent(relative(row)));
            }
            table += &format!(" | {} |", percent(median(rows.map(relative))));
        }
        table += " | median | |";
        for host in HOSTS {
            table += &format!(" {} |", percent(middle(&run, workload, host)));
        }
        table += " |";
        Page::read().check(&[table]);
    }
}

#[test]
fn what_is_said_of_the_run_is_in_its_files() {
    let (run, results) = (comparison("fast12"), results("fast12"));
    let (mails, rest): (Vec<_>, Vec<_>) = results
        .cells
        .iter()
        .partition(|cell| cell.workload == "mailserver");
    let all = rest
        .iter()
        .flat_map(|cell| cell.runs.iter().chain(&cell.recorded));
    let all: Vec<_> = all.collect();
    let (from, _, seconds) = times(all.iter().copied());
    let timed = || mails.iter().flat_map(|cell| &cell.runs);
    let recorded = || mails.iter().flat_map(|cell| &cell.recorded);
    let (timed_from, _, timed_s) = times(timed());
    let (recorded_from, _, recorded_s) = times(recorded());
    let minutes = |seconds: u64| format!("{:.0}", seconds as f64 / 60.0);
    let told = || run.rows.iter().filter_map(|row| row.explanation.as_ref());
    assert_eq!(
        (told().count(), told().map(|told| told.lost).sum()),
        (210, 0)
    );
    let linked = spread(told().filter_map(|told| told.linked));
    assert_eq!(linked.median, 1.0);
    let apart = |row: &&Row| [Verdict::Slower, Verdict::Faster].contains(&row.verdict);
    let differ = run.rows.iter().map(|row| {
        let of = spread(row.values.iter().copied());
        (of.max - of.min) / of.median
    });
    let bases = &run.run.bases;
    let written = spread(bases.iter().map(|base| base.write_bytes_per_s / 1e8));
    let read = spread(bases.iter().map(|base| base.read_bytes_per_s / 1e8));
    // In MB/s, with a comma.
    let rates = |of: Spread| {
        [of.min, of.max].map(|value| {
            let whole = (value * 100.0).round() as u64;
            format!("{},{:03}", whole / 1000, whole % 1000)
        })
    };
    let ([w0, w1], [r0, r1]) = (rates(written), rates(read));
    Page::read().check(&[
        format!("2 repetitions of each and one that is recorded: {} runs. The {} without mail servers took {} minutes, from {from} on.", all.len() + timed().count() + recorded().count(), all.len(), minutes(seconds)),
        format!("the {} timed runs took {} minutes from {timed_from} on, the {} recorded ones {} from {recorded_from} on", timed().count(), minutes(timed_s), recorded().count(), minutes(recorded_s)),
        format!("a recorded run has {} % of the timed ones' performance in the median", percent(median(run.rows.iter().filter_map(|row| row.recorded_relative)))),
        format!("({} % in the worst)", percent(linked.min)),
        format!("The two runs of a cell differ by {} % in the median. {} of {} cells differ from their baseline in every repetition", percent(median(differ)), run.rows.iter().filter(apart).count(), run.rows.iter().filter(|row| row.baseline.is_some()).count()),
        format!("{w0} to {w1} MB/s written, {r0} to {r1} read"),
    ]);
}

#[test]
fn statements_on_hosts_are_those_of_the_cells() {
    let run = comparison("fast12");
    let slower = |workload, host| {
        let rows = nested(&run, workload, host);
        rows.filter(|row| row.verdict == Verdict::Slower)
    };
    let on_btrfs = |workload| spread(slower(workload, "btrfs").map(relative));
    let (writes, mails) = (on_btrfs("randwrite"), on_btrfs("mailserver"));
    assert_eq!((writes.n, mails.n), (6, 6));
    let lost = |of: Spread| format!("{} to {}", percent(1.0 - of.max), percent(1.0 - of.min));
    // jfs's guest sent none.
    let quiet = nested(&run, "mailserver", "btrfs").filter(|row| row.guest.disk_flushes == 0);
    let quiet: Vec<&str> = quiet.map(|row| row.word("guest_fs")).collect();
    assert_eq!(quiet, ["jfs"]);
    let elsewhere = |workload| HOSTS[..4].iter().map(move |host| (workload, *host));
    let writing = ["seqwrite", "randwrite", "mailserver"].into_iter();
    let writing = spread(
        writing
            .flat_map(elsewhere)
            .map(|(w, host)| middle(&run, w, host)),
    );
    let of_hosts = |workload: &'static str| HOSTS.map(|host| middle(&run, workload, host));
    let reading = ["seqread", "randread"].into_iter().flat_map(of_hosts);
    let reading = spread(reading);
    let ordered = spread(of_hosts("seqread"));
    let count = |workload: &str, fits: &dyn Fn(&Row) -> bool| {
        let rows = run.rows.iter().filter(|row| row.baseline.is_some());
        rows.filter(|row| row.workload == workload && fits(row))
            .count()
    };
    let is = |verdict: Verdict| move |row: &Row| row.verdict == verdict;
    let most = HOSTS[..4].iter().flat_map(|host| {
        let workloads = run.workloads().into_iter();
        workloads.map(|workload| {
            let n = |verdict| {
                nested(&run, workload, host)
                    .filter(|row| row.verdict == verdict)
                    .count()
            };
            n(Verdict::Slower).max(n(Verdict::Faster))
        })
    });
    assert_eq!(most.max(), Some(3));
    Page::read().check(&[
        format!("Six of 7 guest file systems are slower there in every repetition, at {} %", range(writes)),
        format!("six of 7, at {} %. For jfs, whose guest sent no flush, the difference is within the spread", range(mails)),
        String::from("No other host file system has more than three guests on one side under any workload."),
        format!("random writes lose {} % under six of seven guests, mail servers {} %", lost(writes), lost(mails)),
        format!("the medians over the guests are {} %: these runs do not show a difference", range(writing)),
        format!("medians over the guests are {} % on every host. Random reads are slower in {} of 35 cells ({} in every repetition, {} faster)", range(reading), count("randread", &|row| relative(row) < 1.0), count("randread", &is(Verdict::Slower)), count("randread", &is(Verdict::Faster))),
        format!("medians of {} % on all five hosts, {} of 35 cells faster in every repetition and {} slower", range(ordered), count("seqread", &is(Verdict::Faster)), count("seqread", &is(Verdict::Slower))),
    ]);
}

#[test]
fn what_the_recordings_say_is_in_the_report() {
    let run = comparison("fast12");
    let found = |id: &str, workload: &str, host: &str| {
        let rows = run
            .rows
            .iter()
            .filter(|row| row.workload == workload && row.word("host_fs") == host);
        rows.filter(|row| has_finding(row, id)).count()
    };
    let mails = |id: &str| {
        ["bd"]
            .iter()
            .chain(&HOSTS)
            .map(|host| found(id, "mailserver", host))
            .sum::<usize>()
    };
    let shown = || run.outliers.iter().filter(|one| one.is_recorded);
    let n = |fits: &dyn Fn(&&Outlier) -> bool| shown().filter(|one| fits(one)).count();
    let ms = |workload: &str, host: &str, segment: &str| {
        median(nested(&run, workload, host).map(|row| segment_ms(row, segment)))
    };
    let random = |host: &str, segment: &str| ms("randwrite", host, segment);
    let elsewhere: Vec<&Row> = run
        .rows
        .iter()
        .filter(|row| HOSTS[..4].contains(&row.word("host_fs")))
        .collect();
    let largest = |row: &Row| {
        let told = row.explanation.as_ref().unwrap();
        let by_time = told
            .segments
            .iter()
            .max_by(|a, b| a.mean_ns.total_cmp(&b.mean_ns));
        by_time.unwrap().name.clone()
    };
    let in_and_out = elsewhere
        .iter()
        .filter(|row| largest(row).starts_with("virt_"))
        .count();
    let device = || elsewhere.iter().filter(|row| largest(row) == "device");
    assert!(
        nested(&run, "mailserver", "btrfs")
            .filter(|row| largest(row) == "virt_complete")
            .count()
            >= 4
    );
    assert_eq!(
        ["allocation-defeated", "scheduler-ineffective"].map(mails),
        [0, 0]
    );
    assert_eq!(
        ["ext2", "ext3"].map(|host| found("direct-io-fallback", "randwrite", host)),
        [1, 1]
    );
    assert_eq!(
        ["ext2", "ext3", "btrfs"].map(|host| found("direct-io-fallback", "seqwrite", host)),
        [7, 7, 7]
    );
    Page::read().check(&[
        format!("`journal-on-journal` in {} of 7 mail servers on ext4, {} on ext3 and {} on btrfs", found("journal-on-journal", "mailserver", "ext4"), found("journal-on-journal", "mailserver", "ext3"), found("journal-on-journal", "mailserver", "btrfs")),
        format!("`metadata-blind` in {} of 42 mail servers, on the bare device too", mails("metadata-blind")),
        format!("{} cells differ from their baseline by a tenth or more. For {} of them the recorded runs differ in the same way ({} of the {} that are slower). For these {} the recordings name a segment that changed with it in {} cells, only a finding in {}, and nothing in one. For the other {} the recorded runs do not show the difference",
            run.outliers.len(), shown().count(), n(&|one| one.relative < 1.0), run.outliers.iter().filter(|one| one.relative < 1.0).count(), shown().count(),
            n(&|one| one.segment.is_some()), n(&|one| one.segment.is_none() && !one.findings.is_empty()), run.outliers.len() - shown().count()),
        format!("`direct-io-fallback` fires in all {} recordings of random writes on btrfs, and in 1 of 7 on ext2 and on ext3", found("direct-io-fallback", "randwrite", "btrfs")),
        format!("takes {:.1} ms of a write in the median over the guests on its way down and {:.1} ms on its way up, against {:.2} and {:.2} ms on ext4", random("btrfs", "host_fs_submit"), random("btrfs", "host_fs_complete"), random("ext4", "host_fs_submit"), random("ext4", "host_fs_complete")),
        format!("getting into QEMU takes {:.0} ms instead of {:.1}, and back into the guest {:.0} instead of {:.1}", random("btrfs", "virt_submit"), random("ext4", "virt_submit"), random("btrfs", "virt_complete"), random("ext4", "virt_complete")),
        format!("({:.1} ms of a write, {:.1} on ext4)", random("btrfs", "device"), random("ext4", "device")),
        String::from("`cow-on-cow` in 6 of 7 recordings, all but jfs's"),
        format!("({:.1} ms of a bio in the median over the guests, {:.1} on ext4)", ms("mailserver", "btrfs", "virt_complete"), ms("mailserver", "ext4", "virt_complete")),
        String::from("(`direct-io-fallback` 7 of 7)"),
        format!("Of the {} recordings on other hosts the largest part of a request is the way in and out of the guest in {in_and_out} (`virtualization-share` in {})", elsewhere.len(), elsewhere.iter().filter(|row| has_finding(row, "virtualization-share")).count()),
        format!("In {} it is the device, but in {} of the 28 mail servers only", device().count(), device().filter(|row| row.workload == "mailserver").count()),
    ]);
    let without_cow =
        nested(&run, "mailserver", "btrfs").filter(|row| !has_finding(row, "cow-on-cow"));
    let without_cow: Vec<&str> = without_cow.map(|row| row.word("guest_fs")).collect();
    assert_eq!(without_cow, ["jfs"]);
}

/// Bytes that the host's device writes for one of the guest's disk, in both repetitions.
#[test]
fn a_mail_server_writes_several_times_on_btrfs() {
    let cells = results("fast12").cells;
    let of =
        |fits: &dyn Fn(&str, &str) -> bool| {
            let mails = cells.iter().filter(|cell| cell.workload == "mailserver");
            let cells = mails.filter(|cell| fits(cell.word("host_fs"), cell.word("guest_fs")));
            spread(cells.flat_map(|cell| &cell.runs).map(|run| {
                run.host.disk_write_bytes as f64 / run.guest.disk_write_bytes.max(1) as f64
            }))
        };
    let many = of(&|host, guest| host == "btrfs" && !["btrfs", "jfs"].contains(&guest));
    let of_guest = |name: &'static str| of(&move |host, guest| host == "btrfs" && guest == name);
    let others = of(&|host, _| HOSTS[..4].contains(&host));
    Page::read().check(&[format!(
        "btrfs writes {:.1} to {:.1} bytes for one that ext2, ext3, ext4, xfs and reiserfs write (both repetitions agree), {:.1} for btrfs's and {:.1} for jfs's; the other hosts {:.1} to {:.2}",
        many.min, many.max, of_guest("btrfs").median, of_guest("jfs").median, others.min, others.max
    )]);
}
