//! The layers of a disk's chains.

use nestrace_analyzer::analysis::Chains;

/// Whether a layer of the disk was not seen.
pub(crate) fn is_folded(chains: &Chains, layer: &str) -> bool {
    chains.folded.iter().any(|folded| folded == layer)
}
