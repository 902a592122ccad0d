//! A text over the whole screen, line by line.

use crate::keys::Key;

/// Lines that are kept of a text.
const MAX_LINES: usize = 20_000;

/// A text, and how far it is scrolled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// What stands above it.
    pub title: String,
    lines: Vec<String>,
    top: usize,
}

impl Page {
    /// From its begin on.
    #[must_use]
    pub fn new(title: &str, text: &str) -> Self {
        let mut lines: Vec<String> = text.lines().take(MAX_LINES).map(str::to_owned).collect();
        if text.lines().nth(MAX_LINES).is_some() {
            lines.push("… (more than can be shown here)".to_owned());
        }
        Self {
            title: title.to_owned(),
            lines,
            top: 0,
        }
    }

    /// Scrolls on a screen with so many lines of the text; `false`: the page closes.
    pub fn on_key(&mut self, key: Key, height: usize) -> bool {
        let last = self.lines.len().saturating_sub(height);
        let screen = height.saturating_sub(1).max(1);
        self.top = match key {
            Key::Char('q') | Key::Escape => return false,
            Key::Up | Key::Char('k') => self.top.saturating_sub(1),
            Key::Down | Key::Char('j') | Key::Enter => self.top + 1,
            Key::PageUp | Key::Char('b') => self.top.saturating_sub(screen),
            Key::PageDown | Key::Char(' ') => self.top + screen,
            Key::Home | Key::Char('g') => 0,
            Key::End | Key::Char('G') => last,
            _ => self.top,
        }
        .min(last);
        true
    }

    /// The lines of a screen with so many.
    #[must_use]
    pub fn shown(&self, height: usize) -> &[String] {
        let top = self.first(height);
        let end = (top + height).min(self.lines.len());
        self.lines.get(top..end).unwrap_or_default()
    }

    /// The number of the first line that is shown and of the last, from 1, and how many there are.
    #[must_use]
    pub fn place(&self, height: usize) -> (usize, usize, usize) {
        let top = self.first(height);
        let n = self.lines.len();
        ((top + 1).min(n), (top + height).min(n), n)
    }

    /// After the screen has grown, the end of the text stays at its lower edge.
    fn first(&self, height: usize) -> usize {
        self.top.min(self.lines.len().saturating_sub(height))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_scrolls_to_its_ends_and_no_further() {
        let text: String = (1..=30).map(|n| format!("line {n}\n")).collect();
        let mut page = Page::new("t", &text);
        for (key, place) in [
            (Key::Up, (1, 10, 30)),
            (Key::Down, (2, 11, 30)),
            (Key::PageDown, (11, 20, 30)),
            (Key::PageDown, (20, 29, 30)),
            (Key::PageDown, (21, 30, 30)),
            (Key::PageUp, (12, 21, 30)),
            (Key::Home, (1, 10, 30)),
            (Key::End, (21, 30, 30)),
            (Key::Char('x'), (21, 30, 30)),
        ] {
            assert!(page.on_key(key, 10));
            assert_eq!(page.place(10), place, "{key:?}");
        }
        assert_eq!(page.shown(10)[0], "line 21");
        assert_eq!(page.shown(100).len(), 30);
        assert!(!page.on_key(Key::Escape, 10));
        assert_eq!(Page::new("t", "").place(10), (0, 0, 0));
    }
}
