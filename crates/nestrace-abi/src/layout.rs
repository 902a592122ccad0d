//! Field offsets that the collector reads from BTF and hands to the probes, one global each.
