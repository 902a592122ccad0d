//! Making the rings, and what the kernel counts of a program beside them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use aya::maps::{ArrayOfMaps, MapData, RingBuf};
use nestrace_abi::maps::RINGS;

use crate::{ProbeError, map_error};

/// `BPF_MAP_TYPE_RINGBUF` of the kernel's user interface.
const RINGBUF: u32 = 27;

/// Processors that there may be: each has a ring.
#[must_use]
pub fn n_cpus() -> u32 {
    aya::util::nr_cpus().map_or(1, |n| u32::try_from(n).unwrap_or(1))
}

/// A ring for each processor.
pub(super) fn create_rings(
    outer: &mut ArrayOfMaps<MapData, MapData>,
    ring_bytes: u32,
) -> Result<Vec<RingBuf<MapData>>, ProbeError> {
    let mut rings = Vec::new();
    for cpu in 0..n_cpus().min(outer.len()) {
        let definition = aya_obj::Map::new_from_params(RINGBUF, 0, 0, ring_bytes, 0);
        let data = MapData::create(definition, "nestrace_ring", None).map_err(map_error(RINGS))?;
        outer.set(cpu, &data, 0).map_err(map_error(RINGS))?;
        rings.push(
            aya::maps::Map::RingBuf(data)
                .try_into()
                .map_err(map_error(RINGS))?,
        );
    }
    Ok(rings)
}

/// How often the kernel skipped a program.
pub(super) fn recursion_misses(fdinfo: &File) -> u64 {
    let mut buffer = [0u8; 1024];
    let n = fdinfo.read_at(&mut buffer, 0).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..n])
        .lines()
        .find_map(|line| line.strip_prefix("recursion_misses:")?.trim().parse().ok())
        .unwrap_or(0)
}
