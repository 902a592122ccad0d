//! The ways to attach a program.

use serde::Serialize;

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// A tracepoint whose arguments the verifier knows by BTF: fields are read without a helper.
    TpBtf,
    /// A raw tracepoint.
    RawTp,
    /// The entry of a function of the kernel.
    Kprobe,
    /// The return of a function of the kernel.
    Kretprobe,
    /// The entry of a function in QEMU, found by symbol.
    Uprobe,
    /// A USDT note in QEMU.
    Usdt,
}

impl How {
    /// Whether the program is attached to a function of the kernel.
    #[must_use]
    pub const fn is_on_function(self) -> bool {
        matches!(self, Self::Kprobe | Self::Kretprobe)
    }

    /// The word in manifests: `tp_btf`, `raw_tp`, `kprobe`, `kretprobe`, `uprobe`, `usdt`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TpBtf => "tp_btf",
            Self::RawTp => "raw_tp",
            Self::Kprobe => "kprobe",
            Self::Kretprobe => "kretprobe",
            Self::Uprobe => "uprobe",
            Self::Usdt => "usdt",
        }
    }
}
