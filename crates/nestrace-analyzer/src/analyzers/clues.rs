//! What the layers saw of each disk that a finding needs.

use crate::Analyzer;
use crate::link::clock::ClockSummary;
use crate::link::guest_side::disk_of;
use crate::measure::clues::DiskClues;
use crate::model::data_path::DataPath;

/// The clues for the findings, one entry for each disk. Called after all calls were counted.
pub(super) fn clues(
    analyzer: &mut Analyzer,
    clocks: &[ClockSummary],
    end_ns: u64,
) -> Vec<DiskClues> {
    let numbers = (0u32..).take(analyzer.images.disks.len());
    let paths: Vec<DataPath> = numbers
        .map(|number| analyzer.data_paths().of(number))
        .collect();
    let mut all = Vec::new();
    for (number, disk) in (0u32..).zip(&analyzer.images.disks) {
        let mut clues = DiskClues {
            guest: disk.guest_name.clone(),
            disk: disk.name.clone(),
            path: paths.get(number as usize).copied().unwrap_or_default(),
            virtio_blk: analyzer.qemu.is_virtio_blk(disk),
            ..DiskClues::default()
        };
        for (session, clock) in analyzer.sessions.iter_mut().zip(clocks) {
            let of_guest = session.side.guest == disk.guest_name;
            let is_it = |device: &usize| of_guest && disk_of(clock, *device) == Some(disk.disk);
            for device in (0..session.side.disks.len()).filter(is_it) {
                clues.calls.add(session.call_waits(device));
                if let Some(about) = session.side.disks.get(device) {
                    let syncs = session.calls.file_syncs(&session.side, &about.name);
                    clues.file_syncs.extend(syncs);
                }
                if let Some(device) = session.disks.get_mut(device) {
                    clues.from_guest.add(device.clues.finish());
                }
            }
        }
        if let Some(host) = &mut analyzer.host {
            clues.from_host = host.clues.finish(number);
        }
        if let Some(activity) = analyzer.activity.get_mut(number as usize) {
            let clocks = activity.clocks(end_ns);
            clues.qemu_ns = activity.qemu_busy_ns;
            clues.file_ns = clocks.file_ns;
            clues.bio_ns = clocks.queue_ns + clocks.device_ns;
        }
        all.push(clues);
    }
    all
}
