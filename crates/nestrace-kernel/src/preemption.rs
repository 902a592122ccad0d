//! Whether the kernel may preempt a tracepoint's programs.

/// Whether a thread may be preempted within a tracepoint's programs, and go on with the next of them on another
/// processor: since 7.0, where tracepoints are guarded by `srcu_fast_notrace` and not by preemption off
/// (`include/linux/tracepoint.h`). No type tells, so the release does; one that cannot be read counts as newer.
///
/// ```
/// use nestrace_kernel::preemption::tracepoints_may_be_preempted;
/// assert!(tracepoints_may_be_preempted("7.3.4+deb13-amd64"));
/// assert!(!tracepoints_may_be_preempted("6.18.44"));
/// ```
#[must_use]
pub fn tracepoints_may_be_preempted(release: &str) -> bool {
    let major = release.split(|c: char| !c.is_ascii_digit()).next();
    major
        .and_then(|major| major.parse::<u32>().ok())
        .is_none_or(|major| major >= 7)
}
