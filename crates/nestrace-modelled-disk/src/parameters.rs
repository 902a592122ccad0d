//! What a modelled disk is made of, from TOML: the built-in models, or a file of the user's.

use serde::{Deserialize, Serialize};

use crate::seek::SeekCurve;

/// The names of the built-in models.
pub const BUILT_IN: [&str; 5] = ["hdd-7200", "hdd-5400", "hdd-sw-raid10", "sata-ssd", "nvme"];

/// The largest disk: 16 TiB, 2³² blocks of 4 KiB.
pub const MAX_DISK_BYTES: u64 = 16 << 40;

/// A disk cannot be made of these parameters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParametersError {
    /// No built-in model has this name.
    #[error("find a built-in disk \"{name}\": there are {}", BUILT_IN.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// It is no TOML, or has other keys.
    #[error("read the parameters of a disk")]
    Toml(#[from] toml::de::Error),
    /// A value that no disk has.
    #[error("make a disk: {what}")]
    Value {
        /// Which, and why.
        what: String,
    },
    /// The geometry needs more.
    #[error("make a disk: it has at least {least_bytes} bytes")]
    TooSmall {
        /// The least, bytes.
        least_bytes: u64,
    },
    /// More than [`MAX_DISK_BYTES`].
    #[error("make a disk: it has at most {MAX_DISK_BYTES} bytes")]
    TooLarge,
}

/// A disk's parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Parameters {
    /// A hard disk.
    Spindle(SpindleParameters),
    /// Hard disks as software RAID 10.
    Raid10(Raid10Parameters),
    /// A solid-state disk.
    Flash(FlashParameters),
}

/// Of a hard disk. MB are 10⁶ bytes, as in data sheets; KiB are 1024.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpindleParameters {
    /// Turns a minute.
    pub rpm: f64,
    /// Size of the drive. A smaller disk is a partition at its outer edge: it has the zones that lie there. Without it, a
    /// disk of any size has all zones.
    pub drive_gb: Option<f64>,
    /// Sustained rates of zones with equally many tracks, the outermost first.
    pub zones_mb_per_s: Vec<f64>,
    /// To an adjacent track; tracks are skewed by it.
    pub track_switch_ms: f64,
    /// Shortest seek for a read, settling included.
    pub seek_single_track_ms: f64,
    /// Mean of all seeks for reads.
    pub seek_average_ms: f64,
    /// Longest seek for a read.
    pub seek_full_stroke_ms: f64,
    /// What a seek for a write takes more.
    pub write_settle_ms: f64,
    /// From a command's arrival to its start.
    pub command_overhead_us: f64,
    /// Rate of the bus.
    pub interface_mb_per_s: f64,
    /// Commands that the disk takes at a time (NCQ).
    pub queue_depth: usize,
    /// How much positioning a request is spared for the time that it has waited; 0 for shortest positioning first alone.
    pub age_weight: f64,
    /// Segments of the buffer that hold what was read.
    pub read_segments: usize,
    /// Size of each.
    pub segment_kib: u64,
    /// How far the disk reads on after a read.
    pub read_ahead_kib: u64,
    /// Room for writes that are not on the medium yet; 0 for a disk without a write cache.
    pub write_cache_kib: u64,
    /// Separate extents in it at most.
    pub write_cache_extents: usize,
    /// What a flush takes besides writing them.
    #[serde(default)]
    pub flush_ms: f64,
}

/// Of a software RAID 10 with two copies that lie near each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raid10Parameters {
    /// Disks: an even number.
    pub members: usize,
    /// Size of a chunk.
    pub chunk_kib: u64,
    /// What each of them is.
    pub member: Member,
}

/// A disk of a RAID.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Member {
    /// The name of a built-in hard disk.
    BuiltIn(String),
    /// A table of its own.
    Own(SpindleParameters),
}

