//! qcow2: data, metadata, backing files, compressed clusters.

use nestrace_trace::image_map::{CompressedCluster, Extent, ImageMap};
use nestrace_trace::manifest::Topology;

use super::{image, run, served};

/// `vd` is a qcow2 image over a raw backing file (inode 20).
fn topology() -> Topology {
    let mut topology = super::topology();
    let disk = &mut topology.guests[0].disks[0];
    disk.images[0].format = "qcow2".into();
    disk.images.push(image(20));
    topology
}

/// The guest's 1 MiB lies at 5 MiB of the file, a compressed cluster of 2 MiB at 9 MiB.
fn map() -> ImageMap {
    ImageMap {
        cluster_bytes: 65536,
        extents: vec![Extent {
            guest_offset: 1 << 20,
            bytes: 131_072,
            file_offset: 5 << 20,
        }],
        compressed: vec![CompressedCluster {
            guest_offset: 2 << 20,
            file_offset: (9 << 20) + 100,
            file_bytes: 2000,
        }],
        ..ImageMap::default()
    }
}

#[test]
fn mapped_data_and_tables_of_one_request() {
    // An L2 table is read, then the data.
    assert_eq!(
        served(
            &topology(),
            &[map()],
            "100 acct-read 0x10d8 rel=0x10120 bytes=4096
             101 preadv 0x1000 1052672+4096 rel=0x10000
             110 read 0x5 262144+65536 inode=12 of=7:0 tid=201
             120 exit 0x0 result=65536 tid=201
             130 read 0x5 5246976+4096 inode=12 of=7:0 tid=202
             140 exit 0x0 result=4096 tid=202
             150 push 0x1000
             151 acct-done 0x10d8 rel=0x10120"
        ),
        [
            "qemu Read 1052672+4096 100-150 [file ImageMetadata 262144+65536 110-120, \
             file Read 5246976+4096 130-140]"
        ]
    );
}

#[test]
fn tables_belong_to_whoever_could_wait_for_them() {
    // The read of 1 MiB waits for its own data when the table is read; both others could want it.
    let text = "100 acct-read 0x10d8 rel=0x10120 bytes=4096
         101 preadv 0x1000 1048576+4096 rel=0x10000
         102 acct-read 0x20d8 rel=0x10120 bytes=4096
         103 preadv 0x2000 3145728+4096 rel=0x10000
         104 acct-read 0x30d8 rel=0x10120 bytes=4096
         105 preadv 0x3000 4194304+4096 rel=0x10000
         108 read 0x5 5242880+4096 inode=12 of=7:0 tid=201
         110 read 0x5 262144+65536 inode=12 of=7:0 tid=202
         120 exit 0x0 result=65536 tid=202
         130 exit 0x0 result=4096 tid=201
         150 push 0x1000
         151 acct-done 0x10d8 rel=0x10120
         152 push 0x2000
         153 acct-done 0x20d8 rel=0x10120
         154 push 0x3000
         155 acct-done 0x30d8 rel=0x10120";
    assert_eq!(
        served(&topology(), &[map()], text),
        [
            "qemu Read 1048576+4096 100-150 [file Read 5242880+4096 108-130]",
            "? qemu Read 3145728+4096 102-152 [file* ImageMetadata 262144+65536 110-120]",
            "? qemu Read 4194304+4096 104-154 [file* ImageMetadata 262144+65536 110-120]",
        ]
    );
}

#[test]
fn new_clusters_are_told_by_the_buffer_and_remembered() {
    // The map does not know 7 MiB of the file; two writes are in flight. Later it is read from there
    // through a buffer that QEMU made.
    let text = "100 acct-write 0x10d8 rel=0x10120 bytes=8192
         101 pwritev 0x1000 3145728+8192 rel=0x10000 iocb=0xa1000
         102 acct-write 0x20d8 rel=0x10120 bytes=8192
         103 pwritev 0x2000 4194304+8192 rel=0x10000 iocb=0xb1000
         110 write 0x5 7340032+8192 inode=12 of=7:0 tid=201 iocb=0xb1000
         120 exit 0x0 result=8192 tid=201
         125 push 0x2000
         126 acct-done 0x20d8 rel=0x10120
         130 write 0x5 8388608+4096 inode=12 of=7:0 tid=201 iocb=0xa1000
         131 write 0x5 8454144+4096 inode=12 of=7:0 tid=202 iocb=0xa2000
         140 exit 0x0 result=4096 tid=201
         141 exit 0x0 result=4096 tid=202
         150 push 0x1000
         151 acct-done 0x10d8 rel=0x10120
         200 acct-read 0x10d8 rel=0x10120 bytes=4096
         201 preadv 0x1000 4198400+4096 rel=0x10000 iocb=0xc1000
         202 acct-read 0x20d8 rel=0x10120 bytes=4096
         203 preadv 0x2000 6291456+4096 rel=0x10000 iocb=0xd1000
         210 read 0x5 7344128+4096 inode=12 of=7:0 tid=201 iocb=0xe1000
         220 exit 0x0 result=4096 tid=201
         230 push 0x1000
         231 acct-done 0x10d8 rel=0x10120
         240 push 0x2000
         241 acct-done 0x20d8 rel=0x10120";
    assert_eq!(
        served(&topology(), &[map()], text),
        [
            "qemu Write 4194304+8192 102-125 [file Write 7340032+8192 110-120]",
            "qemu Write 3145728+8192 100-150 [file Write 8388608+4096 130-140, \
             file Write 8454144+4096 131-141]",
            "qemu Read 4198400+4096 200-230 [file Read 7344128+4096 210-220]",
            "qemu Read 6291456+4096 202-240",
        ]
    );
}

