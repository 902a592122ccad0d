//! Where the time of bios on stacked devices goes, down to the lowest devices. Counts every bio of the host on the
//! uppermost device of a stack.

use std::collections::BTreeMap;

use super::stacked::Stacked;
use crate::follow::image::Images;
use crate::link::chains::{SegmentMeter, walk};
use crate::model::operation::Operation;
use crate::model::span::{Below, BioSpan, HostBio, Layer, Span};
use crate::result::analysis::{SegmentsByOperation, Stack};

/// Stacked devices: damaged input may name any number.
const MAX_STACKS: usize = 256;

/// What is kept of one device.
#[derive(Clone, Debug, Default)]
struct StackMeter {
    bios: u64,
    followed: u64,
    data: SegmentMeter,
    read: SegmentMeter,
    write: SegmentMeter,
    flush: SegmentMeter,
    discard: SegmentMeter,
}

/// All of them, by device number.
#[derive(Debug, Default)]
pub(crate) struct StackMeters(BTreeMap<u32, StackMeter>);

impl StackMeters {
    /// The tree of a bio on the uppermost of devices that stand on each other; `None` of others.
    pub(super) fn tree(
        &mut self,
        bio: &BioSpan,
        journal: bool,
        images: &Images,
        stacked: &mut Stacked,
    ) -> Option<HostBio> {
        if !images.stacks.is_stacked(bio.dev) {
            return None;
        }
        let tree = stacked.tree(bio, journal, images);
        self.add(bio, &tree.span);
        Some(tree)
    }

    fn add(&mut self, bio: &BioSpan, tree: &Span) {
        if self.0.len() >= MAX_STACKS && !self.0.contains_key(&bio.dev) {
            return;
        }
        let meter = self.0.entry(bio.dev).or_default();
        let times = walk(tree);
        let latency_ns = tree.end_ns.saturating_sub(tree.start_ns);
        meter.bios += 1;
        meter.followed += u64::from(reaches_lowest(tree));
        let of_operation = match bio.operation {
            _ if bio.empty_flush => &mut meter.flush,
            Operation::Read => &mut meter.read,
            Operation::Discard => &mut meter.discard,
            Operation::Write | Operation::Other => &mut meter.write,
        };
        of_operation.add(&times, latency_ns);
        if !bio.empty_flush {
            meter.data.add(&times, latency_ns);
        }
    }

    /// `stacks[]`, but for names.
    pub(crate) fn finish(&self) -> Vec<Stack> {
        let segments = |meter: &SegmentMeter| {
            let mut segments = meter.finish();
            segments.retain(|segment| segment.n > 0);
            segments
        };
        let entry = |(dev, meter): (&u32, &StackMeter)| Stack {
            dev: *dev,
            bios: meter.bios,
            followed: meter.followed,
            q2c_mean_ns: meter.data.mean_ns(),
            segments: segments(&meter.data),
            by_op: SegmentsByOperation {
                read: segments(&meter.read),
                write: segments(&meter.write),
                flush: segments(&meter.flush),
                discard: segments(&meter.discard),
            },
            residual_share: meter.data.residual_share(),
            beside: meter.data.stacks().unwrap_or_default(),
            ..Stack::default()
        };
        self.0.iter().map(entry).collect()
    }
}

/// Whether a device that is no stacked one worked for it.
fn reaches_lowest(span: &Span) -> bool {
    span.layer == Layer::HostRequest && span.below != Below::Devices
        || span.children.iter().any(reaches_lowest)
}
