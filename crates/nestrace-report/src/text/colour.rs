//! Colours of a terminal: few, of the sixteen that every terminal has and that its owner chose.

use nestrace_analyzer::analysis::Severity;

use crate::plots::Hue;

/// How a part of a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    Bold,
    Red,
    Green,
    Yellow,
    Blue,
    Magenta,
    Cyan,
    Grey,
}

impl Colour {
    /// How much a finding matters.
    pub(super) const fn of_severity(severity: Severity) -> Self {
        match severity {
            Severity::High => Self::Red,
            Severity::Medium => Self::Yellow,
            Severity::Low => Self::Cyan,
            _ => Self::Grey,
        }
    }

    /// A layer, as near to its colour in the plots as sixteen colours come.
    pub(super) const fn of_layer(hue: Hue) -> Self {
        match hue {
            Hue::Guest => Self::Blue,
            Hue::Virt | Hue::Flush | Hue::Stack => Self::Magenta,
            Hue::Qemu => Self::Yellow,
            Hue::HostFs => Self::Green,
            Hue::HostQueue | Hue::GuestFs => Self::Cyan,
            Hue::Device => Self::Red,
            Hue::Neutral => Self::Grey,
        }
    }

    /// The text in this colour. What is in the text is not looked at: it has to be printable.
    pub(super) fn paint(self, text: &str) -> String {
        let code = match self {
            Self::Bold => 1,
            Self::Red => 31,
            Self::Green => 32,
            Self::Yellow => 33,
            Self::Blue => 34,
            Self::Magenta => 35,
            Self::Cyan => 36,
            Self::Grey => 90,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}
