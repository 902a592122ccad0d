//! The vocabulary of blktrace (`include/uapi/linux/blktrace_api.h`).

/// Which category an event belongs to: bits 16 to 31 of a record's action, shifted down.
pub mod category {
    /// Read.
    pub const READ: u16 = 1 << 0;
    /// Write (discards and write-zeroes too).
    pub const WRITE: u16 = 1 << 1;
    /// A flush, or I/O that flushes the cache first.
    pub const FLUSH: u16 = 1 << 2;
    /// Someone waits for it.
    pub const SYNC: u16 = 1 << 3;
    /// On the way to the device.
    pub const QUEUE: u16 = 1 << 4;
    /// Put back.
    pub const REQUEUE: u16 = 1 << 5;
    /// To the device.
    pub const ISSUE: u16 = 1 << 6;
    /// From the device.
    pub const COMPLETE: u16 = 1 << 7;
    /// A request of a file system.
    pub const FS: u16 = 1 << 8;
    /// A driver's or the user's own command.
    pub const PC: u16 = 1 << 9;
    /// Not an event of I/O: see [`super::Notify`].
    pub const NOTIFY: u16 = 1 << 10;
    /// Read-ahead.
    pub const AHEAD: u16 = 1 << 11;
    /// Metadata.
    pub const META: u16 = 1 << 12;
    /// Discard.
    pub const DISCARD: u16 = 1 << 13;
    /// Forced unit access.
    pub const FUA: u16 = 1 << 15;
}

/// Bit of the low half: the payload begins with the cgroup's id. btt and older blkparse drop such
/// events silently.
pub(super) const CGROUP: u64 = 1 << 8;
/// Bits that hold the number of an [`Action`] or a [`Notify`].
const NUMBER: u64 = 0xff;

macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $letter:literal;)+) => {
        /// What happened to a bio or a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Action { $($(#[$doc])* $name = $number,)+ }

        impl Action {
            /// Every action, by number.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The letters that blkparse prints.
            #[must_use]
            pub const fn letter(self) -> &'static str {
                match self { $(Self::$name => $letter,)+ }
            }

            const fn from_number(number: u64) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

actions! {
    /// A bio was queued.
    Queue = 1, "Q";
    /// A bio, or a request, was merged at the back of a request.
    BackMerge = 2, "M";
    /// A bio was merged at the front of a request.
    FrontMerge = 3, "F";
    /// A request was allocated.
    GetRequest = 4, "G";
    /// A thread sleeps until a request is free (kernels before 5.0).
    SleepRequest = 5, "S";
    /// A request was put back.
    Requeue = 6, "R";
    /// A request went to the driver.
    Issue = 7, "D";
    /// A request, or a part of it, was completed.
    Complete = 8, "C";
    /// A queue was plugged.
    Plug = 9, "P";
    /// A queue was unplugged by its thread.
    Unplug = 10, "U";
    /// A queue was unplugged by a timer or by the scheduler.
    UnplugTimer = 11, "UT";
    /// A request entered the scheduler.
    Insert = 12, "I";
    /// A bio was split.
    Split = 13, "X";
    /// A bio's pages were copied to reachable memory (older kernels).
    Bounce = 14, "B";
    /// A bio or a request was remapped.
    Remap = 15, "A";
    /// A request was aborted (old kernels).
    Abort = 16, "AB";
    /// A driver's own data.
    DriverData = 17, "DD";
}

/// A record that is no I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Notify {
    /// The payload names the thread of the record.
    Process,
    /// The payload is the wall clock at the record's time: seconds and nanoseconds, 32 bits each.
    Timestamp,
    /// The payload is a text.
    Message,
}

/// The action in the raw field, unless it is a notification or a newer one.
pub(super) const fn action(raw: u64) -> Option<Action> {
    if is_notify(raw) {
        return None;
    }
    Action::from_number(raw & NUMBER)
}

/// The notification in the raw field.
pub(super) const fn notify(raw: u64) -> Option<Notify> {
    if !is_notify(raw) {
        return None;
    }
    match raw & NUMBER {
        0 => Some(Notify::Process),
        1 => Some(Notify::Timestamp),
        2 => Some(Notify::Message),
        _ => None,
    }
}

/// Raw actions of notifications.
pub(super) const NOTIFY_PROCESS: u64 = (category::NOTIFY as u64) << 16;
pub(super) const NOTIFY_TIMESTAMP: u64 = NOTIFY_PROCESS | 1;

const fn is_notify(raw: u64) -> bool {
    raw >> 16 & category::NOTIFY as u64 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_and_notifications_share_numbers_but_not_records() {
        for expected in Action::ALL {
            assert_eq!(action(*expected as u64), Some(*expected));
            assert_eq!(
                action(*expected as u64 | CGROUP | 0x11 << 16),
                Some(*expected)
            );
            assert_eq!(notify(*expected as u64), None);
        }
        let notification = u64::from(category::NOTIFY) << 16;
        assert_eq!(
            (action(notification | 1), notify(notification | 1)),
            (None, Some(Notify::Timestamp))
        );
        assert_eq!(
            (notify(notification), notify(notification | 2)),
            (Some(Notify::Process), Some(Notify::Message))
        );
        assert_eq!(
            (action(0), action(18), notify(notification | 9)),
            (None, None, None)
        );
    }
}
