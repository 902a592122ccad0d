//! E1.

use nestrace_report::lab::{Comparison, Metric, Outlier, Row, Verdict};

use super::{Page, apart, has_finding, median, percent, range, relative_word, spread, times};
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
                table += &format!(" | {}", relative_word(row));
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
    let all = || {
        let cells = results.cells.iter();
        cells.flat_map(|cell| cell.runs.iter().chain(&cell.recorded))
    };
    let (from, to, _) = times(all());
    let told = || run.rows.iter().filter_map(|row| row.explanation.as_ref());
    assert_eq!(
        (told().count(), told().map(|told| told.lost).sum()),
        (210, 0)
    );
    let linked = spread(told().filter_map(|told| told.linked));
    assert_eq!(linked.median, 1.0);
    let last_two = || run.rows.iter().map(|row| apart(&row.values[2..]));
    let of_all = |kind: &'static str| {
        let rows = run
            .rows
            .iter()
            .filter(move |row| row.workload.contains(kind));
        rows.map(|row| apart(&row.values))
    };
    let near = |spreads: &mut dyn Iterator<Item = f64>| spreads.filter(|half| *half <= 0.1).count();
    let late = spread(
        run.rows
            .iter()
            .filter_map(|row| Some(row.modelled?.mean_ns / 1e6)),
    );
    let bases = &run.run.bases;
    assert_eq!(
        (bases.len(), run.run.modelled_disk.as_deref()),
        (1, Some("hdd-7200"))
    );
    let by_chance = &run.statements[1];
    assert!(
        by_chance.starts_with("If all were equal, 5 of them"),
        "{by_chance}"
    );
    let bare = run
        .rows
        .iter()
        .filter(|row| row.baseline.is_none() && row.workload == "randread");
    let reads = median(bare.map(|row| row.value.unwrap().median / f64::from(1 << 20)));
    Page::read().check(&[
        format!("{:.0} MB/s over the whole of a small one, {reads:.1} MiB/s of random reads at depth 255", bases[0].read_bytes_per_s / 1e6),
        format!("4 repetitions of each and one that is recorded: {} runs from {from} to {to}", grouped(all().count())),
        format!("The last two repetitions of a cell lie ±{:.1} % apart in the median; {} of 210 cells are within ±10 %", median(last_two()) * 100.0, near(&mut last_two())),
        format!("{} of 210 are: random reads ({} of 42) and random writes ({} of 42) repeat, sequential ones, which translation slows down, do not ({} of 84)", near(&mut of_all("")), near(&mut of_all("randread")), near(&mut of_all("randwrite")), near(&mut of_all("seq"))),
        format!("{:.1} ms late on average (median over the cells; {:.1} ms in the worst)", late.median, late.max),
        format!("at least {:.1} % of a guest's bios", (linked.min * 1000.0).round() / 10.0),
    ]);
}

/// `1,050`.
fn grouped(n: usize) -> String {
    format!("{},{:03}", n / 1000, n % 1000)
}

#[test]
fn statements_on_hosts_are_those_of_the_cells() {
    let run = comparison("fast12");
    let of = |workload: &'static str, host: &'static str| {
        spread(nested(&run, workload, host).map(relative))
    };
    let slower = |workload, host| {
        let rows = nested(&run, workload, host);
        rows.filter(|row| row.verdict == Verdict::Slower)
    };
    let of_slower = |host| spread(slower("mailserver", host).map(relative));
    assert_eq!((of_slower("btrfs").n, of_slower("ext4").n), (6, 3));
    let btrfs = |workload: &str, guest: &str| {
        let mut rows = nested(&run, workload, "btrfs");
        relative(rows.find(|row| row.word("guest_fs") == guest).unwrap())
    };
    let mut elsewhere = Vec::new();
    for host in &HOSTS[..4] {
        let rows = nested(&run, "randwrite", host).filter(|row| row.word("guest_fs") != "btrfs");
        elsewhere.extend(rows.map(relative));
    }
    let elsewhere = spread(elsewhere);
    let faster = nested(&run, "randwrite", "btrfs").filter(|row| row.verdict == Verdict::Faster);
    let faster = spread(faster.map(relative));
    assert_eq!((faster.n, btrfs("randwrite", "jfs")), (6, faster.min));
    // jfs's guest sent none.
    let quiet = nested(&run, "mailserver", "btrfs").filter(|row| row.guest.disk_flushes == 0);
    let quiet: Vec<&str> = quiet.map(|row| row.word("guest_fs")).collect();
    assert_eq!(quiet, ["jfs"]);
    let ext4_on = |host| {
        let mut rows = nested(&run, "mailserver", host);
        percent(relative(
            rows.find(|row| row.word("guest_fs") == "ext4").unwrap(),
        ))
    };
    let latency = nested(&run, "mailserver", "btrfs").filter(|row| row.word("guest_fs") != "jfs");
    let latency = spread(latency.filter_map(|row| row.relative_latency));
    let sequential = spread(HOSTS.map(|host| middle(&run, "seqread", host)));
    let mut sentences = vec![
        format!(
            "mail servers {} %: on btrfs {} % under six of seven guests, on ext2 {} %",
            range(spread(
                HOSTS
                    .iter()
                    .flat_map(|host| nested(&run, "mailserver", host))
                    .map(relative)
            )),
            range(of_slower("btrfs")),
            range(of("mailserver", "ext2"))
        ),
        format!(
            "Random writes without syncs do not lose ({} %, median {} %), and on btrfs they are 4 to 8 times faster",
            range(elsewhere),
            percent(elsewhere.median)
        ),
        format!("mail servers on btrfs {} %", range(latency)),
        format!(
            "jfs alone is faster on btrfs ({} %) where all others are slower, and the mail server in ext4 runs at {} % on ext3 and at {} % on ext4",
            percent(btrfs("mailserver", "jfs")),
            ext4_on("ext3"),
            ext4_on("ext4")
        ),
        format!("medians of hosts {} %", range(sequential)),
        format!(
            "**Mail servers on btrfs** ({} %)",
            range(of_slower("btrfs"))
        ),
        format!(
            "**Mail servers on ext2** ({} %)",
            range(of("mailserver", "ext2"))
        ),
        format!(
            "with ext3, ext4 or btrfs in the guest ({} %)",
            range(of_slower("ext4"))
        ),
    ];
    // What the report says of each, in the page's table.
    for (what, start) in [
        ("largest degradation", "held"),
        ("workloads that mostly wait for reads", "held"),
        (
            "workloads that mostly wait for writes and syncs",
            "held, but weaker",
        ),
        (
            "mean latency relative to the bare device",
            "held, but weaker",
        ),
        ("sequential reads", "not decidable here"),
        ("which host file system suits", "not decidable here"),
        ("logging on images", "held"),
        ("data and metadata", "held"),
        ("schedulers", "not decidable here"),
    ] {
        let one = run.published.iter().find(|one| one.what == what).unwrap();
        assert_eq!(one.judgement.unwrap().words(), start, "{what}");
    }
    let n = |verdict| run.rows.iter().filter(|row| row.verdict == verdict).count();
    sentences.push(format!(
        "{} of 175 are slower in every repetition, 2 would be by chance | held |",
        n(Verdict::Slower)
    ));
    sentences.push(String::from(
        "6 of 75 lose a tenth or more in every repetition | held |",
    ));
    sentences.push(String::from(
        "20 of 100 write-bound cells lose a tenth or more in every repetition",
    ));
    Page::read().check(&sentences);
}

