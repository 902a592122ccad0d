//! What a recording survives: the recorder's death, a guest's, a full file system, an overload; and
//! how it refuses when it cannot begin.
//!
//! One guest serves nearly all cases: it writes to its disk without a pause where a case needs I/O.
//! A second one runs a QEMU without symbols.

mod endings;
mod full_disk;
mod guest_troubles;
mod kills;
mod limits;
mod no_symbols;
mod overload;
mod privileges;
mod refusals;

use super::Scenario;
use super::context::LiveContext;
use super::stage::{Body, Stage, run_cases};
use xtask::case::Report;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "survival",
    about: "killed recorders and guests, full disks, overload, refusals: what was recorded stays readable",
    run,
    alone: false,
};

/// In this order: the guest loses a disk in the last but one, and its life in the last.
const CASES: &[(&str, Body)] = &[
    ("refusals/not-root", refusals::not_root),
    ("refusals/unknown-guest", refusals::unknown_guest),
    (
        "refusals/guest-without-disks",
        refusals::guest_without_disks,
    ),
    ("refusals/output-exists", refusals::output_exists),
    ("refusals/no-btf", refusals::no_btf),
    ("refusals/no-tracefs", refusals::no_tracefs),
    ("refusals/own-pid-namespace", refusals::own_pid_namespace),
    ("refusals/command-not-found", refusals::command_not_found),
    ("kill-9/while-starting", kills::while_starting),
    ("kill-9/while-recording", kills::while_recording),
    ("stop/sigterm", endings::sigterm),
    ("stop/sighup", endings::sighup),
    ("stop/terminal-gone", endings::terminal_gone),
    ("stop/sigint-silent-guest", endings::silent_guest),
    ("stop/duration", endings::duration),
    ("stop/max-size", limits::max_size),
    ("stop/command", endings::command),
    ("stop/closed-pipe", endings::closed_pipe),
    ("full-disk/ext4", full_disk::ext4),
    ("full-disk/tmpfs", full_disk::tmpfs),
    ("privileges/given-up", privileges::given_up),
    ("privileges/sudo", privileges::bundle_of_the_user),
    ("overload/exact-losses", overload::exact_losses),
    ("overload/strict", overload::strict),
    ("memory", limits::memory),
    ("guest/reset", guest_troubles::reset),
    ("guest/pause", guest_troubles::paused),
    ("guest/unplug", guest_troubles::unplug),
    ("guest/kill-9", guest_troubles::killed),
];

/// On a QEMU whose symbols are gone; the guest ends in the last.
const CASES_WITHOUT_SYMBOLS: &[(&str, Body)] = &[
    (
        "no-symbols/file-io-stands-in",
        no_symbols::file_io_stands_in,
    ),
    ("no-symbols/debug-file", no_symbols::debug_file),
    ("guest/exit", guest_troubles::exited),
];

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    run_cases(ctx, report, (SCENARIO.name, CASES), Stage::boot)?;
    let without_symbols = (SCENARIO.name, CASES_WITHOUT_SYMBOLS);
    run_cases(ctx, report, without_symbols, no_symbols::boot)
}
