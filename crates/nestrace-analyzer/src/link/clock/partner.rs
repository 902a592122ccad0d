//! What came of the search for a partner.

/// What came of the search for a partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Partner {
    /// It has its partner.
    Certain,
    /// It has several possible ones.
    Ambiguous,
    /// It has none.
    Miss,
}
