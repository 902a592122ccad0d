//! Colours: a layer has the same one in every plot, on paper, on a bright and on a dark screen.

use plotters::style::RGBColor;

/// What a colour means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hue {
    /// The guest's file system.
    GuestFs,
    /// The guest's block layer.
    Guest,
    /// The way between guest and QEMU.
    Virt,
    /// QEMU.
    Qemu,
    /// The host's file system, QEMU's file I/O.
    HostFs,
    /// The host's queue.
    HostQueue,
    /// The host's devices that hand I/O on to others.
    Stack,
    /// The host's device.
    Device,
    /// Flushes of the device.
    Flush,
    /// No layer.
    Neutral,
}

/// Text.
pub(crate) const INK: RGBColor = RGBColor(0x1b, 0x1f, 0x26);
/// Axes and their labels.
pub(crate) const MUTED: RGBColor = RGBColor(0x5b, 0x65, 0x73);
/// Lines of the grid.
pub(crate) const GRID: RGBColor = RGBColor(0xdd, 0xe1, 0xe7);
/// What everything is drawn on.
pub(crate) const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xfe);

impl Hue {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::GuestFs,
        Self::Guest,
        Self::Virt,
        Self::Qemu,
        Self::HostFs,
        Self::HostQueue,
        Self::Stack,
        Self::Device,
        Self::Flush,
        Self::Neutral,
    ];

    pub(crate) const fn colour(self) -> RGBColor {
        match self {
            Self::GuestFs => RGBColor(0x12, 0x8f, 0xa3),
            Self::Guest => RGBColor(0x1f, 0x6f, 0xc4),
            Self::Virt => RGBColor(0x8a, 0x56, 0xc9),
            Self::Qemu => RGBColor(0xe0, 0x7b, 0x16),
            Self::HostFs => RGBColor(0x2c, 0x96, 0x5a),
            Self::HostQueue => RGBColor(0xb5, 0x94, 0x0b),
            Self::Stack => RGBColor(0xd2, 0x5f, 0xa8),
            Self::Device => RGBColor(0xc8, 0x32, 0x4c),
            Self::Flush => RGBColor(0x7d, 0x1f, 0x4e),
            Self::Neutral => RGBColor(0x80, 0x88, 0x94),
        }
    }

    /// Name of its CSS variable.
    pub(crate) const fn variable(self) -> &'static str {
        match self {
            Self::GuestFs => "--guest-fs",
            Self::Guest => "--guest",
            Self::Virt => "--virt",
            Self::Qemu => "--qemu",
            Self::HostFs => "--host-fs",
            Self::HostQueue => "--host-queue",
            Self::Stack => "--stack",
            Self::Device => "--device",
            Self::Flush => "--flush",
            Self::Neutral => "--neutral",
        }
    }

    /// What it means, in words.
    pub(crate) const fn meaning(self) -> &'static str {
        match self {
            Self::GuestFs => "guest's file system",
            Self::Guest => "guest's queue",
            Self::Virt => "between guest and QEMU",
            Self::Qemu => "QEMU",
            Self::HostFs => "host's file system",
            Self::HostQueue => "host's queue",
            Self::Stack => "host's stacked devices",
            Self::Device => "device",
            Self::Flush => "device's flushes",
            Self::Neutral => "other",
        }
    }
}

/// As SVG and CSS write a colour.
pub(crate) fn hex(colour: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

/// Puts CSS variables in the place of the palette, so that a page decides what they look like.
pub(crate) fn themed(svg: &str) -> String {
    let fixed = [
        (INK, "--ink"),
        (MUTED, "--muted"),
        (GRID, "--grid"),
        (PAPER, "--paper"),
    ];
    let hues = Hue::ALL.map(|hue| (hue.colour(), hue.variable()));
    let mut svg = svg.to_owned();
    for (colour, variable) in fixed.into_iter().chain(hues) {
        svg = svg.replace(&hex(colour), &format!("var({variable})"));
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_colours_are_one() {
        let mut all: Vec<String> = Hue::ALL.iter().map(|hue| hex(hue.colour())).collect();
        all.extend([INK, MUTED, GRID, PAPER].map(hex));
        let n = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n);
    }
}
