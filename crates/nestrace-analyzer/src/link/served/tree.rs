//! Trees of intervals from what the layers hand on.

use nestrace_abi::flags::op;

use crate::model::actor::{Actor, Actors};
use crate::model::file_io_span::{FileIoSpan, RpcSpan};
use crate::model::span::{Below, BioSpan, HostBio, Layer, RequestSpan, Span, What};

impl HostBio {
    /// `under` says what the work of a device goes on to, `beneath` gives what was done there for a request.
    pub(super) fn new(
        bio: &BioSpan,
        journal: bool,
        under: impl Fn(u32) -> Below,
        mut beneath: impl FnMut(&RequestSpan) -> Vec<Span>,
    ) -> Self {
        // NVMe's multipath hands a bio to the device of a path, which sysfs gives no number.
        let of_bio = under(bio.dev);
        let of_request = |dev| match of_bio {
            Below::Server => Below::Server,
            _ => under(dev),
        };
        let children = bio
            .requests
            .iter()
            .map(|request| request_span(request, of_request(request.dev), beneath(request)))
            .collect();
        let what = if journal && !bio.empty_flush {
            What::Journal
        } else {
            What::of(bio.operation, bio.empty_flush)
        };
        Self {
            span: Span {
                layer: Layer::HostBio,
                start_ns: bio.queued_ns,
                end_ns: bio.ended_ns,
                offset: bio.offset,
                bytes: bio.bytes,
                what,
                shared: false,
                place: bio.dev,
                below: of_bio,
                actors: Actors::of(Actor::host(bio.tid), Actor::Unknown),
                children,
            },
            requests: bio
                .requests
                .iter()
                .map(|request| (request.serial, request.bios))
                .collect(),
            ambiguous: bio.ambiguous,
        }
    }
}

fn request_span(request: &RequestSpan, below: Below, children: Vec<Span>) -> Span {
    let mut span = Span {
        layer: Layer::HostRequest,
        start_ns: request.issued_ns,
        end_ns: request.completed_ns,
        offset: request.offset,
        bytes: request.bytes,
        what: What::of(request.operation, request.flush),
        shared: false,
        place: request.dev,
        below,
        actors: Actors::of(Actor::host(request.tid), Actor::Unknown),
        children,
    };
    clip_children(&mut span);
    span
}

/// The file I/O with its bios. A request that carried others' bios too is shared.
pub(super) fn file_io(file: &FileIoSpan, what: What, shared: bool, below: Below) -> Span {
    let mut own: Vec<(u64, u32)> = Vec::new();
    for (serial, _) in file.bios.iter().flat_map(|bio| &bio.requests) {
        match own.iter_mut().rev().find(|(known, _)| known == serial) {
            Some((_, n)) => *n += 1,
            None => own.push((*serial, 1)),
        }
    }
    let with_others =
        |serial: u64, bios: u32| own.iter().any(|(known, n)| *known == serial && *n < bios);
    let children = file
        .bios
        .iter()
        .map(|bio| {
            let mut span = bio.span.clone();
            for (child, (serial, bios)) in span.children.iter_mut().zip(&bio.requests) {
                child.shared |= span.shared || with_others(*serial, *bios);
            }
            span
        })
        .chain(file.rpcs.iter().map(|rpc| at_server(rpc, file.image)))
        .collect();
    let mut span = Span {
        layer: Layer::FileIo,
        start_ns: file.start_ns,
        end_ns: file.end_ns,
        offset: file.offset,
        bytes: file.bytes,
        what,
        shared,
        place: file.image,
        below,
        actors: Actors::of(Actor::host(file.tid), file.ends),
        children,
    };
    clip_children(&mut span);
    span
}

/// A call to a server while it was there.
fn at_server(rpc: &RpcSpan, image: u32) -> Span {
    Span {
        layer: Layer::ServerCall,
        start_ns: rpc.sent_ns,
        end_ns: rpc.answered_ns,
        offset: rpc.offset,
        bytes: rpc.bytes,
        what: of_operation(rpc.op),
        shared: false,
        place: image,
        below: Below::Nothing,
        actors: Actors::default(),
        children: Vec::new(),
    }
}

/// What a file I/O with the guest's own data does.
pub(super) const fn of_operation(operation: u8) -> What {
    match operation {
        op::READ => What::Read,
        op::WRITE => What::Write,
        op::FSYNC | op::FDATASYNC | op::SYNC_FILE_RANGE => What::Sync,
        _ => What::Other,
    }
}

/// Cuts everything below a span to it; what lies outside altogether is none of its.
pub(super) fn clip_children(span: &mut Span) {
    let (start, end) = (span.start_ns, span.end_ns);
    span.children
        .retain(|child| child.start_ns <= end && child.end_ns >= start);
    for child in &mut span.children {
        let whole = child.start_ns >= start && child.end_ns <= end;
        if !whole {
            child.start_ns = child.start_ns.max(start);
            child.end_ns = child.end_ns.min(end);
            clip_children(child);
        }
    }
    span.children.sort_by_key(|child| child.start_ns);
}