#[test]
fn what_the_recordings_say_is_in_the_report() {
    let run = comparison("fast12");
    let mails = |id: &str, host: &str| {
        let rows = nested(&run, "mailserver", host);
        rows.filter(|row| has_finding(row, id)).count()
    };
    let everywhere = |id: &str| HOSTS.map(|host| mails(id, host)).iter().sum::<usize>();
    let shown = || run.outliers.iter().filter(|one| one.is_recorded);
    let n = |fits: &dyn Fn(&&Outlier) -> bool| shown().filter(|one| fits(one)).count();
    let bytes = |host: &str, guests: &[&str]| {
        let rows = nested(&run, "mailserver", host);
        let rows = rows.filter(|row| guests.contains(&row.word("guest_fs")));
        spread(rows.filter_map(|row| row.write_amplification))
    };
    let written = |host: &str, guests: &[&str]| {
        let of = bytes(host, guests);
        format!("{:.1} to {:.1}", of.min, of.max)
    };
    let but_jfs: Vec<&str> = GUESTS.into_iter().filter(|guest| *guest != "jfs").collect();
    let others = spread(HOSTS[..4].iter().flat_map(|host| {
        let of = bytes(host, &GUESTS);
        [of.min, of.max]
    }));
    let shrank = shown().filter(|one| one.id.ends_with("-on-btrfs-randwrite"));
    let shrank = spread(shrank.map(|one| -one.segment_more_ns.unwrap() / 1e6));
    let on_ext2 = bytes("ext2", &but_jfs);
    let journal = bytes("ext4", &["ext3", "ext4", "btrfs"]);
    let waits =
        nested(&run, "randwrite", "btrfs").filter(|row| has_finding(row, "virtualization-share"));
    assert_eq!(
        ["allocation-defeated", "scheduler-ineffective"].map(everywhere),
        [0, 0]
    );
    assert_eq!(
        (
            mails("direct-io-fallback", "btrfs"),
            mails("cow-on-cow", "btrfs")
        ),
        (7, 6)
    );
    let grew = |host: &str, segment: &str| {
        let of_host = |one: &&&Outlier| {
            one.id.ends_with(&format!("-on-{host}-mailserver")) && one.relative < 1.0
        };
        let shown: Vec<&Outlier> = shown().collect();
        shown
            .iter()
            .filter(of_host)
            .filter(|one| one.segment.as_deref() == Some(segment))
            .count()
    };
    assert!(
        grew("ext2", "device") >= 2
            && grew("btrfs", "qemu_complete") + grew("btrfs", "virt_complete") >= 4
    );
    Page::read().check(&[
        format!("{} cells differ from their baseline by a tenth or more in every repetition. For {} of them the recorded runs differ in the same way, and for {} of these the recordings name a segment", run.outliers.len(), shown().count(), n(&|one| one.segment.is_some())),
        format!("`journal-on-journal` in {} of 35 recordings of mail servers", everywhere("journal-on-journal")),
        format!("`metadata-blind` in {} of 35 recordings of mail servers", everywhere("metadata-blind")),
        format!("btrfs writes {} bytes for each that the guest writes ({:.1} to {:.1} on the others)", written("btrfs", &but_jfs), others.min, others.max),
        format!("the device takes {:.0} to {:.0} ms less for each of 255 requests", shrank.min, shrank.max),
        format!("(amplification {:.2} to {:.2})", on_ext2.min, on_ext2.max),
        format!("amplification {:.2} to {:.2})", journal.min, journal.max),
        format!("{} of these seven recordings also show", ["No", "One", "Two", "Three", "Four", "Five", "Six", "All"][waits.count()]),
    ]);
}
