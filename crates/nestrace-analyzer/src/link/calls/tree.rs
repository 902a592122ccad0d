//! The tree of a call: what it waited for, and below that the chains of its bios.

use nestrace_abi::flags::op;

use super::{Bio, Pending};
use crate::model::call::{Call, Why};
use crate::model::operation::Operation;
use crate::model::pointer::PointerMap;
use crate::model::span::{Layer, Span, What};

/// A call that waited for no bio.
pub(super) fn alone(call: &Call) -> Span {
    let throttles = call.throttles.iter();
    let throttles = throttles.map(|(start_ns, end_ns)| {
        let end_ns = (*end_ns).min(call.end_ns);
        span(
            Layer::Throttle,
            What::Other,
            (*start_ns, end_ns),
            Vec::new(),
        )
    });
    Span {
        offset: call.offset,
        bytes: call.bytes,
        ..span(
            Layer::Call,
            what(call),
            (call.start_ns, call.end_ns),
            throttles.collect(),
        )
    }
}

/// A call whose bios are all decided.
pub(super) fn of(pending: &Pending, bios: &PointerMap<u64, Bio>) -> Span {
    let call = &pending.call;
    let mut tree = alone(call);
    let (mut pages, mut log) = (Vec::new(), Vec::new());
    for waited in &call.bios {
        let Some(bio) = tree_of(waited.id, bios) else {
            continue;
        };
        match waited.why {
            Why::Own => tree.children.push(bio),
            Why::Pages | Why::WriteBack => pages.push(bio),
            Why::Log => log.push(bio),
        }
    }
    tree.children.extend(page_waits(pages));
    if let Some(forced_ns) = call.log_forced_ns
        && let Some(end_ns) = log.iter().map(|bio| bio.end_ns).max()
    {
        log.iter_mut().for_each(|bio| bio.shared = true);
        tree.children.push(Span {
            shared: true,
            ..span(Layer::GuestJournal, What::Journal, (forced_ns, end_ns), log)
        });
    }
    for commit in &pending.commits {
        let own_file = call.caller.file;
        let children = commit.bios.iter().filter_map(|id| {
            let mut tree = tree_of(*id, bios)?;
            let data_of = bios.get(id)?.data_of;
            tree.shared = true;
            if tree.what == What::Write {
                tree.what = match data_of {
                    Some(file) if file == own_file => What::Write,
                    Some(_) => What::OthersData,
                    None => What::Journal,
                };
            }
            Some(tree)
        });
        let times = (commit.start_ns, commit.end_ns);
        tree.children.push(Span {
            shared: true,
            ..span(
                Layer::GuestJournal,
                What::Journal,
                times,
                children.collect(),
            )
        });
    }
    tree
}

fn tree_of(id: u64, bios: &PointerMap<u64, Bio>) -> Option<Span> {
    let bio = bios.get(&id)?;
    let mut tree = bio.tree.as_deref()?.clone();
    tree.shared = bio.holders > 1;
    Some(tree)
}

/// Bios that move pages, those that are in flight at once under one wait.
fn page_waits(mut bios: Vec<Span>) -> Vec<Span> {
    bios.sort_by_key(|bio| (bio.start_ns, bio.end_ns));
    let mut waits: Vec<Span> = Vec::new();
    for bio in bios {
        match waits.last_mut() {
            Some(wait) if bio.start_ns <= wait.end_ns => {
                wait.end_ns = wait.end_ns.max(bio.end_ns);
                wait.shared |= bio.shared;
                wait.children.push(bio);
            }
            _ => waits.push(Span {
                shared: bio.shared,
                ..span(
                    Layer::PageWait,
                    bio.what,
                    (bio.start_ns, bio.end_ns),
                    vec![bio],
                )
            }),
        }
    }
    waits
}

fn what(call: &Call) -> What {
    match call.caller.op {
        op::READ => What::of(Operation::Read, false),
        op::WRITE => What::of(Operation::Write, false),
        op::FSYNC | op::FDATASYNC | op::SYNC_FILE_RANGE => What::Sync,
        _ => What::Other,
    }
}

fn span(layer: Layer, what: What, (start_ns, end_ns): (u64, u64), children: Vec<Span>) -> Span {
    Span {
        layer,
        start_ns,
        end_ns,
        offset: 0,
        bytes: 0,
        what,
        shared: false,
        place: 0,
        children,
    }
}
