//! The result as tables: [`DataFrame`]s for whoever goes on in polars, or writes Parquet (feature `dataframe`).
//!
//! A view is a copy of what [`Analysis`](crate::Analysis) holds, one row a thing and one column a fact, under the
//! names of the JSON form. Times are integer nanoseconds, sizes bytes; what is not recorded or not
//! knowable is null. A view without rows has its columns all the same.
//!
//! | view | a row is |
//! |---|---|
//! | [`devices`] | a block device of the host or of a guest: counts and bytes |
//! | [`latencies`] | a distribution: a part of an I/O's way at a layer, by operation |
//! | [`histograms`] | a bin of one of `vscsiStats`' histograms |
//! | [`minutes`] | a device or disk, layer, operation and minute: count, sum, bytes, distribution |
//! | [`chains`] | a guest's disk: how many of its bios were followed, and where to |
//! | [`segments`] | a part of a disk's latency, by operation |
//! | [`calls`], [`call_segments`] | calls of a guest's program on a file, by operation; a part of their latency |
//! | [`CallMinutes`] | calls of a guest's program on a file, by operation and minute: counts, sums, distribution |
//! | [`call_stories`] | a single call of a guest's program |
//! | [`findings`] | a rule that fired |
//! | [`stories`], [`spans`] | a single guest bio; an interval in its tree |
//! | [`events`] | an event of a stream, as it was recorded |
//!
//! ```
//! use nestrace_analyzer::{Analyzer, Options, dataframe};
//! use nestrace_trace::{Event, Kind, Manifest};
//! # fn main() -> dataframe::PolarsResult<()> {
//! let queue = Event { ts_ns: 1_000, kind: Kind::Queue as u8, object: 0xb10, bytes: 4096, ..Event::default() };
//! let analysis = Analyzer::analyze(&Manifest::default(), Options::default(), [queue]);
//! let devices = dataframe::devices(&analysis)?;
//! assert_eq!(devices.column("queued")?.u64()?.get(0), Some(1));
//! # Ok(())
//! # }
//! ```

mod call_minutes;
mod calls;
mod chains;
mod devices;
mod events;
mod findings;
mod histograms;
mod latencies;
mod minutes;
mod stories;

pub use call_minutes::CallMinutes;
pub use calls::{call_segments, call_stories, calls};
pub use chains::{chains, segments};
pub use devices::devices;
pub use events::events;
pub use findings::findings;
pub use histograms::histograms;
pub use latencies::latencies;
pub use minutes::minutes;
/// The release of polars that the views are made with.
pub use polars;
pub use polars::frame::DataFrame;
pub use polars::prelude::PolarsResult;
pub use stories::{spans, stories};

/// A table of `$rows`: a name and a value for each column. The column's type is that of the value.
macro_rules! table {
    ($rows:expr, $row:pat => { $($name:ident: $value:expr,)+ }) => {{
        let rows = $rows;
        polars::frame::DataFrame::new(rows.len(), vec![$({
            let values: Vec<_> = rows.iter().map(|$row| $value).collect();
            polars::prelude::Column::new(stringify!($name).into(), values)
        },)+])
    }};
}
use table;
