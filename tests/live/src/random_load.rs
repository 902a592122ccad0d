//! Random reads and writes of fio on several disks of a guest at once.

/// A script for the guest: `depth` requests of 8 KiB at a time on 6 MiB of each disk, which begin at so many MiB.
pub fn script<'a>(disks: impl Iterator<Item = (&'a str, u32)>, depth: u32) -> String {
    let jobs = disks.map(|(device, from_mib)| {
        format!(
            "fio --name={device} --filename=/dev/{device} --direct=1 --ioengine=libaio --iodepth={depth} --bs=8k \
             --offset={from_mib}m --size=6m --rw=randrw --fsync=64 --end_fsync=1 > /tmp/{device}.log 2>&1 & \
             pids=\"$pids $!\"; "
        )
    });
    format!(
        "pids=; {}for pid in $pids; do wait $pid || {{ tail -5 /tmp/*.log; exit 1; }}; done",
        jobs.collect::<String>()
    )
}
