//! A listener that gets calls one by one.

use crate::result::analysis::CallStory;

/// Takes calls one by one.
#[derive(Default)]
pub(crate) struct CallListener(pub(crate) Option<Box<dyn FnMut(CallStory)>>);

impl std::fmt::Debug for CallListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CallListener")
            .field(&self.0.is_some())
            .finish()
    }
}
