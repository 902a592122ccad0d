//! Where requests go, guest above host.

use nestrace_analyzer::analysis::{Address, Device};

use super::{Axis, Chart, Hue, Panel, Plot, Points, Subject, Unit};
use crate::units::{count, size};

/// Bytes of a sector in the kernel's terms.
const SECTOR: f64 = 512.0;
/// Part of the requests at each end that may lie outside of what is drawn.
const FEW: f64 = 0.02;

pub(super) fn plot(subject: &Subject<'_>) -> Option<Plot> {
    let guest = subject
        .guest
        .and_then(|device| panel(device, subject.guest_name(), Hue::Guest));
    let host = subject
        .host
        .and_then(|device| panel(device, subject.host_name(), Hue::Device));
    let panels: Vec<Panel> = guest.into_iter().chain(host).collect();
    let shown = |device: &Device| {
        let (shown, of) = (
            device.figures.addresses.len() as u64,
            device.figures.addresses_of,
        );
        (shown < of).then(|| {
            format!(
                " {} of {} requests of {}.",
                count(shown),
                count(of),
                device.name
            )
        })
    };
    let sampled: String = [subject.guest, subject.host]
        .into_iter()
        .flatten()
        .filter_map(shown)
        .collect();
    let sampled = if sampled.is_empty() {
        sampled
    } else {
        format!(" The plot shows a random sample:{sampled}")
    };
    (!panels.is_empty()).then(|| Plot {
        id: format!("addresses-{}", subject.slug),
        subject: subject.name.clone(),
        question: String::from("Where on the disk does the I/O go, in the guest and on the host?"),
        note: format!("Each point is one request at D, or several close together. Reads are strong, writes are pale. I/O that is a line in one panel and a cloud in the other lost its order in between.{sampled}"),
        chart: Chart::Points(Points {
            x: Axis::linear("time", Unit::Seconds),
            panels,
        }),
    })
}

fn panel(device: &Device, name: String, hue: Hue) -> Option<Panel> {
    let figures = &device.figures;
    let touched = figures.touched?;
    let (first, last) = crowd(&figures.addresses, touched);
    let inside = figures
        .addresses
        .iter()
        .filter(|it| (first..=last).contains(&it.sector));
    let n_outside = figures.addresses.len() - inside.clone().count();
    let range = (first as f64 * SECTOR, last as f64 * SECTOR);
    // A short stretch far up would have the same label at each tick.
    let base = if range.0 > (range.1 - range.0) * 4.0 {
        range.0
    } else {
        0.0
    };
    let mut label = name;
    if base > 0.0 {
        label.push_str(&format!(", from {} on", size(base as u64)));
    }
    if n_outside > 0 {
        label.push_str(&format!(" ({} more far away)", count(n_outside as u64)));
    }
    Some(Panel {
        label,
        hue,
        y: Axis::linear("address", Unit::Bytes),
        range: (range.0 - base, range.1 - base),
        base,
        points: inside
            .map(|it| {
                let at_s = figures.recording_s(it.at_ns);
                (at_s, it.sector as f64 * SECTOR - base, it.is_write)
            })
            .collect(),
    })
}

/// The range without the few that lie far away, where they would squeeze all others into a line.
fn crowd(addresses: &[Address], touched: (u64, u64)) -> (u64, u64) {
    let mut sectors: Vec<u64> = addresses.iter().map(|it| it.sector).collect();
    sectors.sort_unstable();
    let at = |share: f64| {
        sectors
            .get((sectors.len() as f64 * share) as usize)
            .copied()
    };
    let (Some(low), Some(high)) = (at(FEW), at(1.0 - FEW)) else {
        return touched;
    };
    let margin = (high - low) / 20 + 8;
    let (first, last) = (low.saturating_sub(margin), high.saturating_add(margin));
    if (touched.1 - touched.0) / 3 > last - first {
        (first.max(touched.0), last.min(touched.1))
    } else {
        touched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_far_away_do_not_squeeze_the_rest() {
        let at = |sector| Address {
            sector,
            ..Address::default()
        };
        let mut addresses: Vec<Address> = (0..100).map(|i| at(10_000 + i * 8)).collect();
        let touched = (10_000, 10_800);
        assert_eq!(crowd(&addresses, touched), touched);
        addresses.push(at(1 << 40));
        let (first, last) = crowd(&addresses, (10_000, (1 << 40) + 8));
        assert!(first == 10_000 && last < 11_000, "{first} {last}");
        assert_eq!(crowd(&[], (5, 9)), (5, 9));
    }
}
