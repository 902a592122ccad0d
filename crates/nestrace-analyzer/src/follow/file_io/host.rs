//! Where file I/O is counted: the image, the disk's clocks, and its span.

use nestrace_abi::{Kind, flags::op};
use nestrace_trace::Event;

use super::{Call, FileSpans, Outcome, RWF_ANY_SYNC};
use crate::follow::image::{ImageState, Images};
use crate::measure::file_meter::FileMeter;
use crate::measure::overlap::Activity;
use crate::model::ids::{GuestId, ImageId};

/// Where calls are counted.
pub(super) struct Host<'a> {
    pub images: &'a mut Images,
    pub activity: &'a mut [Activity],
    pub spans: Option<&'a mut FileSpans>,
}

impl Host<'_> {
    pub(super) fn sync_enter(&mut self, event: &Event) {
        if let Some(image) = self.images.of_inode(event)
            && let Some(spans) = &mut self.spans
        {
            spans.sync_enter(ImageId(image), event.tid);
        }
    }

    /// A call begins, if it is on an image.
    pub(super) fn begin(&mut self, event: &Event) -> Option<Call> {
        if !matches!(event.sub, op::READ..=op::SYNC_FILE_RANGE) {
            return None;
        }
        let image = self.images.of_file(event, event.dev)?;
        // A file event has its guest's number where others have a device.
        let guest = GuestId(event.dev);
        self.images.used_by(ImageId(image), guest);
        self.images.called_by(guest, event.tid);
        let mut call = Call {
            serial: 0,
            image,
            op: event.sub,
            dsync: event.sub == op::WRITE && event.flags & RWF_ANY_SYNC != 0,
            bytes: event.bytes,
            start_ns: event.ts_ns,
            timed: self.end_will_be_known(event, image),
        };
        if call.timed
            && let Some(activity) = self.activity_of(image)
        {
            activity.advance(event.ts_ns);
            activity.file += 1;
            activity.sync += u64::from(call.syncs());
        }
        let changes = event.sub != op::READ;
        let activity = &mut self.activity;
        self.images.each_disk_with(ImageId(image), guest, |disk| {
            if let Some(activity) = activity.get_mut(disk as usize) {
                activity.any_file_io = true;
                if changes {
                    activity.last_change_ns = Some(event.ts_ns);
                }
            }
        });
        if let Some(spans) = &mut self.spans {
            call.serial = spans.begin(&call, event);
        }
        Some(call)
    }

    pub(super) fn end(&mut self, call: &Call, outcome: Outcome, ts_ns: u64) {
        if call.timed
            && let Some(activity) = self.activity_of(call.image)
        {
            activity.advance(ts_ns);
            activity.file = activity.file.saturating_sub(1);
            activity.sync = activity.sync.saturating_sub(u64::from(call.syncs()));
        }
        if let Some(spans) = &mut self.spans {
            let (end, bytes) = outcome.span_end();
            spans.end(call.serial, end, bytes, ts_ns);
        }
        let Some(image) = self.images.images.get_mut(call.image as usize) else {
            return;
        };
        match outcome {
            Outcome::Done { bytes } => {
                image.file.count((call.op, call.dsync), bytes);
                image
                    .file
                    .took(call.op, ts_ns.saturating_sub(call.start_ns));
            }
            Outcome::DoneSometime { bytes } => image.file.count((call.op, call.dsync), bytes),
            Outcome::Failed => image.file.counts.failed += 1,
            Outcome::Refused => {}
        }
    }

    /// Direct I/O on a raw block device never falls back to the page cache, even where no bio tells
    /// whose it is (those of several pages name no kiocb).
    pub(super) fn always_direct(&self, image: u32) -> bool {
        self.images
            .images
            .get(image as usize)
            .is_some_and(ImageState::always_direct)
    }

    /// Native aio's sync ends in a kernel worker, which not every file system tells.
    fn end_will_be_known(&self, event: &Event, image: u32) -> bool {
        let aio_sync =
            event.kind == Kind::AioSubmit as u8 && matches!(event.sub, op::FSYNC | op::FDATASYNC);
        let image = self.images.images.get(image as usize);
        !aio_sync || image.is_some_and(|image| image.file.sync_end_recorded)
    }

    /// The kernel tells ends of this kind on the file.
    pub(super) fn ends_are_told(&mut self, image: u32, kind: fn(&mut FileMeter) -> &mut bool) {
        let state = self.images.images.get_mut(image as usize);
        if state.is_some_and(|state| !*kind(&mut state.file)) {
            self.images
                .each_of_file(image, |state| *kind(&mut state.file) = true);
        }
    }

    fn activity_of(&mut self, image: u32) -> Option<&mut Activity> {
        let disk = self.images.images.get(image as usize)?.disk();
        self.activity.get_mut(disk as usize)
    }
}
