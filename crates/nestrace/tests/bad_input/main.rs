//! Bad input, as a user meets it: every command ends soon, within bounded memory, with what can be
//! known (0) or with one clear line (3).

mod bundles;
mod captures;
mod import;
mod limited;
mod memory;
mod names;
mod recording;
mod repair;
