//! Makes the seed corpora: `cargo +nightly run --bin make_seeds` in `fuzz/`.

use std::fs;

use nestrace_abi::{OwnedRecord, Owner, Record};
use nestrace_trace::manifest::{Guest, GuestDisk, GuestMount, Loss, Machine, Manifest, Topology};
use nestrace_wire::kernel_buffers::{Translation, put_record, record_bytes};
use nestrace_wire::{AgentHello, AgentMessage, End, FrameReader, Live, Lost, VERSION};
use nestrace_trace::{Event, StreamWriter};

fn main() -> std::io::Result<()> {
    fs::create_dir_all("seeds/bundle_stream")?;
    fs::create_dir_all("seeds/manifest")?;
    fs::create_dir_all("seeds/btf")?;
    agent_streams()?;
    blktrace_files()?;
    fs::write("seeds/btf/kernel", [&[16], btf().as_slice()].concat())?;
    fs::write(
        "seeds/btf/module",
        [&[8], btf().as_slice(), &btf()].concat(),
    )?;
    for (name, batches) in [("empty", &[][..]), ("one", &[5]), ("three", &[1, 200, 30])] {
        let (stream, index) = recording(batches);
        let length = (index.len() as u16).to_le_bytes();
        let bare = [&[0], stream.as_slice()].concat();
        let indexed = [&[1], &length[..], &index, &stream].concat();
        let sound = [&[2], stream.as_slice()].concat();
        for (kind, bytes) in [("bare", bare), ("indexed", indexed), ("sound", sound)] {
            fs::write(format!("seeds/bundle_stream/{name}-{kind}"), bytes)?;
        }
    }
    let mut full = Manifest::default();
    full.topology = Topology {
        guests: vec![Guest::default()],
        devices: vec![],
    };
    full.losses = vec![Loss::default()];
    fs::write("seeds/manifest/default.json", Manifest::default().to_json())?;
    fs::write("seeds/manifest/full.json", full.to_json())?;
    fs::write(
        "seeds/manifest/newer.json",
        r#"{"format":{"major":2,"minor":0}}"#,
    )
}

/// The beginnings of real captures: merges, remaps, cgroup tags, splits, notifications.
fn blktrace_files() -> std::io::Result<()> {
    fs::create_dir_all("seeds/blktrace")?;
    for (name, path) in [
        ("ide", "ext3-seqw-mq-ide/gt.blktrace.0"),
        ("scsi", "ext4-mail-none-scsi/gt.blktrace.1"),
        ("cgroup", "examples/cgroup/gt.blktrace.0"),
        ("split", "examples/split/gt.blktrace.0"),
        ("stacked", "examples/stacked/gt.blktrace.0"),
        ("requeue", "examples/requeue/gt.blktrace.0"),
    ] {
        let bytes = fs::read(format!("../fixtures/blktrace/{path}"))?;
        let start = &bytes[..bytes.len().min(3000)];
        fs::write(format!("seeds/blktrace/{name}"), start)?;
        // The same from a machine of the other byte order, as far as the first record goes.
        let mut other = start.to_vec();
        let reversed = [
            (0, 4),
            (4, 4),
            (8, 8),
            (16, 8),
            (24, 4),
            (28, 4),
            (32, 4),
            (36, 4),
            (40, 4),
            (44, 2),
            (46, 2),
        ];
        for (at, len) in reversed {
            other[at..at + len].reverse();
        }
        fs::write(format!("seeds/blktrace/{name}-reversed"), &other[..48])?;
    }
    Ok(())
}

