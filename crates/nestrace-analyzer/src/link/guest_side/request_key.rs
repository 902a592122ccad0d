//! What a guest's request has in common with QEMU's.

use crate::link::clock::{Key, OpClass};
use crate::model::operation::Operation;
use crate::model::span::RequestSpan;

/// What a request has in common with QEMU's; `None` for those that QEMU does not account.
pub(super) fn key(request: &RequestSpan) -> Option<Key> {
    if request.flush {
        return Some(Key {
            class: OpClass::Flush,
            offset: 0,
            bytes: 0,
        });
    }
    let class = match request.operation {
        Operation::Read => OpClass::Read,
        Operation::Write => OpClass::Write,
        Operation::Discard => OpClass::Discard,
        Operation::Other => return None,
    };
    Some(Key {
        class,
        offset: request.offset,
        bytes: request.bytes,
    })
}
