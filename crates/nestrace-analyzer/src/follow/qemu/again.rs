//! A request that an error stopped (`werror=stop`) starts again, with the same cookie; so does another one there,
//! where the end of the first was lost.

/// What the second start would be, were it that of another request: one that lies elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Again {
    /// Place of the first time.
    pub offset: u64,
    /// Of the second time.
    pub serial: u64,
    pub start_ns: u64,
}

impl Again {
    /// Its own serial and start, where it lies at `offset` and that is another request's place.
    pub(super) fn is_another_at(self, offset: u64) -> Option<(u64, u64)> {
        (self.offset != offset).then_some((self.serial, self.start_ns))
    }
}
