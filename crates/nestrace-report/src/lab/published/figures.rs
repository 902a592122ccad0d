//! What the experiments' authors measured, as ratios of two of their figures.

use super::judgement::Claim;

/// A ratio of two cells.
pub(super) struct Ratio {
    pub(super) what: &'static str,
    /// Of the one above, and of the one below.
    pub(super) workloads: [&'static str; 2],
    /// Axes that both have.
    pub(super) both: &'static [(&'static str, &'static str)],
    pub(super) above: &'static [(&'static str, &'static str)],
    pub(super) below: &'static [(&'static str, &'static str)],
    pub(super) published: Figure,
}

/// What was published.
#[derive(Clone, Copy)]
pub(super) enum Figure {
    Ratio(f64),
    /// With what its authors wrote beside a figure of it.
    Marked(f64, &'static str),
    /// They gave no figure.
    Statement(&'static str, Claim),
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
        workloads: [workload; 2],
        both,
        above: EXT4,
        below: EXT3,
        published: Figure::Ratio(published),
    }
}

/// The row of ext4 in qcow2 has "(2 GB)" in that study's table, whose test has 6 GB.
const fn in_qcow2(what: &'static str, workload: &'static str, published: f64) -> Ratio {
    Ratio {
        published: Figure::Marked(
            published,
            "the row of ext4 is marked 2 GB, the test has 6 GB",
        ),
        ..guest(what, workload, QCOW2, published)
    }
}

/// The remedy of that study, after to before.
const fn upgraded(
    what: &'static str,
    workloads: [&'static str; 2],
    both: &'static [(&'static str, &'static str)],
) -> Ratio {
    Ratio {
        what,
        workloads,
        both,
        above: EXT3,
        below: EXT3,
        published: Figure::Statement("the remedy, without a figure", Claim::Nothing),
    }
}

const RAW: &[(&str, &str)] = &[("format", "raw"), ("host_fs", "ext4")];
const QCOW2: &[(&str, &str)] = &[("format", "qcow2"), ("host_fs", "ext4")];
const BARE: &[(&str, &str)] = &[("host_fs", "bd")];

/// iozone -a -i0 -i1 -s6G -r64k, KB/s: ext3 and ext4 in raw and qcow2 images.
pub(super) const E2: &[Ratio] = &[
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
    in_qcow2(
        "ext4 to ext3 in a qcow2 image, write",
        "write",
        633_332.0 / 518_274.0,
    ),
    in_qcow2(
        "ext4 to ext3 in a qcow2 image, rewrite",
        "rewrite",
        776_716.0 / 392_571.0,
    ),
    in_qcow2(
        "ext4 to ext3 in a qcow2 image, read",
        "read",
        312_232.0 / 262_093.0,
    ),
    in_qcow2(
        "ext4 to ext3 in a qcow2 image, reread",
        "reread",
        278_960.0 / 268_514.0,
    ),
    upgraded(
        "ext3 upgraded in place to ext3 in a raw image, rewrite of old files",
        ["upgraded-old-rewrite", "rewrite"],
        RAW,
    ),
    upgraded(
        "ext3 upgraded in place to ext3 in a raw image, read of old files",
        ["upgraded-old-read", "read"],
        RAW,
    ),
    upgraded(
        "ext3 upgraded in place to ext3 in a raw image, rewrite of new files",
        ["upgraded-new-rewrite", "rewrite"],
        RAW,
    ),
    upgraded(
        "ext3 upgraded in place to ext3 in a raw image, read of new files",
        ["upgraded-new-read", "read"],
        RAW,
    ),
    upgraded(
        "ext3 upgraded in place to ext3 in a qcow2 image, rewrite of old files",
        ["upgraded-old-rewrite", "rewrite"],
        QCOW2,
    ),
    upgraded(
        "ext3 upgraded in place to ext3 in a qcow2 image, read of old files",
        ["upgraded-old-read", "read"],
        QCOW2,
    ),
    upgraded(
        "ext3 upgraded in place to ext3 in a qcow2 image, rewrite of new files",
        ["upgraded-new-rewrite", "rewrite"],
        QCOW2,
    ),
    upgraded(
        "ext3 upgraded in place to ext3 in a qcow2 image, read of new files",
        ["upgraded-new-read", "read"],
        QCOW2,
    ),
];

/// iozone with records of 512 KB and a file of 1 GB, KB/s; 15 million files made, and opened, in seconds.
pub(super) const E3: &[Ratio] = &[
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

/// Images without preallocation on ext4 that have a controller, a cache mode and a format in common.
macro_rules! e4 {
    ($what:literal, $($axis:literal = $word:literal)*; $varied:literal: $above:literal, $below:literal; $said:literal, $claim:ident) => {
        Ratio {
            what: $what,
            workloads: ["unpack"; 2],
            both: &[("preallocation", "off"), ("host_fs", "ext4"), $(($axis, $word)),*],
            above: &[($varied, $above)],
            below: &[($varied, $below)],
            published: Figure::Statement($said, Claim::$claim),
        }
    };
}

/// Installing a base system; "5 times slower", "about equal".
#[rustfmt::skip]
pub(super) const E4: &[Ratio] = &[
    Ratio {
        what: "qcow2 without preallocated metadata to raw",
        workloads: ["unpack"; 2],
        both: VIRTIO_NONE,
        above: &[("format", "qcow2"), ("preallocation", "off")],
        below: &[("format", "raw"), ("preallocation", "off")],
        published: Figure::Ratio(0.2),
    },
    Ratio {
        what: "qcow2 with preallocated metadata to raw",
        workloads: ["unpack"; 2],
        both: VIRTIO_NONE,
        above: &[("format", "qcow2"), ("preallocation", "metadata")],
        below: &[("format", "raw"), ("preallocation", "off")],
        published: Figure::Statement("about equal", Claim::Equal),
    },
    e4!("writethrough to none, raw on virtio",
        "bus" = "virtio" "format" = "raw"; "cache": "writethrough", "none"; "slow", Slower),
    e4!("writethrough to none, raw on IDE",
        "bus" = "ide" "format" = "raw"; "cache": "writethrough", "none"; "slow", Slower),
    e4!("writethrough to none, qcow2 on virtio",
        "bus" = "virtio" "format" = "qcow2"; "cache": "writethrough", "none"; "slow", Slower),
    e4!("writethrough to none, qcow2 on IDE",
        "bus" = "ide" "format" = "qcow2"; "cache": "writethrough", "none"; "slow", Slower),
    e4!("IDE to virtio under writethrough, raw",
        "cache" = "writethrough" "format" = "raw"; "bus": "ide", "virtio"; "hurts most", Slower),
    e4!("IDE to virtio under none, raw",
        "cache" = "none" "format" = "raw"; "bus": "ide", "virtio"; "hurts less", Slower),
    e4!("IDE to virtio under writeback, raw",
        "cache" = "writeback" "format" = "raw"; "bus": "ide", "virtio"; "hurts less", Slower),
    e4!("IDE to virtio under none, qcow2",
        "cache" = "none" "format" = "qcow2"; "bus": "ide", "virtio"; "hurts less", Slower),
    e4!("IDE to virtio under writeback, qcow2",
        "cache" = "writeback" "format" = "qcow2"; "bus": "ide", "virtio"; "hurts less", Slower),
    e4!("IDE to virtio under writethrough, qcow2",
        "cache" = "writethrough" "format" = "qcow2"; "bus": "ide", "virtio"; "hurts most", Slower),
];

/// Of one workload, by its name in the plan.
macro_rules! xfs {
    ($workload:literal, $published:expr) => {
        Ratio {
            what: concat!("xfs to ext4, ", $workload),
            workloads: [$workload; 2],
            both: BARE,
            above: XFS,
            below: EXT4,
            published: $published,
        }
    };
}

const EQUAL: Figure = Figure::Statement("about equal", Claim::Equal);
const READS: Figure = Figure::Ratio(1.03);
const WRITES: Figure = Figure::Statement("writes no faster on xfs", Claim::NotFaster);
/// Of the mix nothing was said by itself.
const MIXED: Figure = Figure::Statement(
    "nothing by itself; reads some 3 % faster on xfs, writes not",
    Claim::Nothing,
);

/// sysbench fileio: "about equal"; databases read 3 % faster on xfs, and write no faster.
pub(super) const E5: &[Ratio] = &[
    xfs!("seqrd-4k", EQUAL),
    xfs!("seqrd-16k", EQUAL),
    xfs!("seqrd-64k", EQUAL),
    xfs!("seqrd-128k", EQUAL),
    xfs!("seqrd-512k", EQUAL),
    xfs!("seqwr-4k", EQUAL),
    xfs!("seqwr-16k", EQUAL),
    xfs!("seqwr-64k", EQUAL),
    xfs!("seqwr-128k", EQUAL),
    xfs!("seqwr-512k", EQUAL),
    xfs!("rndrd-4k", EQUAL),
    xfs!("rndrd-16k", EQUAL),
    xfs!("rndrd-64k", EQUAL),
    xfs!("rndrd-128k", EQUAL),
    xfs!("rndrd-512k", EQUAL),
    xfs!("rndwr-4k", EQUAL),
    xfs!("rndwr-16k", EQUAL),
    xfs!("rndwr-64k", EQUAL),
    xfs!("rndwr-128k", EQUAL),
    xfs!("rndwr-512k", EQUAL),
    xfs!("rndrw-4k", EQUAL),
    xfs!("rndrw-16k", EQUAL),
    xfs!("rndrw-64k", EQUAL),
    xfs!("rndrw-128k", EQUAL),
    xfs!("rndrw-512k", EQUAL),
    xfs!("oltp-point-select", READS),
    xfs!("oltp-insert", WRITES),
    xfs!("oltp-update-index", WRITES),
    xfs!("oltp-read-write", MIXED),
    xfs!("oltp-point-select-60", READS),
    xfs!("oltp-insert-60", WRITES),
    xfs!("oltp-update-index-60", WRITES),
    xfs!("oltp-read-write-60", MIXED),
];
