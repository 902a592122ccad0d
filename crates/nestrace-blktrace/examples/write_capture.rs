//! A capture of blktrace from a few lines of text: minimal examples for `docs/btt.md`.
//!
//! `cargo run -p nestrace-blktrace --example write_capture -- NAME < LINES` writes `NAME.blktrace.0`. A line is
//! `MICROSECONDS ACTION [RWBS] [SECTOR+SECTORS] [KEY=VALUE …]`: the letters as blkparse prints them, for U and
//! UT `n=REQUESTS`, for X `rest=SECTOR`, for A `from=MAJ,MIN,SECTOR`,
//! `dev=MAJ,MIN` (8,0 if not given), `cgroup=ID`.

use std::fs::File;
use std::io::{self, BufRead, Write};

use nestrace_blktrace::{Action, Trace, Writer, category};

fn main() -> io::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "gt".to_owned());
    let mut writer = Writer::new(File::create(format!("{name}.blktrace.0"))?);
    for line in io::stdin().lock().lines() {
        let line = line?;
        if !line.trim().is_empty() {
            writer.write(
                &record(&line).map_err(|word| io::Error::other(format!("{line}: {word}")))?,
            )?;
        }
    }
    writer.into_inner().flush()
}

/// The record of a line, or the word that is wrong.
fn record(line: &str) -> Result<Trace, &str> {
    let mut trace = Trace::default();
    (trace.device, trace.tid) = (8 << 20, 1);
    let mut words = line.split_whitespace();
    let time = words.next().ok_or(line)?;
    trace.time_ns = time.parse::<u64>().map_err(|_| time)? * 1000;
    let letter = words.next().ok_or(line)?;
    let known = Action::ALL.iter().find(|action| action.letter() == letter);
    let action = *known.ok_or(letter)?;
    trace.raw_action = action as u64 | u64::from(stage(action)) << 16;
    let mut cgroup = None;
    for word in words {
        if let Some((sector, sectors)) = word.split_once('+') {
            trace.sector = sector.parse().map_err(|_| word)?;
            trace.bytes = sectors.parse::<u32>().map_err(|_| word)? * 512;
        } else if let Some((key, value)) = word.split_once('=') {
            match key {
                "n" | "rest" => {
                    trace.payload = value
                        .parse::<u64>()
                        .map_err(|_| word)?
                        .to_be_bytes()
                        .to_vec();
                }
                "dev" => {
                    let (major, minor) = value.split_once(',').ok_or(word)?;
                    let number = |text: &str| text.parse::<u32>().map_err(|_| word);
                    trace.device = number(major)? << 20 | number(minor)?;
                }
                "from" => {
                    let mut numbers = value.splitn(3, ',').map(str::parse::<u32>);
                    let mut next = || numbers.next().and_then(Result::ok).ok_or(word);
                    let (from, sector) = (next()? << 20 | next()?, u64::from(next()?));
                    trace.payload = [from.to_be_bytes(), trace.device.to_be_bytes()].concat();
                    trace.payload.extend(sector.to_be_bytes());
                }
                "cgroup" => cgroup = Some(value.parse::<u64>().map_err(|_| word)?),
                _ => return Err(word),
            }
        } else {
            trace.raw_action |= u64::from(operation(word)) << 16;
        }
    }
    if let Some(cgroup) = cgroup {
        trace.raw_action |= 1 << 8;
        trace.payload = [cgroup.to_le_bytes().to_vec(), trace.payload].concat();
    }
    Ok(trace)
}

/// Category bits of the kernel's `BLK_TA_*`.
fn stage(action: Action) -> u16 {
    match action {
        Action::Issue => category::ISSUE,
        Action::Complete => category::COMPLETE,
        Action::Requeue => category::REQUEUE,
        Action::Split => 0,
        _ => category::QUEUE,
    }
}

fn operation(letters: &str) -> u16 {
    let bit = |letter| match letter {
        'W' => category::WRITE,
        'D' => category::DISCARD | category::WRITE,
        'F' => category::FLUSH,
        'S' => category::SYNC,
        'M' => category::META,
        'A' => category::AHEAD,
        _ => category::READ,
    };
    letters.chars().map(bit).fold(0, |all, bit| all | bit)
}
