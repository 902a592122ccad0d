//! The layers of a disk's chains.

use nestrace_analyzer::analysis::{Chains, SegmentLayer};
use nestrace_trace::printable;

/// Whether a layer of the disk was not seen.
pub(crate) fn is_folded(chains: &Chains, layer: &str) -> bool {
    chains.folded.iter().any(|folded| folded == layer)
}

/// `dm-0 (crypt)`; of a file its name without the folder.
pub(crate) fn layer_name(layer: &SegmentLayer) -> String {
    let name = layer.name.rsplit('/').next().unwrap_or_default();
    format!("{} ({})", printable(name), printable(&layer.kind))
}
