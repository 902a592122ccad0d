//! Prints every guest I/O that took longer than a limit, and its longest segment. Each is printed as soon as it
//! is complete, so memory does not grow with the recording.
//!
//! `cargo run -p nestrace-bundle --example slower_than -- slow.nest 10`

use std::cell::Cell;
use std::error::Error;
use std::path::Path;
use std::rc::Rc;

use nestrace_analyzer::analysis::Story;
use nestrace_analyzer::{Analyzer, Options, StoryChoice, units};
use nestrace_bundle::bundle;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [bundle, milliseconds] = args.as_slice() else {
        return Err("give a bundle and a limit in milliseconds: slow.nest 10".into());
    };
    let limit_ns = (milliseconds.parse::<f64>()? * 1e6) as u64;
    let mut bundle = bundle::open(Path::new(bundle))?;
    let mut options = Options::default();
    options.story = Some(StoryChoice::All);

    let mut analyzer = Analyzer::new(&bundle.manifest, options);
    let n_slow = Rc::new(Cell::new(0_u64));
    let counter = Rc::clone(&n_slow);
    analyzer.each_story(move |story| {
        if story.q2c_ns > limit_ns {
            counter.set(counter.get() + 1);
            println!("{}", line(&story));
        }
    });
    bundle.push_into(&mut analyzer)?;
    let analysis = analyzer.finish();
    let bios: u64 = analysis.chains.iter().map(|chains| chains.guest_bios).sum();
    println!("{} of {bios} took longer", n_slow.get());
    Ok(())
}

fn line(story: &Story) -> String {
    let longest = story.segments.iter().max_by_key(|segment| segment.ns);
    let why = match (story.unlinked, longest) {
        // It was not followed to the host, and the reason is known.
        (Some(reason), _) => format!("not followed: {reason}"),
        (None, Some(longest)) => format!("{} of it {}", units::time(longest.ns), longest.name),
        (None, None) => "no part was recorded".to_owned(),
    };
    format!(
        "{} {} bio {}: {} of {} took {}, {why}",
        story.guest,
        story.guest_device,
        story.io,
        story.tree.what,
        units::size(story.tree.bytes),
        units::time(story.q2c_ns),
    )
}
