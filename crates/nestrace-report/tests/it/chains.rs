//! The text and the JSON of a guest's I/O that was followed to the device.

use crate::two_sides;

use nestrace_abi::flags;
use nestrace_analyzer::{Analysis, Options, StoryChoice};
use nestrace_report::{json, text};
use nestrace_trace::manifest::Notice;
use nestrace_trace::{Event, Kind};

use two_sides::{Streams, VM1, VM2, WAY, Way};

/// Reads and writes, a slow write, one that the host does not have.
fn analyze(story: Option<StoryChoice>) -> Analysis {
    let slow = Way {
        device: 5_000_000,
        host_fs_submit: 800_000,
        ..WAY
    };
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, 10_000_000_000, 240, WAY);
    let at = streams.bio(VM1, at, flags::OP_WRITE, 1 << 20, 65_536, slow);
    let at = streams.traffic(VM1, at + 100_000, 100, WAY);
    streams.traffic(VM2, 10_000_000_333, 200, slow);
    let lost = Event {
        object: 0x77,
        bytes: 512,
        ..Event::default()
    };
    streams.guest(VM1, at, Kind::Queue, lost);
    let mut manifest = two_sides::manifest();
    manifest.end_mono_ns = at + 1_000_000;
    let mut options = Options::default();
    options.path = "vm1.nest".into();
    options.story = story;

    streams.analyze(&manifest, options)
}

fn render(analysis: &Analysis) -> String {
    text::render(analysis, &text::TextOptions::default())
}

/// The text without what depends on how narrow the clock's band is: that is not this crate's business.
fn without_clock(text: &str) -> String {
    let mut in_clocks = false;
    let mut kept = String::new();
    for line in text.lines() {
        in_clocks = line == "The guests' clocks" || in_clocks && !line.is_empty();
        if !in_clocks && !line.contains("virt_") && !line.contains('±') {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[test]
fn where_the_time_goes() {
    let text = render(&analyze(None));
    assert!(
        text.contains("vm1's clock is 5.00 s behind the host's"),
        "{text}"
    );
    let text = without_clock(&text);
    assert_eq!(text, include_str!("chains.txt"), "\n{text}");
}

#[test]
fn single_bios_as_trees() {
    let text = without_clock(&render(&analyze(Some(StoryChoice::Io(241)))));
    assert_eq!(text, include_str!("story.txt"), "\n{text}");
}

#[test]
fn no_line_is_wider_than_the_page() {
    for story in [
        None,
        Some(StoryChoice::Slowest(3)),
        Some(StoryChoice::Io(341)),
    ] {
        let text = render(&analyze(story));
        for line in text.lines().filter(|line| !line.contains("nestrace ")) {
            let columns = line.chars().count();
            assert!(columns <= 80, "{columns} columns: {line}");
        }
    }
}

#[test]
fn the_json_fits_its_schema() {
    let schema = include_str!("../../../../docs/analysis.schema.json");
    let schema = serde_json::from_str(schema).expect("JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    for story in [
        None,
        Some(StoryChoice::Slowest(2)),
        Some(StoryChoice::Io(341)),
    ] {
        let analysis = analyze(story);
        assert_eq!(analysis.stories.is_empty(), story.is_none());
        let object: serde_json::Value =
            serde_json::from_str(&json::render(&analysis)).expect("JSON");
        let errors: Vec<String> = validator
            .iter_errors(&object)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{}", errors.join("\n"));
        for path in [
            "/chains/0/linked",
            "/chains/0/segments/0/mean_ns",
            "/chains/0/by_op/write/5/p50_ns",
            "/clocks/0/offset_ns",
        ] {
            let mut bad = object.clone();
            *bad.pointer_mut(path).expect(path) = serde_json::json!("many");
            assert!(!validator.is_valid(&bad), "{path}");
        }
    }
}

#[test]
fn a_device_that_is_no_disk_is_told_with_its_bios() {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, 10_000_000_000, 120, WAY);
    let mut manifest = two_sides::manifest();
    // The disk was plugged in later: QEMU's requests are of no known disk.
    let guest = &mut manifest.topology.guests[0];
    guest.disks.remove(0);
    guest.backends.clear();
    manifest.notices.push(Notice {
        mono_ns: 9_500_000_000,
        what: "file_opened".into(),
        message: "guest vm1 opened another file (inode 12)".into(),
    });
    let analysis = streams.analyze(&manifest, Options::default());
    let text = render(&analysis);
    let words: Vec<&str> = text.split_whitespace().collect();
    let words = words.join(" ");
    for expected in [
        "QEMU's requests went to an unknown disk (plugged in later?)",
        "vda: no disk of this guest has its bus and size; it may have been plugged in later.",
        "0 of 120 bios linked down to the host (0 %); not linked: 120 without a request of QEMU.",
    ] {
        assert!(words.contains(expected), "{expected}\n{text}");
    }
    assert!(
        !words.contains("QEMU's file I/O was not recorded"),
        "{text}"
    );
    let page = nestrace_report::html::render(&analysis).expect("a page");
    assert!(page.contains("it may have been plugged in later"));
}

#[test]
fn rules_that_could_not_judge_are_told_by_what_they_lack() {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, 10_000_000_000, 50, WAY);
    streams.traffic(VM2, 10_000_000_333, 200, WAY);
    let mut manifest = two_sides::manifest();
    manifest.guest_sides.pop();
    streams.guests.pop();
    let analysis = streams.analyze(&manifest, Options::default());
    assert!(analysis.findings.is_empty(), "{:?}", analysis.findings);
    let text = render(&analysis);
    let expected = "
What was found
  No rule fired.
  7 rules could not judge vm1/vd: too few of the guest's requests were linked.
  4 rules could not judge vm1/vd: the calls and pages of the guest's programs
  were not recorded: that needs the agent's eBPF backend.
  25 rules could not judge vm2/vd: the guest was not recorded from inside: start
  the agent in it.
";
    assert!(text.contains(expected), "{text}");
    let page = nestrace_report::html::render(&analysis).expect("a page");
    for line in [
        "No rule fired.",
        "could not judge vm1/vd: too few",
        "could not judge vm2/vd: the guest",
    ] {
        assert!(page.contains(line), "{line}");
    }
}

#[test]
fn what_could_be_followed_of_few_is_told_as_such() {
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, 10_000_000_000, 120, WAY);
    let host = streams.host.len();
    streams.traffic(VM1, at, 80, WAY);
    streams.host.truncate(host);
    // Without file I/O there is no estimate in their place.
    let file = |event: &Event| event.kind().map(|kind| kind.source());
    streams
        .host
        .retain(|event| file(event) != Some(nestrace_abi::Source::File));
    let text = render(&streams.analyze(&two_sides::manifest(), Options::default()));
    assert!(
        text.contains("vm1/vd (vda): 60 % of its I/O could be linked; of that, 40 reads took"),
        "{text}"
    );
}
