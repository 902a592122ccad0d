//! A map for what is in flight: of few things at a time, and each found several times.

use std::mem;

use crate::model::pointer::PointerMap;

/// Things by a number that names them: an address, or an offset.
///
/// Each number has one place in an array. Where another one's thing is in it already, and only then, the thing goes to a
/// hash map: to hash and to search costs more than most of what is done with a bio. `N` is a power of two, and some times
/// what is mostly in flight.
#[derive(Clone, Debug)]
pub(crate) struct Places<T, const N: usize> {
    places: Vec<Option<(u64, T)>>,
    others: PointerMap<u64, T>,
    n_in_places: usize,
}

impl<T, const N: usize> Default for Places<T, N> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            others: PointerMap::default(),
            n_in_places: 0,
        }
    }
}

/// Spreads the numbers of neighbours over the places (Knuth's multiplicative hashing).
#[inline]
const fn place_of<const N: usize>(number: u64) -> usize {
    const { assert!(N.is_power_of_two() && N > 1) };
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - N.trailing_zeros())) as usize
}

impl<T, const N: usize> Places<T, N> {
    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        match self.places.get(place_of::<N>(number)) {
            Some(Some((known, thing))) if *known == number => Some(thing),
            _ if self.others.is_empty() => None,
            _ => self.others.get(&number),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        match self.places.get_mut(place_of::<N>(number)) {
            Some(Some((known, thing))) if *known == number => Some(thing),
            _ if self.others.is_empty() => None,
            _ => self.others.get_mut(&number),
        }
    }

    /// Puts a thing there; the one that was there before.
    #[inline]
    pub(crate) fn insert(&mut self, number: u64, thing: T) -> Option<T> {
        match self.place_for(number) {
            Some(Some((_, known))) => Some(mem::replace(known, thing)),
            Some(place) => {
                *place = Some((number, thing));
                self.n_in_places += 1;
                None
            }
            None => self.others.insert(number, thing),
        }
    }

    #[inline]
    pub(crate) fn get_or_default(&mut self, number: u64) -> &mut T
    where
        T: Default,
    {
        if self.place_for(number).is_none() {
            return self.others.entry(number).or_default();
        }
        let place = &mut self.places[place_of::<N>(number)];
        if place.is_none() {
            self.n_in_places += 1;
        }
        let (_, thing) = place.get_or_insert_with(|| (number, T::default()));
        thing
    }

    /// The place of a number, which is empty or its own; `None` where its thing belongs to the others.
    #[inline]
    fn place_for(&mut self, number: u64) -> Option<&mut Option<(u64, T)>> {
        if self.places.is_empty() {
            self.places.resize_with(N, || None);
        }
        let is_elsewhere = !self.others.is_empty() && self.others.contains_key(&number);
        let place = &mut self.places[place_of::<N>(number)];
        let fits = match place {
            Some((known, _)) => *known == number,
            None => !is_elsewhere,
        };
        fits.then_some(place)
    }

    #[inline]
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        if let Some(place) = self.places.get_mut(place_of::<N>(number))
            && let Some((_, thing)) = place.take_if(|(known, _)| *known == number)
        {
            self.n_in_places -= 1;
            return Some(thing);
        }
        if self.others.is_empty() {
            return None;
        }
        self.others.remove(&number)
    }

    /// Changes a thing, and takes it out if nothing is left of it. It is not moved on its way out.
    #[inline]
    pub(crate) fn change<R>(
        &mut self,
        number: u64,
        change: impl FnOnce(&mut T) -> R,
        is_empty: impl FnOnce(&T) -> bool,
    ) -> Option<R> {
        if let Some(place) = self.places.get_mut(place_of::<N>(number))
            && let Some((known, thing)) = place
            && *known == number
        {
            let result = change(thing);
            if is_empty(thing) {
                *place = None;
                self.n_in_places -= 1;
            }
            return Some(result);
        }
        if self.others.is_empty() {
            return None;
        }
        let thing = self.others.get_mut(&number)?;
        let result = change(thing);
        if is_empty(thing) {
            self.others.remove(&number);
        }
        Some(result)
    }

    pub(crate) fn len(&self) -> usize {
        self.n_in_places + self.others.len()
    }

    /// All numbers and things, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let in_places = self.places.iter().flatten();
        let in_places = in_places.map(|(number, thing)| (*number, thing));
        let others = self.others.iter();
        in_places.chain(others.map(|(number, thing)| (*number, thing)))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, thing)| thing)
    }

    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        let in_places = self.places.into_iter().flatten();
        in_places
            .map(|(_, thing)| thing)
            .chain(self.others.into_values())
    }

    /// Keeps some.
    pub(crate) fn retain(&mut self, mut is_kept: impl FnMut(u64, &mut T) -> bool) {
        for place in &mut self.places {
            if place
                .take_if(|(number, thing)| !is_kept(*number, thing))
                .is_some()
            {
                self.n_in_places -= 1;
            }
        }
        self.others.retain(|number, thing| is_kept(*number, thing));
    }

    /// Takes some out.
    pub(crate) fn extract_if(&mut self, mut is_taken: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for place in &mut self.places {
            if let Some((_, thing)) = place.take_if(|(_, thing)| is_taken(thing)) {
                taken.push(thing);
            }
        }
        self.n_in_places -= taken.len();
        let others = self.others.extract_if(|_, thing| is_taken(thing));
        taken.extend(others.map(|(_, thing)| thing));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Whatever is done to it, it holds what a plain map holds: with two places, nearly all numbers meet another one.
        #[test]
        fn is_a_map(steps in prop::collection::vec((0u8..9, 0u64..12), 0..120)) {
            let mut places: Places<u64, 2> = Places::default();
            let mut map = BTreeMap::new();
            for (step, number) in steps {
                match step {
                    0 | 1 => prop_assert_eq!(
                        places.insert(number, number * 10), map.insert(number, number * 10)
                    ),
                    2 => {
                        *places.get_or_default(number) += 1;
                        *map.entry(number).or_default() += 1;
                    }
                    3 | 4 => prop_assert_eq!(places.remove(number), map.remove(&number)),
                    5 => {
                        places.retain(|known, _| known % 3 != number % 3);
                        map.retain(|known, _| known % 3 != number % 3);
                    }
                    6 => {
                        let mut taken = places.extract_if(|thing| thing % 4 == number % 4);
                        taken.sort_unstable();
                        let mut expected: Vec<u64> =
                            map.extract_if(.., |_, thing| *thing % 4 == number % 4)
                                .map(|(_, thing)| thing).collect();
                        expected.sort_unstable();
                        prop_assert_eq!(taken, expected);
                    }
                    7 => {
                        let half = |thing: &mut u64| { *thing /= 2; *thing };
                        let halved = places.change(number, half, |thing| thing % 5 < 2);
                        prop_assert_eq!(halved, map.get_mut(&number).map(half));
                        map.retain(|known, thing| *known != number || *thing % 5 >= 2);
                    }
                    _ => {
                        if let Some(thing) = places.get_mut(number) { *thing += 1 }
                        if let Some(thing) = map.get_mut(&number) { *thing += 1 }
                    }
                }
                prop_assert_eq!(places.get(number), map.get(&number));
                prop_assert_eq!(places.len(), map.len());
                let all: BTreeMap<u64, u64> = places.iter().map(|(n, thing)| (n, *thing)).collect();
                prop_assert_eq!(&all, &map);
            }
            let mut values: Vec<u64> = places.into_values().collect();
            values.sort_unstable();
            let mut expected: Vec<u64> = map.into_values().collect();
            expected.sort_unstable();
            prop_assert_eq!(values, expected);
        }
    }
}
