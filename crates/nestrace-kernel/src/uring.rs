//! Where io_uring's tracepoints have the request: in another place on nearly every kernel, and before Linux 5.18 not
//! everywhere.

use crate::btf::Arg;
use crate::layout::Layout;

const COMPLETE: &str = "io_uring_complete";
const ASYNC: &str = "io_uring_queue_async_work";

/// What an io_uring that is not seen costs, and what is seen instead.
pub(crate) const COST: &str =
    "File I/O that QEMU submits by io_uring (aio=io_uring) is not seen; with aio=threads it is.";

/// Whether the context comes first and the request, an untyped pointer, behind it: before 6.0.
#[must_use]
pub fn context_is_first(layout: &Layout) -> bool {
    argument(layout, "io_uring_submit_sqe", 0).is_some_and(|arg| arg.type_name == "void")
}

/// Whether the end comes as an entry of the completion queue, not in its parts: since 6.15.
#[must_use]
pub fn completes_with_cqe(layout: &Layout) -> bool {
    argument(layout, COMPLETE, 2).is_some_and(|arg| arg.type_name == "io_uring_cqe")
}

/// Why no program for io_uring is of use; `None` where they are. An I/O that begins has to end.
pub(crate) fn obstacle(layout: &Layout) -> Option<&'static str> {
    // Since 5.18 (502c87d65564), before that the user's data stood there.
    (!names_request(layout, COMPLETE, 1)).then_some(
        "this kernel's io_uring_complete does not say which request ends (Linux 5.18 does)",
    )
}

/// Why the program of this tracepoint alone does not find the request.
pub(crate) fn misplaced(layout: &Layout, tracepoint: &str) -> Option<&'static str> {
    // 5.18 and 5.19 have the user's data where the program looks.
    let place = if context_is_first(layout) { 2 } else { 0 };
    (tracepoint == ASYNC && !names_request(layout, ASYNC, place))
        .then_some("this kernel's io_uring_queue_async_work has the request in another place")
}

/// Whether there is a pointer in this place, which then is the request.
fn names_request(layout: &Layout, tracepoint: &str, place: usize) -> bool {
    argument(layout, tracepoint, place).is_some_and(|arg| arg.is_pointer)
}

fn argument<'l>(layout: &'l Layout, tracepoint: &str, place: usize) -> Option<&'l Arg> {
    layout.tracepoints.get(tracepoint)?.get(place)
}
