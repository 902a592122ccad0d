//! What a guest's addresses become in its stream.

use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};

use nestrace_trace::address::Shift;
use nestrace_trace::manifest::Addresses;
use nestrace_trace::{Event, Kind, StreamReader, StreamWriter};

use super::super::super::probe_records::put_events;
use super::super::{Ingest, Streams};
use super::{bytes, hello, live};

/// Keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Streams for Kept {
    type Stream = Self;
    type Index = std::io::Sink;

    fn open(&mut self, _: &str) -> Result<Option<StreamWriter<Self, std::io::Sink>>, String> {
        let writer = StreamWriter::new(self.clone(), std::io::sink());
        writer.map(Some).map_err(|error| error.to_string())
    }

    fn limit_bytes(&mut self) -> u64 {
        u64::MAX
    }
}

#[test]
fn a_stream_has_none_of_the_guests_addresses() {
    let (bio, page, iocb) = (
        0xffff_8880_1234_5678,
        0xffff_ea00_0012_3440,
        0x7f00_0000_1000,
    );
    let event = Event {
        ts_ns: 1000,
        kind: Kind::Queue as u8,
        object: bio,
        related: page,
        origin: iocb,
        ..Event::default()
    };
    let kept = Kept::default();
    let shift = Shift::of_random([0x5c; 16]);
    let mut ingest = Ingest::new("vm1", kept.clone(), 5).shifted(shift);
    let mut said = bytes(&[hello(5), live()]);
    put_events(&[event], &mut said);
    ingest.feed(&said, 1).unwrap();
    ingest.close(2);
    let stream = Cursor::new(kept.0.lock().unwrap().clone());
    let mut reader = StreamReader::new(stream, None::<&[u8]>).unwrap();
    let written: Vec<Event> = reader.events().collect();
    let written = written.iter().find(|it| it.kind == Kind::Queue as u8);
    let expected = Event {
        object: shift.address(bio),
        related: shift.address(page),
        origin: shift.address(iocb),
        ..event
    };
    assert_eq!(written, Some(&expected));
    assert!(expected.object != bio && expected.related != page && expected.origin != iocb);
    let of_streams: Vec<_> = ingest.account.streams();
    assert_eq!(of_streams[0].addresses, Addresses::Shifted);
}
