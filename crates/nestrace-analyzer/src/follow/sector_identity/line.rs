//! A queue that seldom holds more than one thing, and then needs no memory of its own.

use std::collections::VecDeque;
use std::mem;

/// Things in their order. The first lies in the line itself: most sectors have one I/O, most requests one bio.
#[derive(Clone, Debug)]
pub(super) struct Line<T> {
    /// `None` only where there is nothing at all.
    first: Option<T>,
    others: VecDeque<T>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            first: None,
            others: VecDeque::new(),
        }
    }
}

impl<T> Line<T> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    #[inline]
    pub(super) fn push_back(&mut self, thing: T) {
        if self.first.is_none() {
            self.first = Some(thing);
        } else {
            self.others.push_back(thing);
        }
    }

    pub(super) fn push_front(&mut self, thing: T) {
        if let Some(second) = self.first.replace(thing) {
            self.others.push_front(second);
        }
    }

    pub(super) fn pop_front(&mut self) -> Option<T> {
        let second = self.others.pop_front();
        mem::replace(&mut self.first, second)
    }

    /// Adds things behind the last.
    pub(super) fn extend(&mut self, things: impl IntoIterator<Item = T>) {
        for thing in things {
            self.push_back(thing);
        }
    }

    /// Puts another line behind this one.
    pub(super) fn append(&mut self, other: &mut Self) {
        let Self { first, others } = mem::take(other);
        self.extend(first.into_iter().chain(others));
    }

    /// Takes out the first that is the one.
    #[inline]
    pub(super) fn take(&mut self, is_it: impl Fn(&T) -> bool) -> Option<T> {
        if self.first.as_ref().is_some_and(&is_it) {
            return self.pop_front();
        }
        let place = self.others.iter().position(is_it)?;
        self.others.remove(place)
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&T) -> bool) {
        self.others.retain(&is_kept);
        if !self.first.as_ref().is_some_and(is_kept) {
            self.first = self.others.pop_front();
        }
    }

    /// Keeps the first `most`.
    #[inline]
    pub(super) fn truncate(&mut self, most: usize) {
        if most == 0 {
            self.first = None;
        }
        self.others.truncate(most.saturating_sub(1));
    }

    /// Takes out everything, and keeps memory for `most`.
    #[inline]
    pub(super) fn clear(&mut self, most: usize) {
        self.truncate(0);
        self.others.shrink_to(most);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.others)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is done to it, it holds what a plain queue holds.
        #[test]
        fn is_a_queue(steps in prop::collection::vec((0u8..8, 0u8..8), 0..60)) {
            let (mut line, mut queue) = (Line::default(), VecDeque::new());
            for (step, value) in steps {
                match step {
                    0 | 1 => {
                        line.push_back(value);
                        queue.push_back(value);
                    }
                    2 => {
                        line.push_front(value);
                        queue.push_front(value);
                    }
                    3 => {
                        let place = queue.iter().position(|known| *known >= value);
                        let expected = place.and_then(|place| queue.remove(place));
                        prop_assert_eq!(line.take(|known| *known >= value), expected);
                    }
                    4 => {
                        line.retain(|known| known % 3 != value % 3);
                        queue.retain(|known| known % 3 != value % 3);
                    }
                    5 => prop_assert_eq!(line.pop_front(), queue.pop_front()),
                    6 => {
                        line.truncate(value.into());
                        queue.truncate(value.into());
                    }
                    _ => {
                        let mut more = Line::default();
                        (0..value).for_each(|n| more.push_back(n));
                        line.append(&mut more);
                        queue.extend(0..value);
                        if let Some(last) = line.iter_mut().last() {
                            *last = 7;
                            queue.back_mut().into_iter().for_each(|last| *last = 7);
                        }
                    }
                }
                prop_assert_eq!(line.is_empty(), queue.is_empty());
                prop_assert_eq!(line.len(), queue.len());
                prop_assert!(line.iter().eq(&queue));
            }
        }
    }
}
