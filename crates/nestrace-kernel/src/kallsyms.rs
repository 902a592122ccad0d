//! Addresses of kernel functions, from the text of `/proc/kallsyms`.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// What `/proc/kallsyms` says of the names that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Address by name. A name that occurs several times (static functions) is left out, because it is
    /// ambiguous.
    pub found: BTreeMap<String, u64>,
    /// Names that occur more than once, at different addresses.
    pub ambiguous: Vec<String>,
    /// The kernel shows every address as 0 to this reader (`kptr_restrict`, or no CAP_SYSLOG).
    pub hidden: bool,
}

impl Addresses {
    /// Reads the whole listing once. The kernel's own symbol wins over a module's of the same name;
    /// lines that cannot be understood are passed over.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn read(mut listing: impl BufRead, names: &[&str]) -> io::Result<Self> {
        let mut wanted: BTreeMap<&str, Vec<(u64, bool)>> =
            names.iter().map(|name| (*name, Vec::new())).collect();
        let mut any_address = false;
        let mut any_line = false;
        let mut line = Vec::new();
        while next_line(&mut listing, &mut line)? {
            let Some((address, name, in_module)) = symbol(&line) else {
                continue;
            };
            any_line = true;
            any_address |= address != 0;
            if let Some(seen) = wanted.get_mut(name) {
                seen.push((address, in_module));
            }
        }
        let mut addresses = Self {
            hidden: any_line && !any_address,
            ..Self::default()
        };
        for (name, seen) in wanted {
            addresses.settle(name, &seen);
        }
        Ok(addresses)
    }

    fn settle(&mut self, name: &str, seen: &[(u64, bool)]) {
        let built_in = seen.iter().any(|(_, in_module)| !in_module);
        let mut places: Vec<u64> = seen
            .iter()
            .filter(|(address, in_module)| *address != 0 && !(built_in && *in_module))
            .map(|(address, _)| *address)
            .collect();
        places.sort_unstable();
        places.dedup();
        match places.as_slice() {
            [] => {}
            [only] => drop(self.found.insert(name.to_owned(), *only)),
            _ => self.ambiguous.push(name.to_owned()),
        }
    }
}

/// The longest line that is kept; symbols end at 512 bytes.
const MAX_LINE: u64 = 4096;

fn next_line(listing: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    Ok(io::Read::take(listing, MAX_LINE).read_until(b'\n', line)? != 0)
}

/// `ffffffff81000000 T name` or `ffffffffc0000000 t name [module]` (tab before `[`).
fn symbol(line: &[u8]) -> Option<(u64, &str, bool)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let _type = words.next()?;
    let name = words.next()?;
    Some((
        address,
        name,
        words.next().is_some_and(|word| word.starts_with('[')),
    ))
}

#[cfg(test)]
mod tests {
    use super::Addresses;

    const LISTING: &str = "\
ffffffff81000000 T _stext
ffffffff81234560 t end_io
ffffffffc0101000 t end_io\t[dm_mod]
ffffffffc0202000 t in_module\t[xfs]
ffffffff81300000 t twice
ffffffff81300040 t twice
not a symbol
";

    fn read(listing: &str, names: &[&str]) -> Addresses {
        Addresses::read(listing.as_bytes(), names).expect("reading from memory")
    }

    #[test]
    fn names_to_addresses() {
        let addresses = read(LISTING, &["end_io", "in_module", "twice", "absent"]);
        let found: Vec<_> = addresses
            .found
            .iter()
            .map(|(name, at)| (name.as_str(), *at))
            .collect();
        assert_eq!(
            found,
            [
                ("end_io", 0xffff_ffff_8123_4560),
                ("in_module", 0xffff_ffff_c020_2000)
            ]
        );
        assert_eq!(addresses.ambiguous, ["twice"]);
        assert!(!addresses.hidden);
    }

    #[test]
    fn hidden_addresses() {
        let hidden = "0000000000000000 T _stext\n0000000000000000 t end_io\n";
        let addresses = read(hidden, &["end_io"]);
        assert!(addresses.hidden && addresses.found.is_empty());
        assert!(!read("", &["end_io"]).hidden);
    }

    #[test]
    fn an_endless_line_is_cut() {
        let listing = format!("{}\n{LISTING}", "f".repeat(1 << 16));
        assert_eq!(read(&listing, &["end_io"]).found.len(), 1);
    }
}
