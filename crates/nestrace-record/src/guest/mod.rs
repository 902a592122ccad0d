//! Finding guests.
pub mod block_node;
pub mod cache_mode;
pub mod command_line;
pub mod device_model;
pub mod drive;
pub mod options;
