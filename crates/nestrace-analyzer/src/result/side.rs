//! Which machine something is of.

use crate::result::word::words;

words! {
    /// The machine that recorded a device or a stream.
    #[derive(Default)]
    pub enum Side {
        /// The hypervisor.
        #[default]
        Host = "host",
        /// A guest.
        Guest = "guest",
    }
}
