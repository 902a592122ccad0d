//! What became of the bytes that the guest asked for.

use super::{Chart, Hue, Plot, Span, SpanRow, Spans, Subject, Unit};

/// What changes less than this part of the bytes is no step of its own.
const NOTABLE: f64 = 0.002;

pub(super) fn plot(subject: &Subject<'_>) -> Option<Plot> {
    let disk = subject.amplification?;
    let asked = disk
        .qemu_bytes
        .or(disk.guest_bytes)
        .filter(|bytes| *bytes > 0)? as f64;
    let mut rows = vec![total("asked for by the guest", asked, asked, Hue::Guest)];
    let mut at = asked;
    let mut add = |rows: &mut Vec<SpanRow>, name: &str, more: f64, hue: Hue| {
        if more.abs() >= asked * NOTABLE {
            rows.push(step(name, at, at + more, asked, hue));
        }
        at += more;
    };
    let image = disk.image_bytes.map_or(asked, |bytes| bytes as f64);
    if disk.image_bytes.is_some() {
        let name = "QEMU's tables and copies (+), zeroes (−)";
        add(&mut rows, name, image - asked, Hue::Qemu);
        rows.push(total("QEMU's file I/O", image, asked, Hue::Qemu));
    }
    if let Some(host) = disk.host_bytes {
        let classes = disk.by_class;
        let of = |bytes: Option<u64>| bytes.unwrap_or_default() as f64;
        // QEMU's file I/O on the image became data and tables of it.
        let moved = match classes.data {
            Some(data) => data as f64 + of(classes.image_metadata) - image,
            None => 0.0,
        };
        for (name, more, hue) in [
            (
                "kept in the page cache (−), moved again (+)",
                moved,
                Hue::HostFs,
            ),
            ("the host's journal", of(classes.host_journal), Hue::HostFs),
            (
                "other metadata of the host's file system",
                of(classes.host_metadata),
                Hue::HostFs,
            ),
            ("read ahead", of(classes.readahead), Hue::HostQueue),
        ] {
            add(&mut rows, name, more, hue);
        }
        rows.push(total(
            "host's file system to the device",
            host as f64,
            asked,
            Hue::HostFs,
        ));
    }
    rows.extend(
        disk.device_bytes
            .map(|bytes| total("requests at the device", bytes as f64, asked, Hue::Device)),
    );
    Some(Plot {
        id: format!("amplification-{}", subject.slug),
        subject: subject.name.clone(),
        question: String::from("How many bytes does each layer add to what the guest asks for?"),
        note: String::from(
            "Bytes read and written. A strong bar is the total of a layer. A pale bar is what is added or removed between two layers, if it is at least 0.2 % of what the guest asks for.",
        ),
        chart: Chart::Spans(Spans {
            unit: Unit::Bytes,
            title: String::from("bytes"),
            keys: Vec::new(),
            rows,
        }),
    })
}

fn total(name: &str, bytes: f64, asked: f64, hue: Hue) -> SpanRow {
    row(
        name,
        format!("{}  ×{:.2}", Unit::Bytes.text(bytes), bytes / asked),
        (0.0, bytes),
        hue,
        1.0,
    )
}

fn step(name: &str, from: f64, to: f64, asked: f64, hue: Hue) -> SpanRow {
    let more = to - from;
    let sign = if more > 0.0 { "+" } else { "" };
    let times = format!(
        "{}{:.2}",
        if more < 0.0 { "−" } else { "+" },
        more.abs() / asked
    );
    row(
        name,
        format!("{sign}{}  {times}", Unit::Bytes.text(more)),
        (from, to),
        hue,
        0.5,
    )
}

fn row(name: &str, detail: String, (from, to): (f64, f64), hue: Hue, tint: f64) -> SpanRow {
    let span = Span {
        name: name.to_owned(),
        from,
        to,
        hue,
        tint,
    };
    SpanRow {
        label: name.to_owned(),
        detail,
        spans: vec![span],
    }
}
