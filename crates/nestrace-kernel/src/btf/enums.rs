//! Values of enumerators.

use super::section::Section;
use super::types::{Kind, Type};

/// The value of an enumerator of this enum, or of any where `enum_name` is empty.
pub(super) fn enum_value(section: &Section, enum_name: &str, enumerator: &str) -> Option<i64> {
    if !enum_name.is_empty() {
        return section.named(enum_name).find_map(|found| {
            let found = match found.kind {
                Kind::Typedef => section.resolved(found.size_or_type)?,
                _ => found,
            };
            value(found, enumerator)
        });
    }
    let own = std::iter::once(section);
    own.chain(section.base.as_deref())
        .flat_map(|section| section.enums.iter().filter_map(|id| section.get(*id)))
        .find_map(|found| value(found, enumerator))
}

fn value(found: Type<'_>, enumerator: &str) -> Option<i64> {
    let is_it = |name| found.string(name) == Some(enumerator.as_bytes());
    match found.kind {
        Kind::Enum => {
            let [_, word] = found.entries::<2>().find(|[name, _]| is_it(*name))?;
            let signed = i64::from(word.cast_signed());
            Some(if found.kind_flag {
                signed
            } else {
                i64::from(word)
            })
        }
        Kind::Enum64 => {
            let [_, low, high] = found.entries::<3>().find(|[name, ..]| is_it(*name))?;
            Some((u64::from(high) << 32 | u64::from(low)).cast_signed())
        }
        _ => None,
    }
}
