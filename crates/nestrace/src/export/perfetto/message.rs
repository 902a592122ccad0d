//! Protocol buffers' wire format, as far as a trace needs it: varints, 64-bit words, bytes and messages.
//!
//! Written by hand: an encoder of five functions needs neither a code generator nor Perfetto's schema.
//! (<https://protobuf.dev/programming-guides/encoding/>)

/// A message that is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    bytes: Vec<u8>,
}

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

impl Message {
    /// What was written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A number (`uint64`, `uint32`, an enumeration's value).
    pub fn number(mut self, field: u32, value: u64) -> Self {
        self.tag(field, VARINT);
        self.varint(value);
        self
    }

    /// A signed number (`int64`): a negative one takes ten bytes.
    pub fn signed(self, field: u32, value: i64) -> Self {
        self.number(field, value.cast_unsigned())
    }

    /// A number of eight bytes (`fixed64`).
    pub fn fixed(mut self, field: u32, value: u64) -> Self {
        self.tag(field, FIXED64);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// A text.
    pub fn text(mut self, field: u32, text: &str) -> Self {
        self.put(field, text.as_bytes());
        self
    }

    /// A message within this one.
    pub fn message(mut self, field: u32, message: &Self) -> Self {
        self.put(field, &message.bytes);
        self
    }

    fn put(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, LENGTH);
        self.varint(bytes.len() as u64);
        self.bytes.extend(bytes);
    }

    fn tag(&mut self, field: u32, wire: u32) {
        self.varint(u64::from(field << 3 | wire));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification() {
        let none = Message::default;
        for (message, expected) in [
            (none().number(1, 150), &[0x08, 0x96, 0x01][..]),
            (none().text(2, "testing"), b"\x12\x07testing"),
            (
                none().message(3, &none().number(1, 150)),
                &[0x1a, 0x03, 0x08, 0x96, 0x01],
            ),
            (
                none().signed(1, -2),
                &[
                    0x08, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
                ],
            ),
            (none().fixed(47, 1), &[0xf9, 0x02, 1, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            assert_eq!(message.bytes(), expected);
        }
    }
}