/// Of a solid-state disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashParameters {
    /// Dies that work at a time.
    pub dies: usize,
    /// What is read or programmed at once on a die: a page, or a page of each plane.
    pub page_kib: u64,
    /// Such pages in an erase block.
    pub pages_per_block: u64,
    /// From the cells to the page register.
    pub read_us: f64,
    /// From the page register to the cells.
    pub program_us: f64,
    /// Of a block.
    pub erase_ms: f64,
    /// Blocks in reserve, as a share of the disk.
    pub over_provisioning: f64,
    /// How long the controller is busy with each command: it bounds the commands a second.
    pub command_us: f64,
    /// What a read takes besides the flash and the bus.
    pub read_latency_us: f64,
    /// The same of a write that the cache takes in.
    pub write_latency_us: f64,
    /// Rate of the bus, reads.
    pub read_mb_per_s: f64,
    /// Rate of the bus, writes.
    pub write_mb_per_s: f64,
    /// Commands that the disk takes at a time.
    pub queue_depth: usize,
    /// Room for data that is not programmed yet.
    pub cache_kib: u64,
    /// Whether a loss of power loses the cache, so that a flush has to empty it.
    pub is_cache_volatile: bool,
    /// What a flush takes besides that.
    pub flush_us: f64,
    /// Whether other commands wait for a flush: SATA's is not queued.
    pub is_flush_exclusive: bool,
}

impl Parameters {
    /// A built-in model.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn built_in(name: &str) -> Result<Self, ParametersError> {
        Self::read(text(name)?)
    }

    /// From TOML.
    ///
    /// # Errors
    /// It is no TOML, or names no possible disk.
    pub fn read(toml: &str) -> Result<Self, ParametersError> {
        let parameters: Self = toml::from_str(toml)?;
        match &parameters {
            Self::Spindle(spindle) => spindle.check()?,
            Self::Raid10(raid) => {
                let is_even =
                    raid.members >= 2 && raid.members <= 64 && raid.members.is_multiple_of(2);
                check(is_even, "members is an even number from 2 to 64")?;
                let is_chunk =
                    (4..=16_384).contains(&raid.chunk_kib) && raid.chunk_kib.is_multiple_of(4);
                check(is_chunk, "chunk_kib is a multiple of 4 up to 16384")?;
                raid.spindle()?.check()?;
            }
            Self::Flash(flash) => flash.check()?,
        }
        Ok(parameters)
    }
}

/// A built-in model as TOML, with the source of each parameter.
///
/// # Errors
/// There is none of this name.
pub fn text(name: &str) -> Result<&'static str, ParametersError> {
    match name {
        "hdd-7200" => Ok(include_str!("../models/hdd-7200.toml")),
        "hdd-5400" => Ok(include_str!("../models/hdd-5400.toml")),
        "hdd-sw-raid10" => Ok(include_str!("../models/hdd-sw-raid10.toml")),
        "sata-ssd" => Ok(include_str!("../models/sata-ssd.toml")),
        "nvme" => Ok(include_str!("../models/nvme.toml")),
        _ => Err(ParametersError::Unknown {
            name: name.to_owned(),
        }),
    }
}

fn check(holds: bool, what: &str) -> Result<(), ParametersError> {
    if holds {
        return Ok(());
    }
    Err(ParametersError::Value {
        what: what.to_owned(),
    })
}

/// A number of a size that times can be reckoned with.
fn is_positive(value: f64) -> bool {
    value.is_finite() && (1e-3..=1e9).contains(&value)
}

fn is_duration(value: f64) -> bool {
    value.is_finite() && (0.0..=1e6).contains(&value)
}

impl SpindleParameters {
    fn check(&self) -> Result<(), ParametersError> {
        check(
            (100.0..=100_000.0).contains(&self.rpm),
            "rpm is from 100 to 100000",
        )?;
        check(
            self.drive_gb.is_none_or(|gb| (1.0..=1e5).contains(&gb)),
            "drive_gb is from 1 to 100000",
        )?;
        let zones = &self.zones_mb_per_s;
        let are_zones = (1..=256).contains(&zones.len());
        let are_rates = zones.iter().all(|rate| (1.0..=10_000.0).contains(rate));
        check(
            are_zones && are_rates,
            "zones_mb_per_s has 1 to 256 rates from 1 to 10000",
        )?;
        let times = [
            self.track_switch_ms,
            self.write_settle_ms,
            self.command_overhead_us,
            self.age_weight,
            self.flush_ms,
        ];
        check(
            times.into_iter().all(is_duration),
            "times and weights are from 0 to 1000000",
        )?;
        check(
            is_positive(self.interface_mb_per_s),
            "interface_mb_per_s is positive",
        )?;
        check(
            (1..=1024).contains(&self.queue_depth),
            "queue_depth is from 1 to 1024",
        )?;
        check(self.read_segments <= 4096, "read_segments is up to 4096")?;
        let sizes = [self.segment_kib, self.read_ahead_kib, self.write_cache_kib];
        check(
            sizes.into_iter().all(|kib| kib <= 1 << 20),
            "sizes of buffers are up to 1 GiB",
        )?;
        check(
            self.read_ahead_kib <= self.segment_kib,
            "read_ahead_kib fits into a segment",
        )?;
        check(
            (1..=4096).contains(&self.write_cache_extents),
            "write_cache_extents is from 1 to 4096",
        )?;
        self.curve().map(drop)
    }

