//! The published figures of the experiments, beside ours.
//!
//! They are for orientation: the hardware was another one, and ratios within one run are all that can be
//! set beside each other.

use serde::Serialize;

use super::comparison::{Row, Verdict};
use super::results::Metric;
use super::spread::Spread;
use super::statements::percent;

/// What was published, and what we found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Published {
    /// What is compared.
    pub what: String,
    /// The published figure or statement.
    pub published: String,
    /// Ours; `null` where the run has no cell for it.
    pub ours: Option<String>,
}

/// A ratio of two cells of one workload.
struct Ratio {
    what: &'static str,
    workload: &'static str,
    /// Axes that both have.
    both: &'static [(&'static str, &'static str)],
    above: &'static [(&'static str, &'static str)],
    below: &'static [(&'static str, &'static str)],
    published: f64,
}

const EXT3: &[(&str, &str)] = &[("guest_fs", "ext3")];
const EXT4: &[(&str, &str)] = &[("guest_fs", "ext4")];
const XFS: &[(&str, &str)] = &[("guest_fs", "xfs")];

const fn guest(
    what: &'static str,
    workload: &'static str,
    both: &'static [(&'static str, &'static str)],
    published: f64,
) -> Ratio {
    Ratio {
        what,
        workload,
        both,
        above: EXT4,
        below: EXT3,
        published,
    }
}

const RAW: &[(&str, &str)] = &[("format", "raw"), ("host_fs", "ext4")];
const QCOW2: &[(&str, &str)] = &[("format", "qcow2"), ("host_fs", "ext4")];
const BARE: &[(&str, &str)] = &[("host_fs", "bd")];

/// iozone -a -i0 -i1 -s6G -r64k, KB/s: ext3 and ext4 in raw and qcow2 images.
const E2: &[Ratio] = &[
    guest(
        "ext4 to ext3 in a raw image, write",
        "write",
        RAW,
        674_409.0 / 422_636.0,
    ),
    guest(
        "ext4 to ext3 in a raw image, rewrite",
        "rewrite",
        RAW,
        823_374.0 / 286_223.0,
    ),
    guest(
        "ext4 to ext3 in a raw image, read",
        "read",
        RAW,
        443_455.0 / 352_009.0,
    ),
    guest(
        "ext4 to ext3 in a raw image, reread",
        "reread",
        RAW,
        443_929.0 / 369_563.0,
    ),
    guest(
        "ext4 to ext3 in a qcow2 image, write",
        "write",
        QCOW2,
        633_332.0 / 518_274.0,
    ),
    guest(
        "ext4 to ext3 in a qcow2 image, rewrite",
        "rewrite",
        QCOW2,
        776_716.0 / 392_571.0,
    ),
    guest(
        "ext4 to ext3 in a qcow2 image, read",
        "read",
        QCOW2,
        312_232.0 / 262_093.0,
    ),
    guest(
        "ext4 to ext3 in a qcow2 image, reread",
        "reread",
        QCOW2,
        278_960.0 / 268_514.0,
    ),
];

/// iozone with records of 512 KB and a file of 1 GB, KB/s; 15 million files made, and opened, in seconds.
const E3: &[Ratio] = &[
    guest(
        "ext4 to ext3 on one disk, write",
        "write",
        BARE,
        176_541.0 / 105_313.0,
    ),
    guest(
        "ext4 to ext3 on one disk, rewrite",
        "rewrite",
        BARE,
        158_690.0 / 122_931.0,
    ),
    guest(
        "ext4 to ext3 on one disk, read",
        "read",
        BARE,
        1_084_203.0 / 1_073_713.0,
    ),
    guest(
        "ext4 to ext3 on one disk, reread",
        "reread",
        BARE,
        1_079_627.0 / 1_112_200.0,
    ),
    guest(
        "ext4 to ext3 on one disk, random read",
        "randread",
        BARE,
        1_115_423.0 / 1_058_653.0,
    ),
    guest(
        "ext4 to ext3 on one disk, random write",
        "randwrite",
        BARE,
        87_941.0 / 92_508.0,
    ),
    guest(
        "ext4 to ext3 on one disk, making files",
        "create",
        BARE,
        1_570.0 / 1_299.0,
    ),
    guest(
        "ext4 to ext3 on one disk, opening files",
        "open",
        BARE,
        1_978.0 / 1_810.0,
    ),
    guest(
        "ext4 to ext3 on one disk, fsck",
        "fsck",
        BARE,
        244.0 / 117.0,
    ),
];

