//! Plain tables and paragraphs of a given width.

/// Rows of cells: the first column to the left, the others to the right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with its header.
    #[must_use]
    pub fn new(header: &[&str]) -> Self {
        Self {
            rows: vec![header.iter().map(|cell| (*cell).to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Whether there is more than the header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &[String] {
        self.rows.first().map_or(&[], Vec::as_slice)
    }

    /// The rows below the header.
    #[must_use]
    pub fn rows(&self) -> &[Vec<String>] {
        self.rows.get(1..).unwrap_or_default()
    }

    /// The lines, each with two spaces in front. Names too long for `width` are cut in the middle.
    #[must_use]
    pub fn lines(&self, width: usize) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widest = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..columns).map(widest).collect();
        let others: usize = widths.iter().skip(1).map(|width| width + 2).sum();
        if let Some(first) = widths.first_mut() {
            *first = (*first).min(width.saturating_sub(others + 2).max(8));
        }
        let line = |row: &Vec<String>| {
            let mut line = String::from("  ");
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    line.push_str(&format!("{:<width$}", shorten(cell, *width)));
                } else {
                    line.push_str(&format!("  {cell:>width$}"));
                }
            }
            line.trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

/// Cuts a text in the middle, where paths say least.
#[must_use]
pub fn shorten(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let keep = width.saturating_sub(1);
    let head = keep / 3;
    let tail = keep - head;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length - tail).collect();
    format!("{start}…{end}")
}

/// Cuts a file's path at its front: files differ at the end. Whole folders go first.
#[must_use]
pub fn shorten_path(path: &str, width: usize) -> String {
    let length = path.chars().count();
    if length <= width {
        return path.to_owned();
    }
    let keep = width.saturating_sub(1);
    let rest: String = path.chars().skip(length - keep).collect();
    match rest.find('/') {
        Some(at) if at + 1 < rest.len() => format!("…{}", &rest[at..]),
        _ => format!("…{rest}"),
    }
}

/// Breaks a paragraph into lines, `indent` in front of each. A number keeps its unit.
#[must_use]
pub fn wrap(text: &str, width: usize, indent: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::from(indent);
    let mut empty = true;
    for word in words(text) {
        if !empty && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut line, String::from(indent)));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(&word);
        empty = false;
    }
    if !empty {
        lines.push(line);
    }
    lines
}

/// Words, with a unit left at its number: `1.2 ms` is one word.
fn words(text: &str) -> Vec<String> {
    const UNITS: [&str; 12] = [
        "%", "ns", "µs", "ms", "s", "B", "KiB", "MiB", "GiB", "TiB", "MiB/s", "KiB/s",
    ];
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let bare = word.trim_end_matches([',', '.', ';', ':', ')']);
        match words.last_mut() {
            Some(number)
                if UNITS.contains(&bare)
                    && number.ends_with(|last: char| last.is_ascii_digit()) =>
            {
                number.push(' ');
                number.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_keeps_its_end() {
        let path = "/srv/data/mysql/ib_logfile0";
        assert_eq!(shorten_path(path, 27), path);
        assert_eq!(shorten_path(path, 26), "…/data/mysql/ib_logfile0");
        assert_eq!(shorten_path(path, 15), "…/ib_logfile0");
        // Not even the name has room.
        assert_eq!(shorten_path(path, 9), "…logfile0");
        assert_eq!(shorten_path("folder/", 4), "…er/");
        assert_eq!(shorten_path(path, 0), "…");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["device", "I/Os"]);
        assert!(table.is_empty());
        table.row(vec![String::from("loop0"), String::from("12,345")]);
        assert_eq!(table.lines(80), ["  device    I/Os", "  loop0   12,345"]);
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shorten("abcdefghij", 10), "abcdefghij");
        assert_eq!(
            shorten("/var/lib/libvirt/images/disk.qcow2", 16),
            "/var/…disk.qcow2"
        );
        let mut table = Table::new(&["image", "n"]);
        table.row(vec!["x".repeat(200), String::from("1")]);
        assert!(
            table
                .lines(80)
                .iter()
                .all(|line| line.chars().count() <= 80)
        );
    }

    #[test]
    fn paragraphs_keep_units() {
        assert_eq!(
            wrap("took 1.2 ms, then", 9, " "),
            [" took", " 1.2 ms,", " then"]
        );
        assert!(wrap("", 80, "").is_empty());
    }
}
