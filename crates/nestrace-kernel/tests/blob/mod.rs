//! Makes BTF.
#![allow(dead_code, reason = "each test binary uses a part")]

use nestrace_kernel::btf::Btf;

/// Types and strings; numbers count on from `first_id`.
#[derive(Clone)]
pub struct Blob {
    types: Vec<u32>,
    strings: Vec<u8>,
    next_id: u32,
    first_string: u32,
}

impl Default for Blob {
    fn default() -> Self {
        Self {
            types: Vec::new(),
            strings: vec![0],
            next_id: 1,
            first_string: 0,
        }
    }
}

impl Blob {
    /// A module on top of a kernel.
    pub fn after(base: &Self) -> Self {
        let first_string = base.first_string + u32::try_from(base.strings.len()).unwrap();
        Self {
            types: Vec::new(),
            strings: Vec::new(),
            next_id: base.next_id,
            first_string,
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.types.len() * 4).unwrap();
        let strings = u32::try_from(self.strings.len()).unwrap();
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, length, length, strings].iter().chain(&self.types) {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(&self.strings);
        bytes
    }

    pub fn parse(&self) -> Btf {
        Btf::parse(&self.bytes()).expect("hand-made BTF parses")
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let offset = self.first_string + u32::try_from(self.strings.len()).unwrap();
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        offset
    }

    fn push(&mut self, kind: u32, vlen: usize, name: &str, word: u32, rest: &[u32]) -> u32 {
        let name = self.string(name);
        let flag = kind & 1 << 31;
        let info = flag | (kind & 0x1f) << 24 | u32::try_from(vlen).unwrap();
        self.types.extend([name, info, word]);
        self.types.extend(rest);
        self.next_id += 1;
        self.next_id - 1
    }

    pub fn int(&mut self, name: &str, size: u32) -> u32 {
        self.push(1, 0, name, size, &[size * 8])
    }

    /// A kind that is twelve bytes and refers to a type.
    pub fn reference(&mut self, kind: u32, name: &str, type_id: u32) -> u32 {
        self.push(kind, 0, name, type_id, &[])
    }

    /// A kind that is twelve bytes and has a size.
    pub fn sized(&mut self, kind: u32, name: &str, size: u32) -> u32 {
        self.push(kind, 0, name, size, &[])
    }

    pub fn array(&mut self, element: u32, index: u32, count: u32) -> u32 {
        self.push(3, 0, "", 0, &[element, index, count])
    }

    /// A struct (4) or union (5); members are name, type, offset in bits.
    pub fn members(
        &mut self,
        kind: u32,
        name: &str,
        size: u32,
        members: &[(&str, u32, u32)],
    ) -> u32 {
        let words: Vec<_> = members
            .iter()
            .flat_map(|(name, id, bits)| [self.string(name), *id, *bits])
            .collect();
        self.push(kind, members.len(), name, size, &words)
    }

    pub fn enumerators(
        &mut self,
        kind: u32,
        name: &str,
        size: u32,
        values: &[(&str, &[u32])],
    ) -> u32 {
        let mut words = Vec::new();
        for (name, value) in values {
            words.push(self.string(name));
            words.extend(*value);
        }
        self.push(kind, values.len(), name, size, &words)
    }

    pub fn params(&mut self, returns: u32, params: &[(&str, u32)]) -> u32 {
        let words: Vec<_> = params
            .iter()
            .flat_map(|(name, id)| [self.string(name), *id])
            .collect();
        self.push(13, params.len(), "", returns, &words)
    }

    pub fn variable(&mut self, name: &str, type_id: u32) -> u32 {
        self.push(14, 0, name, type_id, &[0])
    }

    pub fn data_section(&mut self, name: &str, entries: &[(u32, u32, u32)]) -> u32 {
        let words: Vec<_> = entries
            .iter()
            .flat_map(|(id, offset, size)| [*id, *offset, *size])
            .collect();
        self.push(15, entries.len(), name, 0, &words)
    }

    pub fn decl_tag(&mut self, name: &str, type_id: u32) -> u32 {
        self.push(17, 0, name, type_id, &[u32::MAX])
    }
}
