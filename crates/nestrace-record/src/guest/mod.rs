//! Finding guests.
