//! What a recording says: counts, latencies, whose I/O it was.
//!
//! Sits above `nestrace-trace` (events and manifest) and below `nestrace-report`. Pure: it takes
//! events and gives values; it opens no file, reads no clock and no environment, and runs where
//! BPF does not exist. One pass in the order of time; memory holds what is in flight, not what has
//! passed.
//!
//! ```
//! use nestrace_analyzer::{Analyzer, Options};
//! use nestrace_trace::{Event, Kind, Manifest};
//!
//! let queue = Event { ts_ns: 1_000, kind: Kind::Queue as u8, object: 0xb10, bytes: 4096, ..Event::default() };
//! let analysis = Analyzer::analyze(&Manifest::default(), Options::default(), [queue]);
//! assert_eq!(analysis.devices[0].counts.queued, Some(1));
//! ```
//!
//! # As a library
//!
//! - *Sans I/O.* The caller opens files, decodes them with `nestrace-trace` and hands events in, from a bundle
//!   ([`Analyzer::push_streams`]), from a capture of blktrace ([`Identified`]) or from wherever they come; several analyzers
//!   can run side by side in one process.
//! - *Typed results, stable JSON.* [`Analysis`] and what is in it are plain values. Serialized with serde they are the JSON of
//!   `docs/json.md`, version [`analysis::SCHEMA`]: keys are added, none is renamed or removed. `None` (`null`) means not
//!   recorded or not knowable, never 0.
//! - *Flat memory.* Distributions are histograms ([`Histogram`]: within 0.1 %, `n`, sum, `min` and `max` exact). Single I/Os are kept
//!   on demand only ([`Options::story`]), or reported one by one ([`Analyzer::each_story`]); so are single calls of a guest's
//!   programs ([`Options::call_story`], [`Analyzer::each_call`]).
//! - *No trust in events.* Lost, doubled, reordered or invented ones make numbers that say so (`unlinked`, `check`), no panic.
//! - *Tables.* The feature `dataframe` gives the result as polars' tables (module `dataframe`). Without it
//!   (`default-features = false`) everything else is the same and the dependencies are few.
//!
//! `nestrace-bundle` opens recordings and hands them to this crate: most programs need that one alone. Its examples are `json`,
//! `latency_of_one_disk`, `slower_than` (all chains that took longer than a limit) and `custom_finding` (a rule of one's own);
//! `examples/embedding` in the repository is a program outside the workspace.
//!
//! What may grow without being a break: structs marked `#[non_exhaustive]` get fields, and enums marked so get variants. Begin
//! with [`Options::default()`](Options) and set fields. `cargo xtask semver` compares the public items with the last release.
//!
//! # Inside
//!
//! Modules stand on floors, and nothing imports from a floor above its own (`cargo xtask tidy` checks it). From the ground:
//!
//! | floor | modules |
//! |---|---|
//! | `result` | the values that an analysis consists of, and the sums that comparisons draw from |
//! | `model` | what the layers share: spans, owners, operations, and maps for what is in flight |
//! | `measure` | histograms, series, and meters of a device, of an image's file I/O, of a machine; `overlap` estimates where QEMU's time passes, `clues` gathers what only findings ask for |
//! | `follow` | each layer by itself: `block` follows bios and requests by identity, with an observer that on a host knows image files (`image_observer`); `file_io` QEMU's calls on image files, `qemu` its accounting; `image` knows which file is which disk's; `sector_identity` gives blktrace's events their identities |
//! | `link` | from layer to layer: `served` puts together what served each of QEMU's requests, `guest_side` is a guest's own block layer, `calls` puts its programs' calls above that, `clock` links the two, `chains` charges the time |
//! | `judge` | findings, comparisons, the verdict, and whether a recording is whole |
//! | `analyzers` | the pass over a recording ([`Analyzer`]) or over one machine's block events ([`BlockAnalyzer`]), and its result |
//! | `dataframe` | the result as tables |

mod analyzers;
#[cfg(feature = "dataframe")]
pub mod dataframe;
mod follow;
mod judge;
mod link;
mod measure;
mod model;
mod result;

/// Ids of the rules of `docs/findings.md`: words of the schema.
#[cfg(feature = "schema")]
#[must_use]
pub fn rule_ids() -> Vec<&'static str> {
    judge::findings::ids()
}

#[cfg(test)]
#[path = "../tests/it/notation/mod.rs"]
mod notation;
#[cfg(test)]
#[path = "../tests/it/stamps.rs"]
mod stamps;

pub use judge::{compare, incomplete};
pub use measure::histogram;
pub use result::{analysis, units, verdict};

pub use analyzers::analyzer::{Analyzer, GuestEvents};
pub use analyzers::block_analyzer::{BlockAnalyzer, BlockOptions};
pub use analyzers::options::Options;
pub use analyzers::recording::{GUEST_STREAM_DAMAGED, LEFT_OUT, losses};
pub use follow::sector_identity::{Identified, Identities};
pub use link::chains::StoryChoice;
pub use measure::histogram::Histogram;
pub use result::analysis::Analysis;
pub use result::cdf::Cdf;
pub use result::dist::Dist;
pub use result::loss_counts::LossCounts;
pub use result::segments::{CALL_SEGMENT_NAMES, SEGMENT_NAMES};