const VIRTIO_NONE: &[(&str, &str)] = &[("cache", "none"), ("bus", "virtio"), ("host_fs", "ext4")];

/// Installing a base system; "5 times slower", "about equal".
const E4: &[Ratio] = &[
    Ratio {
        what: "qcow2 without preallocated metadata to raw",
        workload: "unpack",
        both: VIRTIO_NONE,
        above: &[("format", "qcow2"), ("preallocation", "off")],
        below: &[("format", "raw"), ("preallocation", "off")],
        published: 0.2,
    },
    Ratio {
        what: "qcow2 with preallocated metadata to raw",
        workload: "unpack",
        both: VIRTIO_NONE,
        above: &[("format", "qcow2"), ("preallocation", "metadata")],
        below: &[("format", "raw"), ("preallocation", "off")],
        published: 1.0,
    },
    Ratio {
        what: "IDE to virtio under writethrough, raw",
        workload: "unpack",
        both: &[
            ("cache", "writethrough"),
            ("format", "raw"),
            ("preallocation", "off"),
            ("host_fs", "ext4"),
        ],
        above: &[("bus", "ide")],
        below: &[("bus", "virtio")],
        published: f64::NAN,
    },
    Ratio {
        what: "writethrough to none, raw on virtio",
        workload: "unpack",
        both: &[
            ("bus", "virtio"),
            ("format", "raw"),
            ("preallocation", "off"),
            ("host_fs", "ext4"),
        ],
        above: &[("cache", "writethrough")],
        below: &[("cache", "none")],
        published: f64::NAN,
    },
];

const fn xfs(what: &'static str, workload: &'static str, published: f64) -> Ratio {
    Ratio {
        what,
        workload,
        both: BARE,
        above: XFS,
        below: EXT4,
        published,
    }
}

/// sysbench fileio: "about equal"; databases read 3 % faster on xfs, and write no faster.
const E5: &[Ratio] = &[
    xfs("xfs to ext4, sequential reads of 4 KiB", "seqrd-4k", 1.0),
    xfs("xfs to ext4, sequential writes of 4 KiB", "seqwr-4k", 1.0),
    xfs("xfs to ext4, random reads of 4 KiB", "rndrd-4k", 1.0),
    xfs("xfs to ext4, random writes of 4 KiB", "rndwr-4k", 1.0),
    xfs(
        "xfs to ext4, random reads and writes of 4 KiB",
        "rndrw-4k",
        1.0,
    ),
    xfs(
        "xfs to ext4, a database's point selects",
        "oltp-point-select",
        1.03,
    ),
    xfs(
        "xfs to ext4, a database's transactions",
        "oltp-read-write",
        1.0,
    ),
];

/// What was published of an experiment (`E1` to `E5`), and what the rows say.
pub(super) fn beside(experiment: Option<&str>, rows: &[Row]) -> Vec<Published> {
    match experiment {
        Some("E1") => nested(rows),
        Some("E2") => E2.iter().map(|ratio| ratio.beside(rows)).collect(),
        Some("E3") => E3.iter().map(|ratio| ratio.beside(rows)).collect(),
        Some("E4") => E4.iter().map(|ratio| ratio.beside(rows)).collect(),
        Some("E5") => E5
            .iter()
            .map(|ratio| ratio.beside(rows))
            .chain(utilisation(rows))
            .collect(),
        _ => Vec::new(),
    }
}

impl Ratio {
    fn beside(&self, rows: &[Row]) -> Published {
        let published = match self.published {
            ratio if ratio.is_nan() => String::from("slow everywhere, IDE worst"),
            ratio => percent(ratio),
        };
        Published {
            what: self.what.to_owned(),
            published,
            ours: self.ours(rows),
        }
    }

    fn ours(&self, rows: &[Row]) -> Option<String> {
        let pick = |own: &[(&str, &str)]| {
            let fits = |row: &&Row| {
                let mut words = self.both.iter().chain(own);
                row.workload == self.workload && words.all(|(axis, word)| row.word(axis) == *word)
            };
            rows.iter().find(fits).and_then(performance)
        };
        let (above, below) = (pick(self.above)?, pick(self.below)?);
        let ratio = above.relative_to(below.median)?;
        let sure = if above.is_apart_from(&below) {
            ""
        } else {
            ", within the spread"
        };
        Some(format!(
            "{} ({} to {}{sure})",
            percent(ratio.median),
            percent(ratio.min),
            percent(ratio.max)
        ))
    }
}

