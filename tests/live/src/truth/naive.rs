//! Two pairings that look plausible and are wrong: what the test has to be able to tell.

use super::data::{SeenCall, StampedBio};

/// How many bios would be given the wrong data if each went to the system call that began nearest to
/// its Q.
pub fn wrong_by_nearest_time(bios: &[StampedBio], calls: &[SeenCall<'_>]) -> usize {
    let mut calls: Vec<&SeenCall<'_>> = calls.iter().collect();
    calls.sort_by_key(|call| call.begin_ns);
    let wrong = bios.iter().filter(|bio| {
        let after = calls.partition_point(|call| call.begin_ns < bio.queued_ns);
        let around = calls[after.saturating_sub(1)..calls.len().min(after + 1)].iter();
        let nearest = around.min_by_key(|call| call.begin_ns.abs_diff(bio.queued_ns));
        nearest.and_then(|nearest| nearest.call.serial_at(bio.address)) != Some(bio.serial)
    });
    wrong.count()
}

/// How many bios would be given the wrong data if each went to the first system call that wrote to
/// its address.
pub fn wrong_by_place(bios: &[StampedBio], calls: &[SeenCall<'_>]) -> usize {
    let mut first = std::collections::HashMap::new();
    for call in calls {
        for stamp in call.call.parts.iter().flatten() {
            first.entry(stamp.address).or_insert(stamp.serial);
        }
    }
    let wrong = bios
        .iter()
        .filter(|bio| first.get(&bio.address) != Some(&bio.serial));
    wrong.count()
}

#[cfg(test)]
mod tests {
    use super::super::system_calls::WriteCall;
    use super::*;
    use nestrace_stamp::Stamp;

    #[test]
    fn rewrites_in_flight_together_fool_both() {
        let call = |address, serial| WriteCall {
            tid: 1,
            parts: vec![Some(Stamp { address, serial })],
        };
        let written = [call(0, 2), call(4096, 1), call(0, 3)];
        let calls: Vec<SeenCall<'_>> = written
            .iter()
            .zip([100, 110, 200])
            .map(|(call, begin_ns)| SeenCall {
                begin_ns,
                offset: 0,
                call,
            })
            .collect();
        let bio = |serial, address, queued_ns| StampedBio {
            serial,
            address,
            queued_ns,
        };
        let bios = [bio(1, 4096, 95), bio(2, 0, 96), bio(3, 0, 190)];
        assert_eq!(wrong_by_nearest_time(&bios, &calls), 1);
        assert_eq!(wrong_by_place(&bios, &calls), 1);
        assert_eq!(wrong_by_nearest_time(&bios[2..], &calls), 0);
    }
}
