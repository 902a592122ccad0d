//! A program that is attached to a tracepoint or a function of the kernel.

use aya::programs::{
    kprobe::KProbeLinkId, raw_trace_point::RawTracePointLinkId, tp_btf::BtfTracePointLinkId,
};

/// The program's name, and what detaches it.
pub(super) enum Attachment {
    BtfTracePoint(&'static str, BtfTracePointLinkId),
    RawTracePoint(&'static str, RawTracePointLinkId),
    Function(&'static str, KProbeLinkId),
}
