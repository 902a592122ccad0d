//! The screen of `nestrace top`: snapshots and keys go in, cells of a terminal come out.
//!
//! [`State`](state::State) takes each [`Snapshot`](nestrace_sums::snapshot::Snapshot) and each [`Key`](keys::Key), and
//! [`draw`](draw::draw) draws it. What a key wants from outside the screen is a [`Wish`](keys::Wish), which the caller serves: it
//! owns the terminal, reads the sums and starts recordings. Pure: no terminal, file or clock.
//!
//! Names come from guests and command lines: the state keeps them as they are, and `draw` makes each printable.
//!
//! ```
//! use nestrace_sums::snapshot::Snapshot;
//! use nestrace_top::{draw::draw, keys::{Key, Wish}, state::State};
//! use ratatui::{Terminal, backend::TestBackend};
//!
//! let mut state = State::default();
//! state.on_snapshot(Snapshot::default(), "14:03:07");
//! let mut terminal = Terminal::new(TestBackend::new(80, 24))?;
//! terminal.draw(|frame| draw(&state, frame))?;
//! assert!(terminal.backend().to_string().contains("no guest is running"));
//! assert_eq!(state.on_key(Key::Char('q')), Some(Wish::Quit));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod chart;
pub mod columns;
pub mod draw;
pub mod figures;
pub mod keys;
pub mod minute;
pub mod page;
pub mod state;
