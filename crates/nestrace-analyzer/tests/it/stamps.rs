//! Stamps that no clock shows.

/// What a kernel's clock cannot show begins here for the analyzer.
pub const EDGE: u64 = 1 << 62;
/// Stamps that follow one another.
pub const PATTERNS: [&[u64]; 7] = [
    &[0, u64::MAX],
    &[u64::MAX, 0],
    &[0, 0, 0, u64::MAX],
    &[0, EDGE - 1],
    &[EDGE - 1, EDGE - 1, 0],
    &[EDGE, EDGE - 1, 1],
    &[i64::MAX as u64, 1 << 63, u64::MAX - 1, 1],
];