    /// The seek curve of reads.
    ///
    /// # Errors
    /// Its three figures contradict one another.
    pub(crate) fn curve(&self) -> Result<SeekCurve, ParametersError> {
        let ns = |ms: f64| ms * 1e6;
        SeekCurve::new(
            ns(self.seek_single_track_ms),
            ns(self.seek_average_ms),
            ns(self.seek_full_stroke_ms),
        )
        .ok_or_else(|| ParametersError::Value {
            what: "seek times rise from a single track to the average and the full stroke".into(),
        })
    }
}

impl Raid10Parameters {
    /// What each disk of it is.
    ///
    /// # Errors
    /// There is no such hard disk.
    pub(crate) fn spindle(&self) -> Result<SpindleParameters, ParametersError> {
        match &self.member {
            Member::Own(spindle) => Ok(spindle.clone()),
            // Only a hard disk's text is read here: a RAID of RAIDs would read itself without end.
            Member::BuiltIn(name) => match toml::from_str(text(name)?)? {
                Parameters::Spindle(spindle) => Ok(spindle),
                _ => Err(ParametersError::Value {
                    what: format!("the members of a RAID are hard disks, which {name} is not"),
                }),
            },
        }
    }
}

impl FlashParameters {
    fn check(&self) -> Result<(), ParametersError> {
        check((1..=1024).contains(&self.dies), "dies is from 1 to 1024")?;
        check(
            (4..=1024).contains(&self.page_kib) && self.page_kib.is_multiple_of(4),
            "page_kib is a multiple of 4 up to 1024",
        )?;
        check(
            (2..=65_536).contains(&self.pages_per_block),
            "pages_per_block is from 2 to 65536",
        )?;
        let times = [
            self.read_us,
            self.program_us,
            self.erase_ms,
            self.command_us,
            self.read_latency_us,
            self.write_latency_us,
            self.flush_us,
        ];
        check(
            times.into_iter().all(is_duration),
            "times are from 0 to 1000000",
        )?;
        check(
            (0.0..=4.0).contains(&self.over_provisioning),
            "over_provisioning is from 0 to 4",
        )?;
        check(
            is_positive(self.read_mb_per_s) && is_positive(self.write_mb_per_s),
            "rates are positive",
        )?;
        check(
            (1..=65_536).contains(&self.queue_depth),
            "queue_depth is from 1 to 65536",
        )?;
        check(
            self.cache_kib >= 2 * self.page_kib && self.cache_kib <= 16 << 20,
            "cache_kib holds two pages, and is up to 16 GiB",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_disk_can_be_read_and_says_where_its_figures_are_from() {
        for name in BUILT_IN {
            let text = text(name).unwrap();
            Parameters::read(text).unwrap();
            let mut has_source = false;
            for line in text.lines() {
                let line = line.trim();
                if line.starts_with('#') {
                    has_source = true;
                } else if line.is_empty() {
                    has_source = false;
                } else if !line.starts_with("kind") {
                    assert!(has_source, "{name}: {line} has no source above it");
                }
            }
        }
    }

    #[test]
    fn what_is_no_disk_is_refused() {
        let hdd = text("hdd-7200").unwrap();
        for (from, to) in [
            ("rpm = 7200", "rpm = 0"),
            ("rpm = 7200", "rpm = nan"),
            ("rpm = 7200", "rpms = 7200"),
            ("kind = \"spindle\"", "kind = \"tape\""),
            ("seek_average_ms = 8.5", "seek_average_ms = 85.0"),
            ("queue_depth = 32", "queue_depth = 0"),
        ] {
            assert!(hdd.contains(from), "{from}");
            assert!(Parameters::read(&hdd.replace(from, to)).is_err(), "{to}");
        }
        assert!(Parameters::built_in("floppy").is_err());
        let raid = "kind = 'raid10'\nmembers = 4\nchunk_kib = 64\nmember = 'hdd-sw-raid10'";
        assert!(Parameters::read(raid).is_err());
    }
}
