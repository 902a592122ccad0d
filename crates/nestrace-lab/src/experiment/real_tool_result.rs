//! Reads what Filebench and iozone print.

use crate::plan::real_tool::Figures;

/// What counts of it, per second: operations of Filebench, bytes of iozone. `None` if there is no result in it.
pub(super) fn parse(text: &str, figures: Figures) -> Option<f64> {
    let value = match figures {
        Figures::FilebenchSummary => summary(text),
        Figures::IozoneColumn(column) => iozone(text, column),
    };
    value.filter(|value| *value > 0.0)
}

/// `3.021: IO Summary:  4242 ops 1413.7 ops/s 217/217 rd/wr   5.1mb/s 11.2ms/op`
fn summary(text: &str) -> Option<f64> {
    let (_, line) = text.split_once("IO Summary:")?;
    let (before, _) = line.split_once("ops/s")?;
    before.split_whitespace().last()?.parse().ok()
}

/// The row of figures; they are KiB per second.
fn iozone(text: &str, column: usize) -> Option<f64> {
    let row = |line: &str| -> Option<Vec<f64>> {
        let words = line.split_whitespace();
        words.map(|word| word.parse().ok()).collect()
    };
    let mut rows = text.lines().filter_map(row);
    let figures = rows.find(|row| row.len() >= 3)?;
    figures.get(2 + column).map(|kib| kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filebench() {
        let line = "63.102: IO Summary: 226431 ops 3773.6 ops/s 580/581 rd/wr  13.5mb/s 4.2ms/op\n";
        assert_eq!(parse(line, Figures::FilebenchSummary), Some(3773.6));
        for none in [
            "",
            "3.1: Run took 3 seconds...",
            "1.0: IO Summary: 0 ops 0.000 ops/s 0/0 rd/wr",
        ] {
            assert_eq!(parse(none, Figures::FilebenchSummary), None);
        }
    }

    #[test]
    fn iozone() {
        let table = "\tFile size set to 65536 kB\n\tCommand line used: iozone -e -i 0 -s 65536k -r 64k\n\
            \u{20}                                                 random    random\n\
            \u{20}             kB  reclen    write  rewrite    read    reread\n\
            \u{20}          65536      64   422636   286223\n\niozone test complete.\n";
        assert_eq!(
            parse(table, Figures::IozoneColumn(0)),
            Some(422_636.0 * 1024.0)
        );
        assert_eq!(
            parse(table, Figures::IozoneColumn(1)),
            Some(286_223.0 * 1024.0)
        );
        assert_eq!(parse(table, Figures::IozoneColumn(2)), None);
        assert_eq!(
            parse("Error writing block 3\n", Figures::IozoneColumn(0)),
            None
        );
    }
}
