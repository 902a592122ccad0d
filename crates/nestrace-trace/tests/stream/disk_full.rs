//! A writer whose disk is full.

use std::io::{self, Write};

use nestrace_trace::{StreamWriter, WriteError};

use super::{Recording, event, read};

/// Takes so many bytes and no more, in pieces, as a file system does.
struct Disk<'a> {
    bytes: &'a mut Vec<u8>,
    room: usize,
}

impl Write for Disk<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.room).min(1000);
        if n == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= n;
        self.bytes.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the small recording to disks with so much room; the files, and the first error.
fn write(stream_room: usize, index_room: usize) -> (Vec<u8>, Vec<u8>, Option<WriteError>, u64) {
    let recording = Recording::small();
    let (mut stream, mut index) = (Vec::new(), Vec::new());
    let mut error = None;
    let mut lost = 0;
    let stream_disk = Disk {
        bytes: &mut stream,
        room: stream_room,
    };
    let index_disk = Disk {
        bytes: &mut index,
        room: index_room,
    };
    match StreamWriter::new(stream_disk, index_disk) {
        Err(first) => error = Some(first),
        Ok(mut writer) => {
            for batch in &recording.batches {
                for event in batch {
                    // Rows are gathered, so this fails later than the disk does.
                    let _ = writer.push(event);
                }
                error = error.or(writer.flush_batch().err());
            }
            error = error.or(writer.finish().err());
            let written = writer.written();
            assert_eq!(written.rows + written.rows_lost, 53);
            lost = written.rows_lost;
        }
    }
    (stream, index, error, lost)
}

#[test]
fn what_was_written_before_stays_readable() {
    let whole = Recording::small();
    for room in 0..whole.stream.len() {
        let (stream, index, error, lost) = write(room, usize::MAX);
        assert!(
            matches!(&error, Some(WriteError::Stream { source, .. })
                if source.kind() == io::ErrorKind::StorageFull),
            "room for {room}: {error:?}"
        );
        let reading = read(&stream, Some(&index)).unwrap();
        let placed = whole.placed();
        let fits = placed
            .iter()
            .filter(|(e, _)| (e.offset + e.length) as usize <= room)
            .count();
        assert_eq!(
            reading.rows(),
            whole.batches[..fits].concat(),
            "room for {room}"
        );
        if room >= whole.entries()[0].length as usize {
            assert_eq!(
                lost as usize,
                whole.batches[fits..].concat().len(),
                "room for {room}"
            );
        }
        assert!(!reading.closed);
    }
}

#[test]
fn an_index_that_is_full_costs_no_row_of_the_stream() {
    let whole = Recording::small();
    for room in 0..whole.index.len() {
        let (stream, index, error, _) = write(usize::MAX, room);
        assert!(
            matches!(&error, Some(WriteError::Index { .. })),
            "room for {room}: {error:?}"
        );
        if stream.is_empty() {
            continue;
        }
        let reading = read(&stream, Some(&index)).unwrap();
        let rows = reading.rows();
        assert_eq!(
            rows,
            whole.batches.concat()[..rows.len()],
            "room for {room}"
        );
        let entries = (room.saturating_sub(16) / 48).saturating_sub(1);
        assert!(
            reading.batches.len() >= entries.min(4),
            "room for {room}: {reading:?}"
        );
    }
}

#[test]
fn a_closed_writer_takes_nothing() {
    let mut writer = StreamWriter::new(Vec::new(), Vec::new()).unwrap();
    writer.finish().unwrap();
    for n in 0..1000 {
        let _ = writer.push(&event(n));
    }
    assert!(matches!(writer.flush_batch(), Err(WriteError::Closed)));
    assert!(matches!(writer.finish(), Err(WriteError::Closed)));
    assert_eq!(writer.written().rows_lost, 1000);
    let (stream, _) = writer.into_inner();
    assert!(read(&stream, None).unwrap().closed);
}
