//! Analyses and captures as a reader gets them: text, JSON, pages.
//!
//! One program: each would link everything anew.

mod btt;
mod calls;
mod captures;
mod chains;
mod compare;
mod damaged_captures;
mod experiments;
mod html;
mod lab;
mod text;
mod waterfall;

// The analyzer's own words for events.
#[path = "../../../nestrace-analyzer/tests/it/notation/mod.rs"]
mod notation;
#[path = "../../../nestrace-analyzer/tests/it/stack/mod.rs"]
mod stack;
#[path = "../../../nestrace-analyzer/tests/it/two_sides/mod.rs"]
mod two_sides;
