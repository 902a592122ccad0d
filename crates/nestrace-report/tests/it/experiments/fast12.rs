//! E1.

use nestrace_report::lab::{Comparison, Outlier, Row, Verdict};

use super::page::guests_by_hosts;
use super::{Page, has_finding, part, percent, range, spread};
use crate::lab::comparison;

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

#[test]
fn the_tables_are_those_of_the_cells() {
    let tables = guests_by_hosts(&comparison("fast12"), &GUESTS, &HOSTS);
    part("fast12 tables", &tables);
}

#[test]
fn what_is_said_of_hosts_is_that_of_the_cells() {
    let run = comparison("fast12");
    let of = |host: &'static str| nested(&run, "mailserver", host);
    let slower = |host: &'static str| {
        let rows = of(host).filter(|row| row.verdict == Verdict::Slower);
        spread(rows.map(relative))
    };
    assert_eq!((slower("btrfs").n, slower("ext4").n), (6, 3));
    // jfs's guest sent none.
    let quiet = of("btrfs").filter(|row| row.guest.disk_flushes == 0);
    let quiet: Vec<&str> = quiet.map(|row| row.word("guest_fs")).collect();
    assert_eq!(quiet, ["jfs"]);
    let faster = nested(&run, "randwrite", "btrfs").filter(|row| row.verdict == Verdict::Faster);
    let faster = spread(faster.map(relative));
    assert_eq!(faster.n, 6);
    let jfs = of("btrfs").find(|row| row.word("guest_fs") == "jfs");
    Page::read().check(&[
        format!("**Mail servers on btrfs** ({} %)", range(slower("btrfs"))),
        format!(
            "**jfs does not lose** ({} % on btrfs)",
            percent(relative(jfs.unwrap()))
        ),
        format!(
            "**Random writes on btrfs** are {:.0} to {:.0} times faster",
            faster.min, faster.max
        ),
        format!(
            "**Mail servers on ext2** ({} %)",
            range(spread(of("ext2").map(relative)))
        ),
        format!(
            "with ext3, ext4 or btrfs in the guest ({} %)",
            range(slower("ext4"))
        ),
    ]);
}

#[test]
fn what_the_recordings_say_is_in_the_report() {
    let run = comparison("fast12");
    let mails = |id: &str, host: &str| {
        let rows = nested(&run, "mailserver", host);
        rows.filter(|row| has_finding(row, id)).count()
    };
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
        format!("btrfs writes {} bytes for each that the guest writes ({:.1} to {:.1} on the others)", written("btrfs", &but_jfs), others.min, others.max),
        format!("the device takes {:.0} to {:.0} ms less for each of 255 requests", shrank.min, shrank.max),
        format!("(amplification {:.2} to {:.2})", on_ext2.min, on_ext2.max),
        format!("amplification {:.2} to {:.2})", journal.min, journal.max),
        format!("{} of these seven recordings also show", ["No", "One", "Two", "Three", "Four", "Five", "Six", "All"][waits.count()]),
    ]);
}
