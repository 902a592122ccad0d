//! Memory of what has ended, for what begins: bios and requests are many, and short-lived.

/// Boxes that are kept. More things are in flight seldom.
const MOST: usize = 1 << 12;
/// A list in such memory keeps room for so many things: most requests have fewer bios.
pub(crate) const MAX_LISTED: usize = 32;

#[derive(Debug)]
pub(crate) struct Spare<T>(Vec<Box<T>>);

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Spare<T> {
    /// A place for something that begins.
    #[inline]
    pub(crate) fn boxed(&mut self, thing: impl FnOnce() -> T) -> Box<T> {
        match self.take() {
            Some(mut spare) => {
                *spare = thing();
                spare
            }
            None => Box::new(thing()),
        }
    }

    /// Something that has ended, with whatever memory it has of its own.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Box<T>> {
        self.0.pop()
    }

    /// Something has ended.
    #[inline]
    pub(crate) fn keep(&mut self, ended: Box<T>) {
        if self.0.len() < MOST {
            self.0.push(ended);
        }
    }
}
