//! What the chores share with the live tests (`tests/live`) and the benches: building the project's programs, saying what
//! is going on, and telling what was expected and what was found.

pub mod agent;
pub mod cargo_build;
pub mod case;
pub mod ending;
pub mod folder_size;
pub mod guest_programs;
pub mod progress;
