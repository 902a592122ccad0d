//! An analysis as a person reads it, and as a script does.
//!
//! Sits above `nestrace-analyzer`. Pure: it takes an [`nestrace_analyzer::Analysis`] and returns
//! text; the command decides where that goes.
//!
//! ```
//! use nestrace_analyzer::{Analyzer, Options};
//! let analysis = Analyzer::analyze(&Default::default(), Options::default(), []);
//! let text = nestrace_report::text::render(&analysis, &Default::default());
//! assert!(text.contains("No I/O"));
//! assert!(nestrace_report::json::render(&analysis).contains("nestrace-analysis/1"));
//! ```

mod bar;
pub mod btt;
mod call_file;
pub mod fleet;
pub mod html;
pub mod json;
pub mod lab;
mod layers;
mod operation;
pub mod plots;
#[cfg(feature = "schema")]
pub mod schema;
pub mod table;
pub mod text;
pub use nestrace_analyzer::units;
