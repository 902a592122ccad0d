//! How large I/O is at each layer.

use nestrace_analyzer::Cdf;

use super::{Axis, Chart, ColumnGroup, Columns, Hue, Plot, Subject, Unit};
use crate::units::size;

/// Bytes of a sector in the kernel's terms.
const SECTOR: u64 = 512;
/// Classes at most: from 512 bytes to beyond 16 MiB.
const MAX_CLASSES: u32 = 17;
/// Classes at both ends with less of every layer are left out.
const NOTABLE: f64 = 0.002;

pub(super) fn plot(subject: &Subject<'_>) -> Option<Plot> {
    let mut layers: Vec<(String, Hue, f64, &Cdf)> = Vec::new();
    if let Some(guest) = subject.guest {
        let name = subject.guest_name();
        layers.push((
            format!("{name}: bios"),
            Hue::Guest,
            0.5,
            &guest.figures.queued_sectors,
        ));
        layers.push((
            format!("{name}: requests"),
            Hue::Guest,
            1.0,
            &guest.figures.issued_sectors,
        ));
    }
    if let Some(host) = subject.host {
        let name = subject.host_name();
        layers.push((
            format!("{name}: bios"),
            Hue::Device,
            0.5,
            &host.figures.queued_sectors,
        ));
        layers.push((
            format!("{name}: requests"),
            Hue::Device,
            1.0,
            &host.figures.issued_sectors,
        ));
    }
    layers.retain(|(.., cdf)| cdf.n > 0);
    let all: Vec<Vec<f64>> = layers.iter().map(|(.., cdf)| in_classes(cdf)).collect();
    let is_notable = |class: &usize| all.iter().any(|shares| shares[*class] >= NOTABLE);
    let classes = 0..MAX_CLASSES as usize;
    let (first, last) = (
        classes.clone().find(is_notable)?,
        classes.rev().find(is_notable)?,
    );
    Some(Plot {
        id: format!("sizes-{}", subject.slug),
        subject: subject.name.clone(),
        question: String::from("How large is the I/O at each layer?"),
        note: String::from(
            "The class 8 KiB holds sizes above 4 KiB and up to 8 KiB. Classes at both ends are left out where every layer has less than 0.2 %.",
        ),
        chart: Chart::Columns(Columns {
            x_title: String::from("size"),
            y: Axis::linear("share of I/Os", Unit::Share),
            classes: (first..=last).map(|class| size(SECTOR << class)).collect(),
            groups: layers
                .into_iter()
                .zip(all)
                .map(|((label, hue, tint, _), shares)| ColumnGroup {
                    label,
                    hue,
                    tint,
                    values: shares[first..=last].to_vec(),
                })
                .collect(),
        }),
    })
}

/// Sizes up to 512 bytes shifted by this.
fn class(sectors: u64) -> u32 {
    let power = sectors.max(1).next_power_of_two().ilog2();
    power.min(MAX_CLASSES - 1)
}

/// Share of each class.
fn in_classes(cdf: &Cdf) -> Vec<f64> {
    let mut shares = vec![0.0; MAX_CLASSES as usize];
    let mut before = 0.0;
    for (sectors, share) in cdf.shares() {
        shares[class(sectors) as usize] += share - before;
        before = share;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        assert_eq!([0, 1, 2, 3, 8, 9].map(class), [0, 0, 1, 2, 3, 4]);
        let cdf = Cdf {
            n: 4,
            points: vec![(1, 1), (8, 3), (9, 4)],
        };
        assert_eq!(in_classes(&cdf)[..6], [0.25, 0.0, 0.0, 0.5, 0.25, 0.0]);
    }
}
