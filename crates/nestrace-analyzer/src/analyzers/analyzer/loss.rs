//! What is missing of a recording: streams and parts of them that cannot be read, and events of the host that were
//! lost, with what that makes of those around them.

use nestrace_abi::Source;
use nestrace_trace::{Damage, Event};

use super::Analyzer;
use crate::follow::block::Lent;
use crate::follow::image_observer::ImageObserver;
use crate::follow::qemu::Disks;
use crate::model::clocks::HostNs;
use crate::result::analysis::UnreadStream;
use crate::result::loss_counts::LossCounts;

impl Analyzer {
    /// What could not be read of the host's stream, or of what was recorded inside `guest`. Called before
    /// [`Analyzer::finish`], it stands beside the numbers that it affects, like any other loss.
    pub fn damaged(&mut self, guest: Option<&str>, damage: Damage) {
        self.unreadable
            .damage
            .push((guest.map(str::to_owned), damage));
    }

    /// Events of further devices than are distinguished, which the reader of the host's stream left out. Called before
    /// [`Analyzer::finish`], like damage.
    pub fn left_out(&mut self, events: u64) {
        let left_out = &mut self.unreadable.left_out;
        *left_out = left_out.saturating_add(events);
    }

    /// What was recorded inside a guest cannot be read at all. Called before [`Analyzer::finish`], like damage.
    pub fn unread(&mut self, stream: UnreadStream) {
        self.unreadable.unread.push(stream);
    }

    /// Takes a mark of a loss.
    pub(super) fn loss(&mut self, event: &Event) {
        let more = self.losses.grow(event);
        if more && LossCounts::is_of_blocks(event) {
            self.reasons.lost_so_far = true;
            self.block.events_were_lost();
        }
        if more
            && event.sub == Source::File as u8
            && let Some(host) = &mut self.host
        {
            host.file_events_were_lost();
        }
        if event.is_gap() && event.sub != Source::Cpu as u8 {
            self.interrupted(event);
        }
        if more && event.sub == Source::Cpu as u8 {
            self.cpu.borrow_mut().interrupted(event.ts_ns);
            return;
        }
        if more && event.sub != Source::Meta as u8 && event.sub != Source::HostFs as u8 {
            for session in &mut self.sessions {
                session.host_lost(HostNs(event.ts_ns));
            }
        }
    }

    /// Events are missing from this very place of the stream: what was in flight cannot be followed, and an end that
    /// comes may be another's. (Of what the recorder lost no more is known than that it was before its word of
    /// it, and a request that waits for what is then forgotten would be charged with the device's time.)
    fn interrupted(&mut self, mark: &Event) {
        self.reasons.lost_so_far = true;
        match mark.sub {
            source if source == Source::Block as u8 => {
                let mut lent = Lent {
                    observer: &mut ImageObserver {
                        images: &mut self.images,
                        activity: &mut self.activity,
                        files: &mut self.files,
                    },
                    threads: &self.threads,
                    reasons: self.reasons,
                };
                self.block.interrupted(mark.ts_ns, &mut lent);
            }
            source if source == Source::File as u8 => {
                let (images, activity) = (&mut self.images, &mut self.activity);
                self.files.interrupted(mark.ts_ns, images, activity);
            }
            source if source == Source::Qemu as u8 => {
                let mut disks = Disks {
                    images: &self.images,
                    activity: &mut self.activity,
                };
                self.qemu.interrupted(mark.ts_ns, &mut disks);
            }
            _ => {}
        }
    }
}
