//! The chains of a bundle and the calls of its guests' programs, each reported soon after its outcome is known.

use nestrace_analyzer::analysis::StoryLayer;
use nestrace_analyzer::{
    Analysis, Analyzer, GuestEvents, Options, StoryChoice,
    analysis::{CallStory, Story, StorySpan},
};
use nestrace_trace::{Event, TimeOrdered, redact};

use crate::bundle::Bundle;

/// Reads every stream once. Without a stream from inside a guest there are neither chains nor calls. Names of files and
/// guests are those of the manifest; with `redacted` programs have other names too. A call comes behind the bios that it
/// waited for.
pub fn each(
    bundle: &mut Bundle,
    redacted: bool,
    chains: impl FnMut(Story) + 'static,
    calls: impl FnMut(CallStory) + 'static,
) -> Analysis {
    let mut options = Options::default();
    options.story = Some(StoryChoice::All);
    options.call_story = Some(StoryChoice::All);
    options.image_maps = std::mem::take(&mut bundle.image_maps);

    let mut analyzer = Analyzer::new(&bundle.manifest, options);
    analyzer.each_story(chains);
    analyzer.each_call(calls);
    let named = |mut event: Event| {
        if redacted {
            redact::event(&mut event);
        }
        event
    };
    let mut ordered: Vec<_> = bundle
        .guests
        .iter_mut()
        .map(|guest| {
            let events = TimeOrdered::new(guest.stream.events());
            (guest.side, events.map(named))
        })
        .collect();
    let guests = ordered
        .iter_mut()
        .map(|(side, events)| GuestEvents::new(*side, events))
        .collect();
    analyzer.push_streams(TimeOrdered::new(bundle.host.events()), guests);
    analyzer.finish()
}

/// How many spans of a layer an I/O trace has.
pub fn count(span: &StorySpan, layer: StoryLayer) -> u64 {
    let beneath: u64 = span.children.iter().map(|child| count(child, layer)).sum();
    beneath + u64::from(span.layer == layer)
}
