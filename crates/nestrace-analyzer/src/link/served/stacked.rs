//! What loop, dm and md devices do below a request.
//!
//! A loop device with direct I/O names its own request as the origin of the bios of its backing file
//! (10,240 of 10,240). dm and md hand on clones that carry the same pages or the same kiocb. All of
//! it lies inside the host's request and never changes where its time is charged.

use std::collections::VecDeque;

use crate::follow::image::Images;
use crate::model::owner::Owner;
use crate::model::pointer::PointerMap;
use crate::model::span::{BioSpan, HostBio, RequestSpan, Span};

/// Bios below that wait for the request above them to end. More are not in flight.
const MAX_WAITING: usize = 1 << 14;
/// Merged requests remembered: their bios end right after each other.
const MAX_GIVEN: usize = 64;

/// A bio of a lower device, not yet claimed.
#[derive(Debug)]
struct Lower {
    /// Of [`Images::file_number`].
    file: u32,
    iocb: u64,
    file_offset: u64,
    tree: Span,
}

/// Bios of lower devices that have ended.
#[derive(Debug, Default)]
pub(super) struct Stacked {
    /// By the loop device's request.
    loops: PointerMap<u64, Vec<Span>>,
    clones: VecDeque<Lower>,
    /// What merged requests had below them, for their other bios.
    given: VecDeque<(u64, Vec<Span>)>,
}

impl Stacked {
    /// Keeps a bio of a lower device for the one above it. Says whether it is one.
    pub(super) fn keep(&mut self, bio: &BioSpan, images: &Images) -> bool {
        match bio.owner {
            Owner::Loop(_) if bio.origin != 0 => {
                let tree = self.tree(bio, images);
                if self.loops.len() >= MAX_WAITING {
                    self.loops.clear();
                }
                self.loops.entry(bio.origin).or_default().push(tree);
                true
            }
            Owner::Image(image) if !images.is_under(image, bio) => {
                let tree = self.tree(bio, images);
                if self.clones.len() >= MAX_WAITING {
                    self.clones.pop_front();
                }
                self.clones.push_back(Lower {
                    file: images.file_number(image),
                    iocb: bio.iocb,
                    file_offset: bio.file_offset,
                    tree,
                });
                true
            }
            _ => false,
        }
    }

    fn tree(&mut self, bio: &BioSpan, images: &Images) -> Span {
        HostBio::new(bio, false, |request| self.beneath(bio, request, images)).span
    }

    /// What was done below a request of a bio.
    pub(super) fn beneath(
        &mut self,
        bio: &BioSpan,
        request: &RequestSpan,
        images: &Images,
    ) -> Vec<Span> {
        let mut spans = self.of_loop(request);
        if bio.pointer == request.pointer
            && let Owner::Image(image) = bio.owner
        {
            spans.extend(self.clones_of(bio, images.file_number(image)));
        }
        spans
    }

    /// Of a merged request every bio gets the same.
    fn of_loop(&mut self, request: &RequestSpan) -> Vec<Span> {
        if let Some((_, spans)) = self
            .given
            .iter()
            .find(|(serial, _)| *serial == request.serial)
        {
            return spans.clone();
        }
        let Some(mut spans) = self.loops.remove(&request.pointer) else {
            return Vec::new();
        };
        spans.retain(|span| {
            span.start_ns >= request.issued_ns && span.end_ns <= request.completed_ns
        });
        if request.bios > 1 {
            if self.given.len() >= MAX_GIVEN {
                self.given.pop_front();
            }
            self.given.push_back((request.serial, spans.clone()));
        }
        spans
    }

    fn clones_of(&mut self, bio: &BioSpan, file: u32) -> Vec<Span> {
        let is_clone = |lower: &Lower| {
            let same = if bio.iocb != 0 || lower.iocb != 0 {
                lower.iocb == bio.iocb
            } else {
                let end = bio.file_offset.saturating_add(bio.bytes);
                (bio.file_offset..end).contains(&lower.file_offset)
            };
            same && lower.file == file
                && lower.tree.start_ns >= bio.queued_ns
                && lower.tree.end_ns <= bio.ended_ns
        };
        let mut clones = Vec::new();
        self.clones.retain_mut(|lower| {
            let taken = is_clone(lower);
            if taken {
                clones.push(lower.tree.clone());
            }
            !taken
        });
        clones
    }
}
