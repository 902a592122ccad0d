//! Makes the seed corpora: `cargo +nightly run --bin make_seeds` in `fuzz/`.

use std::fs;

use nestrace_trace::manifest::{Guest, Loss, Manifest, Topology};
use nestrace_trace::{Event, StreamWriter};

fn main() -> std::io::Result<()> {
    fs::create_dir_all("seeds/bundle_stream")?;
    fs::create_dir_all("seeds/manifest")?;
    fs::create_dir_all("seeds/btf")?;
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
    let full = Manifest {
        topology: Topology {
            guests: vec![Guest::default()],
            devices: vec![],
        },
        losses: vec![Loss::default()],
        ..Manifest::default()
    };
    fs::write("seeds/manifest/default.json", Manifest::default().to_json())?;
    fs::write("seeds/manifest/full.json", full.to_json())?;
    fs::write(
        "seeds/manifest/newer.json",
        r#"{"format":{"major":2,"minor":0}}"#,
    )
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
