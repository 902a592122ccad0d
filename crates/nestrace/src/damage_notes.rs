//! What a new bundle says of damage in the one that it was made of.

#[cfg(feature = "parquet")]
use nestrace_trace::Manifest;
use nestrace_trace::manifest::Notice;

/// The word of [`guest_stream_damaged`].
pub use nestrace_analyzer::GUEST_STREAM_DAMAGED;

/// What a new bundle says of a guest's stream that was cut in the old one.
pub fn guest_stream_damaged(guest: &str) -> Notice {
    Notice {
        what: GUEST_STREAM_DAMAGED.to_owned(),
        message: format!("what was recorded inside {guest} is damaged or was not closed"),
        ..Notice::default()
    }
}

/// Whether a bundle says that of a guest's stream; without names it may be any guest's.
#[cfg(feature = "parquet")]
pub fn tells_of_damage_inside(manifest: &Manifest, guest: &str) -> bool {
    let told = guest_stream_damaged(guest).message;
    let without_names = GUEST_STREAM_DAMAGED.replace('_', " ");
    let mut notices = manifest.notices.iter();
    notices.any(|notice| {
        notice.what == GUEST_STREAM_DAMAGED && [&told, &without_names].contains(&&notice.message)
    })
}
