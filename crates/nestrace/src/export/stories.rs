//! The chains of a bundle, each reported as soon as its outcome is known.

use nestrace_analyzer::analysis::StoryLayer;
use nestrace_analyzer::{
    Analysis, Analyzer, GuestEvents, Options, StoryChoice,
    analysis::{Story, StorySpan},
};
use nestrace_trace::TimeOrdered;

use crate::bundle::Bundle;

/// Reads every stream once. Without a stream from inside a guest there are no chains.
pub fn each(bundle: &mut Bundle, listener: impl FnMut(Story) + 'static) -> Analysis {
    let mut options = Options::default();
    options.story = Some(StoryChoice::All);
    options.image_maps = std::mem::take(&mut bundle.image_maps);

    let mut analyzer = Analyzer::new(&bundle.manifest, options);
    analyzer.each_story(listener);
    let mut ordered: Vec<_> = bundle
        .guests
        .iter_mut()
        .map(|guest| (guest.side, TimeOrdered::new(guest.stream.events())))
        .collect();
    let guests = ordered
        .iter_mut()
        .map(|(side, events)| GuestEvents {
            side: *side,
            events,
        })
        .collect();
    analyzer.push_streams(TimeOrdered::new(bundle.host.events()), guests);
    analyzer.finish()
}

/// How many spans of a layer an I/O trace has.
pub fn count(span: &StorySpan, layer: StoryLayer) -> u64 {
    let beneath: u64 = span.children.iter().map(|child| count(child, layer)).sum();
    beneath + u64::from(span.layer == layer)
}
