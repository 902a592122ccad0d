//! What is written while reading: every I/O with its steps (btt's `-p`), and the table of `iostat -x` for
//! each interval (btt's `-I`).

use nestrace_analyzer::analysis::{Io, IostatRow, Step};

/// I/Os in the order of their ends; a line of dashes follows those that one completion ended.
///
/// A piece of a bio that was split is an I/O of its own, whose Q is that of the whole bio.
#[derive(Clone, Copy, Debug, Default)]
pub struct IoListing {
    /// Times count from here.
    pub start_ns: u64,
    last: Option<(u32, Step)>,
}

impl IoListing {
    /// Of I/Os whose times count from `start_ns`.
    #[must_use]
    pub fn new(start_ns: u64) -> Self {
        Self {
            start_ns,
            last: None,
        }
    }

    /// The lines of the next I/O.
    pub fn add(&mut self, io: &Io) -> String {
        let completion = (io.dev, io.completed);
        let ends = self
            .last
            .replace(completion)
            .filter(|last| *last != completion);
        let line = if ends.is_some() { LINE } else { "" };
        format!("{line}{}", lines(io, self.start_ns))
    }

    /// What follows the last one.
    #[must_use]
    pub fn finish(self) -> &'static str {
        if self.last.is_some() { LINE } else { "" }
    }
}

const LINE: &str = "-----------------------------------------\n";

/// One I/O as a few lines.
fn lines(io: &Io, start_ns: u64) -> String {
    let steps = [
        ('Q', Some(io.queued)),
        ('G', io.got),
        ('I', io.inserted),
        ('M', io.merged),
        ('D', Some(io.issued)),
        ('C', Some(io.completed)),
    ];
    let mut out = format!("{:3},{:<3}: ", io.dev >> 20, io.dev & 0xf_ffff);
    let mut indent = "";
    for (letter, step) in steps {
        let Some(Step {
            ts_ns,
            sector,
            sectors,
        }) = step
        else {
            continue;
        };
        let ns = ts_ns.saturating_sub(start_ns);
        let (seconds, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
        out.push_str(&format!(
            "{indent}{seconds:5}.{rest:09} {letter} {sector:10}+{sectors:<4}\n"
        ));
        indent = "         ";
    }
    out.push('\n');
    out
}

/// Rows with their header.
#[derive(Clone, Copy, Debug)]
pub struct IostatTable {
    /// Times in the last column count from here.
    pub start_ns: u64,
}

impl IostatTable {
    /// Names of the columns.
    #[must_use]
    pub fn header() -> &'static str {
        "Device:       rrqm/s   wrqm/s     r/s     w/s    rsec/s    wsec/s     rkB/s     wkB/s avgrq-sz avgqu-sz   await   svctm  %util   Stamp\n"
    }

    /// One device in one interval; in a `total` of everything the last column says so.
    ///
    /// `await` is the mean Q to C of the bios that ended; `svctm` the time in which the device was busy for
    /// each request.
    #[must_use]
    pub fn row(self, row: &IostatRow, total: bool) -> String {
        let seconds = (row.lasted_ns as f64 / 1e9).max(f64::MIN_POSITIVE);
        let [reads, writes] = row.completed;
        let [read_sectors, written_sectors] = row.sectors;
        let each = |sum: f64, n: u64| if n > 0 { sum / n as f64 } else { 0.0 };
        let per_second = |n: u64| n as f64 / seconds;
        let device = format!("({:3},{:3})", row.dev >> 20, row.dev & 0xf_ffff);
        let stamp = match total {
            true => String::from("TOTAL"),
            false => format!(
                "{:.2}",
                row.until_ns.saturating_sub(self.start_ns) as f64 / 1e9
            ),
        };
        format!(
            "{device:<11} {:8.2} {:8.2} {:7.2} {:7.2} {:9.2} {:9.2} {:9.2} {:9.2} {:8.2} {:8.2} {:7.2} {:7.2} {:6.2}{stamp:>8}\n",
            per_second(row.merged[0]),
            per_second(row.merged[1]),
            per_second(reads),
            per_second(writes),
            per_second(read_sectors),
            per_second(written_sectors),
            per_second(read_sectors) / 2.0,
            per_second(written_sectors) / 2.0,
            each((read_sectors + written_sectors) as f64, reads + writes),
            row.in_flight_ns as f64 / 1e9 / seconds,
            each(row.q2c_ns as f64 / 1e6, row.ended),
            each(row.busy_ns as f64 / 1e6, reads + writes),
            (100.0 * row.busy_ns as f64 / 1e9 / seconds).min(100.0),
        )
    }
}