#[test]
fn copy_on_write_reads_the_backing_file_and_writes_the_whole_cluster() {
    // The map of after the recording knows the cluster that the write made.
    let after = ImageMap {
        extents: vec![Extent {
            guest_offset: 3 << 20,
            bytes: 65536,
            file_offset: 6 << 20,
        }],
        ..map()
    };
    assert_eq!(
        served(
            &topology(),
            &[map(), after],
            "100 acct-write 0x10d8 rel=0x10120 bytes=4096
             101 pwritev 0x1000 3149824+4096 rel=0x10000 iocb=0xa1000
             102 acct-write 0x20d8 rel=0x10120 bytes=4096
             103 pwritev 0x2000 8388608+4096 rel=0x10000 iocb=0xb1000
             110 read 0x5 3145728+65536 inode=20 of=7:0 tid=201 iocb=0xf1000
             120 exit 0x0 result=65536 tid=201
             130 write 0x5 6291456+65536 inode=12 of=7:0 tid=201 iocb=0xf1000
             140 exit 0x0 result=65536 tid=201
             150 push 0x1000
             151 acct-done 0x10d8 rel=0x10120
             160 push 0x2000
             161 acct-done 0x20d8 rel=0x10120"
        ),
        [
            "qemu Write 3149824+4096 100-150 [file Read 3145728+65536 110-120, \
             file Write 6291456+65536 130-140]",
            "qemu Write 8388608+4096 102-160",
        ]
    );
}

#[test]
fn compressed_clusters_are_data() {
    assert_eq!(
        served(
            &topology(),
            &[map()],
            "100 acct-read 0x10d8 rel=0x10120 bytes=4096
             101 preadv 0x1000 2101248+4096 rel=0x10000 iocb=0xa1000
             102 acct-read 0x20d8 rel=0x10120 bytes=4096
             103 preadv 0x2000 8388608+4096 rel=0x10000 iocb=0xb1000
             110 read 0x5 9437184+2560 inode=12 of=7:0 tid=201 iocb=0xf1000
             120 exit 0x0 result=2560 tid=201
             150 push 0x1000
             151 acct-done 0x10d8 rel=0x10120
             160 push 0x2000
             161 acct-done 0x20d8 rel=0x10120"
        ),
        [
            "qemu Read 2101248+4096 100-150 [file Read 9437184+2560 110-120]",
            "qemu Read 8388608+4096 102-160",
        ]
    );
}

#[test]
fn padding_of_unaligned_io_belongs_to_its_request() {
    // 512 bytes at 512 of a raw image with O_DIRECT in blocks of 4 KiB: read, then write the block.
    let text = "100 acct-write 0x10d8 rel=0x10120 bytes=512
         101 pwritev 0x1000 512+512 rel=0x10000 iocb=0xa1000
         110 read 0x5 0+4096 inode=12 of=7:0 tid=201 iocb=0xf1000
         120 exit 0x0 result=4096 tid=201
         130 write 0x5 0+4096 inode=12 of=7:0 tid=201 iocb=0xf1000
         140 exit 0x0 result=4096 tid=201
         150 push 0x1000
         151 acct-done 0x10d8 rel=0x10120";
    let outcome = run(&super::topology(), &[], text);
    assert_eq!(
        super::tree(&outcome.served[0].span),
        "qemu Write 512+512 100-150 [file Read 0+4096 110-120, file Write 0+4096 130-140]"
    );
    assert!(outcome.half.unlinked.is_empty());
}
