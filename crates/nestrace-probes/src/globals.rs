//! Facts about the running kernel that are set in the probes: offsets from BTF, addresses from kallsyms.

use std::{collections::HashMap, fs::File, io::BufReader};

use nestrace_abi::{
    end_io,
    layout::{
        ALL_DEVICES, PG_HEAD_BIT, PREEMPTIBLE, RQF_FLUSH_SEQ_BIT, RQF_FLUSH_SEQ_BIT_BEFORE_6_11,
        SMB_MESSAGE_ARG, SWITCH_STATE, SYMBOLS, THROTTLE_PAUSE_ARG, URING_COMPLETE_CQE,
        URING_SUBMIT_ARG,
    },
};
use nestrace_kernel::{
    kallsyms::Addresses, layout::Layout, preemption::tracepoints_may_be_preempted, smb, throttle,
    uring,
};
use nix::time::{ClockId, clock_getres};

/// Values of all globals of the probes.
pub struct Globals {
    /// Offsets and sizes.
    pub fields: Vec<(&'static str, u16)>,
    /// Addresses of functions; 0 where hidden.
    pub addresses: Vec<(&'static str, u64)>,
    /// Small constants.
    pub constants: Vec<(&'static str, u8)>,
    /// Nanoseconds of a jiffy.
    pub jiffy_ns: u32,
    /// Address of `bi_end_io` functions → number in [`end_io::SYMBOLS`].
    pub end_io: HashMap<u64, u8>,
    /// Whether a tracepoint's programs may be preempted.
    pub preemptible: bool,
    /// Whether the kernel hides its addresses, so that direct I/O cannot be recognized by its end function.
    pub addresses_hidden: bool,
}

impl Globals {
    /// Finds everything for this kernel. `all_devices` opens the device filter.
    #[must_use]
    pub fn resolve(layout: &Layout, all_devices: bool) -> Self {
        let symbols = kernel_symbols();
        let preemptible = may_be_preempted();
        let address = |name: &str| symbols.found.get(name).copied().unwrap_or(0);
        Self {
            fields: layout.globals().collect(),
            addresses: SYMBOLS
                .iter()
                .map(|(global, symbol)| (*global, address(symbol)))
                .collect(),
            constants: constants(layout, all_devices, preemptible),
            jiffy_ns: jiffy_ns(),
            end_io: (0u8..)
                .zip(end_io::SYMBOLS)
                .map(|(number, symbol)| (address(symbol), number))
                .filter(|(address, _)| *address != 0)
                .collect(),
            preemptible,
            addresses_hidden: symbols.hidden,
        }
    }
}

impl Globals {
    /// Whether probes that were loaded with these are what they would be with `other`.
    #[must_use]
    pub fn give_the_same_probes_as(&self, other: &Self) -> bool {
        self.fields == other.fields
            && self.addresses == other.addresses
            && self.constants == other.constants
    }
}

fn constants(layout: &Layout, all_devices: bool, preemptible: bool) -> Vec<(&'static str, u8)> {
    let bit = |name: &str| {
        layout
            .enumerators
            .get(name)
            .and_then(|value| u8::try_from(*value).ok())
    };
    vec![
        (ALL_DEVICES, u8::from(all_devices)),
        (PG_HEAD_BIT, bit("PG_head").unwrap_or(0)),
        (
            RQF_FLUSH_SEQ_BIT,
            bit("__RQF_FLUSH_SEQ").unwrap_or(RQF_FLUSH_SEQ_BIT_BEFORE_6_11),
        ),
        (
            URING_COMPLETE_CQE,
            u8::from(uring::completes_with_cqe(layout)),
        ),
        (
            THROTTLE_PAUSE_ARG,
            throttle::pause_argument(layout).unwrap_or(0),
        ),
        (SMB_MESSAGE_ARG, smb::message_argument(layout).unwrap_or(0)),
        (URING_SUBMIT_ARG, u8::from(uring::context_is_first(layout))),
        (PREEMPTIBLE, u8::from(preemptible)),
        (SWITCH_STATE, u8::from(switch_passes_state(layout))),
    ]
}

/// Whether `sched_switch` passes the state of the thread that leaves, behind whether it is preempted and both threads.
fn switch_passes_state(layout: &Layout) -> bool {
    let arguments = layout.tracepoints.get("sched_switch");
    arguments.is_some_and(|arguments| arguments.len() > 3)
}

/// The resolution of the coarse clocks is a jiffy; 0 if the kernel does not say.
fn jiffy_ns() -> u32 {
    let resolution = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).ok();
    let ns = resolution.filter(|resolution| resolution.tv_sec() == 0);
    ns.and_then(|ns| u32::try_from(ns.tv_nsec()).ok())
        .unwrap_or(0)
}

/// Whether the running kernel may preempt a tracepoint's programs.
fn may_be_preempted() -> bool {
    let release = nix::sys::utsname::uname().ok();
    let release = release.as_ref().and_then(|names| names.release().to_str());
    tracepoints_may_be_preempted(release.unwrap_or_default())
}

/// Addresses of the functions that matter; none where kallsyms cannot be read.
fn kernel_symbols() -> Addresses {
    let wanted: Vec<&str> = end_io::SYMBOLS
        .iter()
        .skip(1)
        .copied()
        .chain(SYMBOLS.iter().map(|(_, symbol)| *symbol))
        .collect();
    File::open("/proc/kallsyms")
        .and_then(|file| Addresses::read(BufReader::new(file), &wanted))
        .unwrap_or_default()
}