/// A session from Hello to End, as bytes of the port and as messages to be framed.
fn agent_streams() -> std::io::Result<()> {
    fs::create_dir_all("seeds/agent_stream")?;
    let mut records = Vec::new();
    for (kind, dev) in [
        (1, 0),
        (2, 0),
        (11, 0),
        (14, 0),
        (30, 3),
        (60, 0),
        (200, 0),
        (1, 9),
    ] {
        let record = Record {
            ts_ns: 1000,
            kind,
            dev,
            bytes: 4096,
            ..Record::default()
        };
        let owner = Owner::default();
        put_record(&record_bytes(&OwnedRecord { record, owner }), &mut records);
    }
    let probes = AgentMessage::Live(Live {
        translation: Some(Translation::default()),
        ..Live::default()
    });
    let buffer = AgentMessage::Buffer {
        number: 0,
        bytes: &records,
    };
    let hello = |boot: &str| {
        AgentMessage::Hello(Box::new(AgentHello {
            protocol: VERSION,
            session: 5,
            backend: "ebpf".to_owned(),
            machine: Machine {
                boot_id: boot.to_owned(),
                ..Machine::default()
            },
            disks: vec![GuestDisk::default()],
            mounts: vec![GuestMount::default()],
            ..AgentHello::default()
        }))
    };
    let mut relay_file = fs::read("../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.0")?;
    relay_file.truncate(1000);
    let messages = [
        hello("a"),
        AgentMessage::Refused(vec![]),
        probes,
        buffer.clone(),
        AgentMessage::Pong {
            token: 1,
            guest_ns: 7,
        },
        AgentMessage::Loss(Lost {
            source: 0,
            total: 3,
            mono_ns: 1000,
        }),
        AgentMessage::Notice("a\u{1b}[2J".to_owned()),
        AgentMessage::Buffer {
            number: 1,
            bytes: &relay_file,
        },
        AgentMessage::Incomplete,
        AgentMessage::Until(u64::MAX),
        hello("b"),
        AgentMessage::Live(Live::default()),
        buffer,
        AgentMessage::End(End::default()),
    ];
    let mut port = Vec::new();
    for message in &messages {
        message.encode_to(&mut port);
    }
    fs::write("seeds/agent_stream/port", [&[0], port.as_slice()].concat())?;
    let mut reader = FrameReader::new();
    assert_eq!(reader.feed(&port), port.len());
    let mut framed = vec![1];
    while let Some(frame) = reader.next_frame().expect("our own") {
        framed.push(place(frame.kind));
        framed.extend((frame.payload.len() as u16).to_le_bytes());
        framed.extend(frame.payload);
    }
    fs::write("seeds/agent_stream/framed", framed)
}

/// Where the target has this kind in its list.
fn place(kind: u16) -> u8 {
    let [_, number] = kind.to_be_bytes();
    // There is no kind 3.
    if number < 3 { number - 1 } else { number - 2 }
}

fn recording(batches: &[u64]) -> (Vec<u8>, Vec<u8>) {
    let mut writer = StreamWriter::new(Vec::new(), Vec::new()).expect("memory");
    for (batch, rows) in batches.iter().enumerate() {
        for row in 0..*rows {
            let event = Event {
                ts_ns: row * 1000 + batch as u64,
                kind: (row % 80) as u8,
                object: row.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                bytes: 4096,
                ..Event::default()
            };
            writer.push(&event).expect("memory");
        }
        writer.flush_batch().expect("memory");
    }
    writer.finish().expect("memory");
    writer.into_inner()
}

/// One of each kind of type that the queries of the target meet.
fn btf() -> Vec<u8> {
    let strings = b"\0int\0p\0outer\0in\0x\0inner\0A\0wide\0function\0btf_trace_p\0alias\0";
    let named = |name: &[u8]| {
        strings
            .windows(name.len() + 2)
            .position(|w| w[0] == 0 && w[w.len() - 1] == 0 && &w[1..w.len() - 1] == name)
            .expect("a name") as u32
            + 1
    };
    let kind = |kind: u32, vlen: u32| kind << 24 | vlen;
    #[rustfmt::skip]
    let types = [
        named(b"int"), kind(1, 0), 4, 32,                                                           // 1
        0, kind(2, 0), 4,                                                                           // 2
        named(b"inner"), kind(4, 1), 4, named(b"x"), 1, 0,                                          // 3
        named(b"outer"), kind(4, 3), 24, named(b"p"), 2, 0, 0, 5, 64, named(b"in"), 3, 128,         // 4
        0, kind(5, 1), 4, named(b"A"), 1, 0,                                                        // 5
        named(b"alias"), kind(8, 0), 4,                                                             // 6
        0, kind(6, 1), 4, named(b"A"), 7,                                                           // 7
        named(b"wide"), kind(19, 1), 8, named(b"A"), 7, 1,                                          // 8
        0, kind(13, 2), 1, 0, 2, named(b"x"), 1,                                                    // 9
        named(b"function"), kind(12, 1), 9,                                                         // 10
        0, kind(2, 0), 9,                                                                           // 11
        named(b"btf_trace_p"), kind(8, 0), 11,                                                      // 12
    ];
    let length = types.len() as u32 * 4;
    let header = [24, 0, length, length, strings.len() as u32];
    let words = header
        .iter()
        .chain(&types)
        .flat_map(|word| word.to_le_bytes());
    [0x9f, 0xeb, 1, 0]
        .into_iter()
        .chain(words)
        .chain(strings.iter().copied())
        .collect()
}