/// Values that are better when they are greater.
fn performance(row: &Row) -> Option<Spread> {
    let value = row.value?;
    if row.metric != Metric::Seconds {
        return Some(value);
    }
    Spread::of([value.max, value.median, value.min].map(|s| row.metric.performance(s))).map(
        |spread| Spread {
            n: value.n,
            ..spread
        },
    )
}

/// "xfs uses the disk less and the CPU more for file I/O".
fn utilisation(rows: &[Row]) -> [Published; 2] {
    type Use = fn(&Row) -> f64;
    let kinds: [(&str, &str, Use); 2] = [
        ("use of the disk, xfs to ext4", "less", |row| {
            row.guest.disk_utilisation
        }),
        (
            "use of the processors, xfs to ext4",
            "more for file I/O",
            |row| row.guest.cpu_user + row.guest.cpu_system,
        ),
    ];
    kinds.map(|(what, published, of)| {
        // Of fileio's rows, whose operations are requests.
        let fits = |row: &Row, fs: &str| {
            let is_file_io = row.latency.contains_key("request");
            row.word("guest_fs") == fs && row.word("host_fs") == "bd" && is_file_io
        };
        let ratios = rows
            .iter()
            .filter(|row| fits(row, "xfs"))
            .filter_map(|row| {
                let alike = |other: &Row| {
                    let mut axes = row.axes.iter();
                    axes.all(|(axis, word)| axis == "guest_fs" || other.word(axis) == word)
                };
                let same = |other: &&Row| {
                    fits(other, "ext4") && other.workload == row.workload && alike(other)
                };
                let other = of(rows.iter().find(same)?);
                (other > 0.0).then(|| of(row) / other)
            });
        let ratios = Spread::of(ratios);
        let tell = |spread: Spread| {
            let (median, low, high) = (spread.median, spread.min, spread.max);
            format!(
                "{} in the middle of {} workloads ({} to {})",
                percent(median),
                spread.n,
                percent(low),
                percent(high)
            )
        };
        Published {
            what: what.to_owned(),
            published: published.to_owned(),
            ours: ratios.map(tell),
        }
    })
}

/// FAST'12's statements.
fn nested(rows: &[Row]) -> Vec<Published> {
    let of = |reads: bool| -> Vec<&Row> {
        let compared = rows
            .iter()
            .filter(|row| row.baseline.is_some() && row.relative.is_some());
        compared
            .filter(|row| {
                (row.main_latency()
                    .is_some_and(|main| main.operation == "read"))
                    == reads
            })
            .collect()
    };
    let range = |rows: &[&Row]| {
        let spread = Spread::of(
            rows.iter()
                .filter_map(|row| row.relative)
                .map(|one| one.median),
        )?;
        let n = rows
            .iter()
            .filter(|row| row.verdict == Verdict::Slower)
            .count();
        Some(format!(
            "{} to {} of the bare device, {n} of {} slower in every repetition",
            percent(spread.min),
            percent(spread.max),
            rows.len()
        ))
    };
    let all: Vec<&Row> = of(true).into_iter().chain(of(false)).collect();
    let worst = all
        .iter()
        .filter(|row| row.verdict == Verdict::Slower)
        .filter_map(|row| row.relative)
        .map(|relative| 1.0 - relative.median)
        .max_by(f64::total_cmp);
    let told = |what: &str, published: &str, ours: Option<String>| Published {
        what: what.to_owned(),
        published: published.to_owned(),
        ours,
    };
    vec![
        told(
            "largest degradation",
            "67 %",
            worst.map(percent).or_else(|| {
                (!all.is_empty()).then(|| String::from("none that the spread allows to tell"))
            }),
        ),
        told(
            "workloads that mostly wait for reads",
            "hardly affected, sequential reads sometimes faster",
            range(&of(true)),
        ),
        told(
            "workloads that mostly wait for writes",
            "heavily affected",
            range(&of(false)),
        ),
        told(
            "mean latency relative to the bare device",
            "10–30 % more for loads that wait for I/O",
            Spread::of(all.iter().filter_map(|row| row.relative_latency)).map(|spread| {
                format!(
                    "{} in the middle of {} cells ({} to {})",
                    percent(spread.median),
                    spread.n,
                    percent(spread.min),
                    percent(spread.max)
                )
            }),
        ),
    ]
}
