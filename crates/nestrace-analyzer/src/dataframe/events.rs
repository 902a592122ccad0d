//! Events as they were recorded.

use nestrace_trace::Event;

use super::{DataFrame, PolarsResult, table};

/// A row for each event, under the names of the stored columns (`nestrace_trace::columns::COLUMNS`).
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn events(events: &[Event]) -> PolarsResult<DataFrame> {
    table!(events, event => {
        ts_ns: event.ts_ns,
        kind: event.kind,
        sub: event.sub,
        cpu: event.cpu,
        tid: event.tid,
        dev: event.dev,
        object: event.object,
        related: event.related,
        offset: event.offset,
        bytes: event.bytes,
        flags: event.flags,
        inode: event.inode,
        file_offset: event.file_offset,
        owner_dev: event.owner_dev,
        iocb: event.iocb,
        origin: event.origin,
        end_io: event.end_io,
        cgroup: event.cgroup,
        aux: event.aux,
    })
}

#[cfg(test)]
mod tests {
    use nestrace_trace::columns::COLUMNS;

    use super::*;

    #[test]
    fn every_column_of_a_stream_is_there() {
        let table = events(&[Event::default()]).expect("a table");
        let names: Vec<&str> = table
            .columns()
            .iter()
            .map(|column| column.name().as_str())
            .collect();
        let stored: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
        assert_eq!(names, stored);
        let widths = table
            .columns()
            .iter()
            .map(|column| column.dtype().to_string());
        let expected = COLUMNS
            .iter()
            .map(|column| format!("u{}", column.width * 8));
        assert!(widths.eq(expected), "{:?}", table.schema());
    }
}
