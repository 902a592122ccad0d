//! The answer for a person: the sentence of each guest, and below it what it is based on.

use nestrace_trace::printable;

use crate::facts::{DeviceFacts, DiskFacts, ThreadFacts};
use crate::judge::{Answer, GuestAnswer};
use crate::words::{count, duration, latency, rate};

/// Threads of a guest that are listed; the JSON has all.
const MAX_THREADS: usize = 8;

/// One block of lines for each guest.
#[must_use]
pub fn render(answer: &Answer) -> String {
    let mut text = String::new();
    for guest in &answer.guests {
        line(&mut text, 0, &guest.sentence);
        for also in &guest.also {
            line(&mut text, 1, &format!("also: {also}"));
        }
        details(&mut text, answer, guest);
    }
    if !answer.host.kernel_threads.is_empty() {
        line(&mut text, 0, "blocked threads of the host's kernel");
        for worker in answer.host.kernel_threads.iter().take(MAX_THREADS) {
            line(&mut text, 1, &thread(worker));
        }
    }
    text
}

fn details(text: &mut String, answer: &Answer, guest: &GuestAnswer) {
    let facts = &guest.facts;
    for disk in &facts.disks {
        line(text, 1, &of_disk(disk, answer.interval_ns));
    }
    for ring in &facts.rings {
        let words = format!(
            "io_uring {}: {} in flight, {} completed",
            ring.fd, ring.in_flight, ring.completed
        );
        line(text, 1, &words);
    }
    for job in &facts.jobs {
        line(
            text,
            1,
            &format!("job {} ({}): {}", job.id, job.kind, job.status),
        );
    }
    for blocked in facts.threads.iter().take(MAX_THREADS) {
        line(text, 1, &thread(blocked));
    }
    let n_more = facts.threads.len().saturating_sub(MAX_THREADS);
    if n_more > 0 {
        line(text, 1, &format!("{} more", count(n_more as u64, "thread")));
    }
    for device in answer
        .devices
        .iter()
        .filter(|device| is_below(answer, guest, device))
    {
        line(text, 1, &of_device(device, answer.interval_ns));
    }
}

/// Whether a device lies below one of the guest's images, through any number of others.
fn is_below(answer: &Answer, guest: &GuestAnswer, device: &DeviceFacts) -> bool {
    let images = guest.facts.disks.iter().flat_map(|disk| &disk.images);
    let mut names: Vec<&str> = images
        .flat_map(|image| image.devices.iter().map(String::as_str))
        .collect();
    // Upper ones come first in the list.
    for upper in &answer.devices {
        if names.contains(&upper.name.as_str()) {
            names.extend(upper.beneath.iter().map(String::as_str));
        }
    }
    names.contains(&device.name.as_str())
}

fn of_disk(disk: &DiskFacts, interval_ns: u64) -> String {
    let mut words = format!("disk {}", disk.name);
    match disk.in_flight {
        Some(n) => words.push_str(&format!(": {} in flight", count(n, "request"))),
        None => words.push_str(": in flight unknown"),
    }
    if disk.is_shared_queue {
        words.push_str(" on its controller");
    }
    if let Some(counts) = disk.completed {
        let n = counts.all();
        words.push_str(&format!(", {} a second complete", rate(n, interval_ns)));
        if let Some(mean) = counts.time_ns.checked_div(n) {
            words.push_str(&format!(" in {}", latency(mean)));
        }
    }
    if let Some(remote) = &disk.remote {
        words.push_str(&format!("; {}", remote.address));
    }
    if let Some(image) = disk.images.first() {
        words.push_str(&format!("; {}", image.path));
    }
    words
}

fn of_device(device: &DeviceFacts, interval_ns: u64) -> String {
    let mut words = format!("device {}", device.name);
    match device.in_flight {
        Some(n) => words.push_str(&format!(": {} in flight", count(n, "request"))),
        None => words.push_str(": in flight unknown"),
    }
    if let Some(n) = device.completed {
        words.push_str(&format!(", {} a second complete", rate(n, interval_ns)));
        if let Some(mean) = device.time_ns.and_then(|ns| ns.checked_div(n)) {
            words.push_str(&format!(" in {}", latency(mean)));
        }
    }
    if device.is_suspended == Some(true) {
        words.push_str(", suspended");
    }
    words
}

fn thread(thread: &ThreadFacts) -> String {
    let role = match thread.role.as_str() {
        "" => thread.name.clone(),
        role => format!("{} ({role})", thread.name),
    };
    let mut words = format!("thread {} {role}: {}", thread.tid, thread.state);
    if let Some(ns) = thread.asleep_ns {
        words.push_str(&format!(" since {}", duration(ns)));
    }
    if let Some(call) = &thread.system_call {
        words.push_str(&format!(", {call}"));
    }
    if let Some(file) = &thread.file {
        words.push_str(&format!(" of {file}"));
    }
    let stack: Vec<&str> = thread.stack.iter().take(6).map(String::as_str).collect();
    match (stack.as_slice(), &thread.wait_channel) {
        ([], Some(channel)) => words.push_str(&format!(", in {channel}")),
        ([], None) => {}
        (stack, _) => words.push_str(&format!(", in {}", stack.join(" < "))),
    }
    words
}

/// Names in it were chosen by others.
fn line(text: &mut String, depth: usize, words: &str) {
    text.push_str(&"    ".repeat(depth));
    text.push_str(&printable(words));
    text.push('\n');
}
