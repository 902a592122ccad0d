//! The tree of a call: what it waited for, and below that the chains of its bios.

use nestrace_abi::flags::op;

use super::held::HeldBios;
use super::pending::Pending;
use crate::model::actor::{Actor, Actors};
use crate::model::call::{By, Call, FileId, PAGE_FAULT, Why};
use crate::model::operation::Operation;
use crate::model::span::{Below, Layer, Span, What};

/// A call that waited for no bio.
pub(super) fn alone(call: &Call) -> Span {
    let throttles = call.throttles.iter();
    let throttles = throttles.map(|(start_ns, end_ns)| {
        let end_ns = (*end_ns).min(call.end_ns);
        Span {
            actors: caller(call),
            ..span(
                Layer::Throttle,
                What::Other,
                (*start_ns, end_ns),
                Vec::new(),
            )
        }
    });
    let log_space = call.log_space.iter();
    let log_space = log_space.map(|times| journal(*times, Vec::new()));
    Span {
        offset: call.offset,
        bytes: call.bytes,
        actors: caller(call),
        ..span(
            Layer::Call,
            what(call),
            (call.start_ns, call.end_ns),
            throttles.chain(log_space).collect(),
        )
    }
}

/// The caller waits for all of a system call; of what it only submits an interrupt ends most.
fn caller(call: &Call) -> Actors {
    let tid = Actor::guest(call.caller.tid);
    Actors::of(
        tid,
        match call.by {
            By::Thread => tid,
            By::Aio(_) | By::Uring(_) => Actor::Unknown,
        },
    )
}

/// The tree of a call, and the numbers of its bios as a walk from the root meets them.
pub(super) struct CallTree {
    pub span: Span,
    pub bios: Vec<u64>,
}

/// A call whose bios are all decided.
pub(super) fn of(pending: &Pending, bios: &mut HeldBios) -> CallTree {
    let call = &pending.call;
    let mut span = alone(call);
    let mut order = Vec::new();
    let (mut pages, mut log) = (Vec::new(), Vec::new());
    for waited in &call.bios {
        let Some(bio) = tree_of(waited.id, bios) else {
            continue;
        };
        match waited.why {
            Why::Own => {
                order.push(waited.id);
                span.children.push(bio);
            }
            Why::Pages | Why::WriteBack => pages.push((waited.id, bio)),
            Why::Log => log.push((waited.id, bio)),
        }
    }
    pages.sort_by_key(|(_, bio)| (bio.start_ns, bio.end_ns));
    order.extend(pages.iter().map(|(id, _)| *id));
    span.children.extend(page_waits(
        pages.into_iter().map(|(_, bio)| bio),
        caller(call),
    ));
    let log_ends_ns = log.iter().map(|(_, bio)| bio.end_ns).max();
    if let Some((forced_ns, end_ns)) = call.log_forced_ns.zip(log_ends_ns) {
        order.extend(log.iter().map(|(id, _)| *id));
        let bios = log.into_iter().map(|(_, bio)| shared(bio)).collect();
        span.children.push(journal((forced_ns, end_ns), bios));
    }
    for commit in &pending.commits {
        let mut children = Vec::new();
        for id in &commit.bios {
            if let Some(bio) = of_commit(*id, call.caller.file, bios) {
                order.push(*id);
                children.push(bio);
            }
        }
        let times = (commit.start_ns, commit.end_ns);
        span.children.push(journal(times, children));
    }
    CallTree { span, bios: order }
}

/// The tree of a bio: the last call that holds it takes it.
fn tree_of(id: u64, bios: &mut HeldBios) -> Option<Span> {
    let bio = bios.get_mut(id)?;
    let shared = bio.holders > 1;
    let tree = match shared {
        true => bio.tree.clone(),
        false => bio.tree.take(),
    };
    tree.map(|tree| Span { shared, ..tree })
}

/// A bio of a commit that a call on `own_file` waits for.
fn of_commit(id: u64, own_file: FileId, bios: &mut HeldBios) -> Option<Span> {
    let mut tree = shared(tree_of(id, bios)?);
    if tree.what == What::Write {
        tree.what = match bios.get(id)?.data_of {
            Some(file) if file == own_file => What::Write,
            Some(_) => What::OthersData,
            None => What::Journal,
        };
    }
    Some(tree)
}

fn shared(bio: Span) -> Span {
    Span {
        shared: true,
        ..bio
    }
}

fn journal(times: (u64, u64), bios: Vec<Span>) -> Span {
    // The thread that makes the commit queues its bios.
    let actor = bios.first().map_or(Actor::Unknown, |bio| bio.actors.begins);
    Span {
        actors: Actors::of(actor, actor),
        ..shared(span(Layer::GuestJournal, What::Journal, times, bios))
    }
}

/// Bios that move pages, by their begin: those that are in flight at once stand under one wait.
fn page_waits(by_begin: impl Iterator<Item = Span>, actors: Actors) -> Vec<Span> {
    let mut waits: Vec<Span> = Vec::new();
    for bio in by_begin {
        match waits.last_mut() {
            Some(wait) if bio.start_ns <= wait.end_ns => {
                wait.end_ns = wait.end_ns.max(bio.end_ns);
                wait.shared |= bio.shared;
                wait.children.push(bio);
            }
            _ => waits.push(Span {
                shared: bio.shared,
                actors,
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
        op::READ | PAGE_FAULT => What::of(Operation::Read, false),
        op::WRITE => What::of(Operation::Write, false),
        op::FSYNC | op::FDATASYNC | op::MSYNC | op::SYNC_FILE_RANGE => What::Sync,
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
        below: Below::Nothing,
        actors: Actors::default(),
        children,
    }
}
