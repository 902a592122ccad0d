//! Where in the data set a row lies: `host=…/guest=…/date=…`.

use std::path::PathBuf;

use nestrace_trace::{Manifest, calendar::iso, manifest::GuestSide};

/// What Hive, DuckDB and pyarrow write for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";
/// The guest of what the host itself did, and a host without a name. Null would say it better, but pyarrow does not
/// open a data set in which a part of the path is null everywhere, as in every recording without a guest.
const NONE: &str = "-";
/// Longest value; a file system takes names of 255 bytes.
const LONGEST: usize = 200;
const DAY_NS: u64 = 86_400_000_000_000;
/// No recording is longer; damaged time stamps must not make a folder each.
const MAX_DAYS: u64 = 366;

/// The machine that rows are about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partition {
    folder: PathBuf,
}

impl Partition {
    /// Rows of a guest, or of the host itself.
    pub fn new(host: &str, guest: Option<&str>) -> Self {
        let guest = value(or_none(guest));
        Self {
            folder: PathBuf::from(host_folder(host)).join(format!("guest={guest}")),
        }
    }

    /// Rows of a host and all its guests.
    pub fn of_host(host: &str) -> Self {
        Self {
            folder: PathBuf::from(host_folder(host)),
        }
    }

    /// The folder of one day, below that of the table.
    pub fn folder(&self, date: Date) -> PathBuf {
        self.folder.join(format!(
            "date={}",
            date.0.map_or_else(|| NULL.to_owned(), iso)
        ))
    }
}

/// The folder of a host.
pub fn host_folder(host: &str) -> String {
    format!("host={}", value(or_none(Some(host))))
}

/// A name, or what stands for none.
pub fn or_none(name: Option<&str>) -> &str {
    name.filter(|name| !name.is_empty()).unwrap_or(NONE)
}

/// A value as Hive writes it: what could end a name is percent-encoded.
fn value(text: &str) -> String {
    let mut value = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            value.push(char::from(byte));
        } else {
            value.push_str(&format!("%{byte:02X}"));
        }
        if value.len() > LONGEST {
            break;
        }
    }
    value
}

/// A day since 1970 (UTC), or not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date(Option<u64>);

/// What day it was at a time of a machine's clock.
#[derive(Clone, Copy, Debug)]
pub struct Calendar {
    start_mono_ns: u64,
    /// 0: not known.
    start_unix_ns: u64,
}

impl Calendar {
    /// By the host's clock.
    pub fn of_host(manifest: &Manifest) -> Self {
        Self {
            start_mono_ns: manifest.start_mono_ns,
            start_unix_ns: manifest.start_unix_ns,
        }
    }

    /// By a guest's own clock.
    pub fn of_guest(side: &GuestSide) -> Self {
        Self {
            start_mono_ns: side.start_mono_ns,
            start_unix_ns: side.start_unix_ns,
        }
    }

    /// The time of day at a time of the machine's clock: nanoseconds since 1970.
    pub fn unix_ns(&self, mono_ns: u64) -> Option<i64> {
        if self.start_unix_ns == 0 {
            return None;
        }
        let since = i128::from(mono_ns) - i128::from(self.start_mono_ns);
        i64::try_from(i128::from(self.start_unix_ns) + since).ok()
    }

    /// The same at a time after the start.
    pub fn unix_ns_after(&self, ns: u64) -> Option<i64> {
        self.unix_ns(self.start_mono_ns.checked_add(ns)?)
    }

    /// The day at such a time. It is never before the recording's first nor a year after it.
    pub fn date(&self, unix_ns: Option<i64>) -> Date {
        if self.start_unix_ns == 0 {
            return Date(None);
        }
        let first = self.start_unix_ns / DAY_NS;
        let day = unix_ns.map_or(first, |ns| u64::try_from(ns).unwrap_or(0) / DAY_NS);
        Date(Some(day.clamp(first, first + MAX_DAYS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_folder() {
        let calendar = Calendar {
            start_mono_ns: 0,
            start_unix_ns: 1,
        };
        let folder = |host: &str, guest| {
            Partition::new(host, guest)
                .folder(calendar.date(None))
                .display()
                .to_string()
        };
        assert_eq!(
            folder("h/../x", Some("a=b c")),
            "host=h%2F..%2Fx/guest=a%3Db%20c/date=1970-01-01"
        );
        assert_eq!(folder("", None), "host=-/guest=-/date=1970-01-01");
        assert!(folder(&"ä".repeat(300), None).len() < 300);
    }

    #[test]
    fn damaged_times_make_few_days() {
        let start_unix_ns = 20_777 * DAY_NS + DAY_NS - 1;
        let calendar = Calendar {
            start_mono_ns: 5,
            start_unix_ns,
        };
        let date = |mono_ns| calendar.date(calendar.unix_ns(mono_ns)).0;
        assert_eq!(date(5), Some(20_777));
        assert_eq!(date(6), Some(20_778));
        assert_eq!(date(0), Some(20_777));
        assert_eq!(date(u64::MAX), Some(20_777));
        // Beyond what 64 bits say since 1970 it is no time.
        assert_eq!(date(u64::MAX / 2), Some(20_777));
        assert_eq!(date(u64::MAX / 4), Some(20_777 + MAX_DAYS));
        let unknown = Calendar {
            start_mono_ns: 5,
            start_unix_ns: 0,
        };
        assert_eq!(unknown.date(unknown.unix_ns(7)).0, None);
    }
}
