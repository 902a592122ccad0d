//! Follows a program as the kernel's verifier does, with constants known and all else unknown, and looks where a value that
//! came from one field's constant ends as an address.

use std::collections::{BTreeMap, BTreeSet};

use aya_obj::generated::bpf_insn;

/// The programs' constants: those of the kernel's fields are known, all others may hold anything.
#[derive(Clone, Copy, Debug)]
pub struct Constants<'a> {
    pub bytes: &'a [u8],
    /// Where the fields' lie.
    pub fields: &'a BTreeSet<usize>,
}

/// A constant of the programs.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub place: usize,
    pub bytes: usize,
}

/// What is known of a register or a word of the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Value {
    number: Option<u64>,
    /// It was made with the field's constant.
    from_field: bool,
    /// It points into the constants, or into the stack.
    points: Option<Points>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Points {
    Constants(u64),
    Stack(i64),
}

impl Value {
    fn known(number: u64) -> Self {
        Self {
            number: Some(number),
            ..Self::default()
        }
    }

    /// What is known of a value that is one or the other.
    fn or(self, other: Self) -> Self {
        Self {
            number: self.number.filter(|_| self.number == other.number),
            from_field: self.from_field || other.from_field,
            points: self.points.filter(|_| self.points == other.points),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    registers: [Value; 11],
    stack: BTreeMap<i64, Value>,
}

impl State {
    fn begin() -> Self {
        let mut state = Self::default();
        state.registers[10].points = Some(Points::Stack(0));
        state
    }

    /// Widens this by another one; whether it changed.
    fn join(&mut self, other: &Self) -> bool {
        let before = self.clone();
        for (ours, theirs) in self.registers.iter_mut().zip(other.registers) {
            *ours = ours.or(theirs);
        }
        for (place, value) in &mut self.stack {
            let theirs = other.stack.get(place).copied().unwrap_or_default();
            *value = value.or(theirs);
        }
        for (place, value) in &other.stack {
            let from_field = value.from_field;
            self.stack.entry(*place).or_insert(Value {
                from_field,
                ..Value::default()
            });
        }
        *self != before
    }
}

/// A program with the functions that it calls.
pub struct Function<'a> {
    instructions: &'a [bpf_insn],
    constants_map: i32,
}

mod class {
    pub const LD: u8 = 0;
    pub const LDX: u8 = 1;
    pub const ST: u8 = 2;
    pub const STX: u8 = 3;
    pub const ALU: u8 = 4;
    pub const JMP: u8 = 5;
    pub const JMP32: u8 = 6;
    pub const ALU64: u8 = 7;
}
const REGISTER_SOURCE: u8 = 8;
const MAP_VALUE: u8 = 2;
const FUNCTION: u8 = 4;
const PSEUDO_CALL: u8 = 1;
const PROBE_READS: [i32; 4] = [4, 45, 112, 113];
const PROBE_READ_USER: i32 = 112;

impl<'a> Function<'a> {
    pub fn new(instructions: &'a [bpf_insn], constants_map: i32) -> Self {
        Self {
            instructions,
            constants_map,
        }
    }

    /// Whether the field's constant becomes part of an address that is read.
    pub fn reads_at(&self, constants: Constants<'_>, field: Field) -> bool {
        let mut run = Run {
            function: self,
            constants,
            field,
            states: BTreeMap::new(),
            waiting: Vec::new(),
            read: false,
        };
        run.reach(0, &State::begin());
        while let Some(at) = run.waiting.pop() {
            if run.read {
                return true;
            }
            run.step(at);
        }
        run.read
    }
}

struct Run<'a> {
    function: &'a Function<'a>,
    constants: Constants<'a>,
    field: Field,
    states: BTreeMap<usize, State>,
    waiting: Vec<usize>,
    read: bool,
}

impl Run<'_> {
    fn reach(&mut self, at: usize, state: &State) {
        let changed = match self.states.get_mut(&at) {
            Some(there) => there.join(state),
            None => {
                self.states.insert(at, state.clone());
                true
            }
        };
        if changed {
            self.waiting.push(at);
        }
    }

    fn step(&mut self, at: usize) {
        let Some(instruction) = self.function.instructions.get(at).copied() else {
            return;
        };
        let mut state = self.states[&at].clone();
        let (code, offset, immediate) = (instruction.code, instruction.off, instruction.imm);
        let (to, from) = (
            usize::from(instruction.dst_reg()),
            usize::from(instruction.src_reg()),
        );
        let operand = if code & REGISTER_SOURCE != 0 {
            state.registers[from.min(10)]
        } else {
            Value::known(i64::from(immediate) as u64)
        };
        match code & 7 {
            class::LD => {
                let next = self.function.instructions[at + 1].imm;
                match instruction.src_reg() {
                    MAP_VALUE if immediate == self.function.constants_map => {
                        state.registers[to] = Value {
                            points: Some(Points::Constants(next as u64)),
                            ..Value::default()
                        };
                    }
                    FUNCTION => {
                        let callee = (at as i64 + 1 + i64::from(immediate)) as usize;
                        self.reach(callee, &State::begin());
                        state.registers[to] = Value::default();
                    }
                    0 => {
                        let number = u64::from(immediate as u32) | (next as u64) << 32;
                        state.registers[to] = Value::known(number);
                    }
                    _ => state.registers[to] = Value::default(),
                }
                self.reach(at + 2, &state);
                return;
            }
            class::LDX => {
                let size = size_of(code);
                state.registers[to] = self.load(&state, state.registers[from], offset, size);
            }
            class::ST | class::STX => {
                let address = state.registers[to];
                self.read |= address.from_field && address.points.is_none();
                let value = if code & 7 == class::STX {
                    state.registers[from]
                } else {
                    operand
                };
                let is_atomic = code & 0xe0 == 0xc0;
                if let Some(Points::Stack(place)) = address.points {
                    let size = size_of(code) as i64;
                    let begin = place + i64::from(offset);
                    state
                        .stack
                        .retain(|at, _| *at + 8 <= begin || *at >= begin + size);
                    state.stack.insert(begin, value);
                }
                if is_atomic {
                    state.registers[from] = Value::default();
                    state.registers[0] = Value::default();
                }
            }
            class::ALU | class::ALU64 => {
                let value = arithmetic(code, state.registers[to], operand);
                state.registers[to] = value;
            }
            class::JMP | class::JMP32 => {
                self.jump(at, instruction, state, operand);
                return;
            }
            _ => {}
        }
        self.reach(at + 1, &state);
    }

    fn load(&mut self, state: &State, address: Value, offset: i16, size: usize) -> Value {
        match address.points {
            Some(Points::Constants(place)) => {
                let place = place.wrapping_add_signed(i64::from(offset)) as usize;
                let is_known = self.constants.fields.contains(&place);
                let bytes = self.constants.bytes.get(place..place + size);
                let bytes = bytes.filter(|_| is_known);
                let mut word = [0; 8];
                if let Some(bytes) = bytes {
                    word[..size].copy_from_slice(bytes);
                }
                let field = self.field;
                Value {
                    number: bytes.map(|_| u64::from_le_bytes(word)),
                    from_field: place < field.place + field.bytes && field.place < place + size,
                    points: None,
                }
            }
            Some(Points::Stack(place)) => {
                let place = place + i64::from(offset);
                let exact = state.stack.get(&place).copied().unwrap_or_default();
                let value = Value {
                    number: exact
                        .number
                        .filter(|_| size == 8 || exact.number < Some(1 << (8 * size))),
                    ..exact
                };
                // A part of a longer word that the field is in.
                let of_field = state
                    .stack
                    .iter()
                    .any(|(at, value)| value.from_field && *at <= place && place < *at + 8);
                Value {
                    from_field: value.from_field || of_field,
                    points: value.points.filter(|_| size == 8),
                    ..value
                }
            }
            None => {
                self.read |= address.from_field;
                Value::default()
            }
        }
    }

    fn jump(&mut self, at: usize, instruction: bpf_insn, mut state: State, operand: Value) {
        let (code, offset) = (instruction.code, instruction.off);
        let target = (at as i64 + 1 + i64::from(offset)) as usize;
        match code & 0xf0 {
            0x00 if code & 7 == class::JMP32 => {
                let target = (at as i64 + 1 + i64::from(instruction.imm)) as usize;
                self.reach(target, &state);
            }
            0x00 => self.reach(target, &state),
            0x80 => {
                self.call(at, instruction, &state);
                forget_written(&mut state);
                for register in &mut state.registers[0..6] {
                    *register = Value::default();
                }
                self.reach(at + 1, &state);
            }
            0x90 => {}
            operation => {
                let left = state.registers[usize::from(instruction.dst_reg())];
                let narrow = code & 7 == class::JMP32;
                match decide(operation, left, operand, narrow) {
                    Some(true) => self.reach(target, &state),
                    Some(false) => self.reach(at + 1, &state),
                    None => {
                        self.reach(target, &state);
                        self.reach(at + 1, &state);
                    }
                }
            }
        }
    }

    fn call(&mut self, at: usize, instruction: bpf_insn, state: &State) {
        if instruction.src_reg() == PSEUDO_CALL {
            let callee = (at as i64 + 1 + i64::from(instruction.imm)) as usize;
            let mut begin = State::begin();
            for register in 1..6 {
                let value = state.registers[register];
                let is_stack = matches!(value.points, Some(Points::Stack(_)));
                begin.registers[register] = if is_stack { Value::default() } else { value };
            }
            self.reach(callee, &begin);
        } else if PROBE_READS.contains(&instruction.imm) && instruction.imm != PROBE_READ_USER {
            self.read |= state.registers[3].from_field;
        }
    }
}

/// What a function may have written into the stack, whose address it was given.
fn forget_written(state: &mut State) {
    let given = state.registers[1..6].iter();
    let places = given.filter_map(|register| match register.points {
        Some(Points::Stack(place)) => Some(place),
        _ => None,
    });
    if let Some(least) = places.min() {
        state.stack.retain(|place, _| *place + 8 <= least);
    }
}

fn size_of(code: u8) -> usize {
    match code & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}

fn arithmetic(code: u8, left: Value, right: Value) -> Value {
    let narrow = code & 7 == class::ALU;
    let operation = code & 0xf0;
    let from_field = right.from_field || (operation != 0xb0 && left.from_field);
    let moved = |points: Option<Points>, by: Option<u64>, sign: i64| match (points, by) {
        (Some(Points::Constants(place)), Some(by)) => Some(Points::Constants(
            place.wrapping_add_signed(sign.wrapping_mul(by.cast_signed())),
        )),
        (Some(Points::Stack(place)), Some(by)) => Some(Points::Stack(
            place.wrapping_add(sign.wrapping_mul(by.cast_signed())),
        )),
        _ => None,
    };
    let points = match operation {
        0xb0 if !narrow => right.points,
        0x00 if !narrow => {
            moved(left.points, right.number, 1).or(moved(right.points, left.number, 1))
        }
        0x10 if !narrow => moved(left.points, right.number, -1),
        _ => None,
    };
    let cut = |number: u64| if narrow { number & 0xffff_ffff } else { number };
    let both = left.number.zip(right.number);
    let number = match operation {
        0xb0 => right.number,
        0x00 => both.map(|(a, b)| a.wrapping_add(b)),
        0x10 => both.map(|(a, b)| a.wrapping_sub(b)),
        0x20 => both.map(|(a, b)| a.wrapping_mul(b)),
        0x30 => both.and_then(|(a, b)| cut(a).checked_div(cut(b))),
        0x40 => both.map(|(a, b)| a | b),
        0x50 => both.map(|(a, b)| a & b),
        0x60 => both.map(|(a, b)| a.wrapping_shl(b as u32)),
        0x70 => both.map(|(a, b)| cut(a).wrapping_shr(b as u32)),
        0x80 => left.number.map(u64::wrapping_neg),
        0x90 => both.and_then(|(a, b)| cut(a).checked_rem(cut(b))),
        0xa0 => both.map(|(a, b)| a ^ b),
        0xd0 => left.number,
        _ => None,
    };
    Value {
        number: number.map(cut),
        from_field,
        points,
    }
}

fn decide(operation: u8, left: Value, right: Value, narrow: bool) -> Option<bool> {
    let (mut a, mut b) = left.number.zip(right.number)?;
    if narrow {
        (a, b) = (a & 0xffff_ffff, b & 0xffff_ffff);
    }
    let (c, d) = if narrow {
        (i64::from(a as i32), i64::from(b as i32))
    } else {
        (a.cast_signed(), b.cast_signed())
    };
    Some(match operation {
        0x10 => a == b,
        0x20 => a > b,
        0x30 => a >= b,
        0x40 => a & b != 0,
        0x50 => a != b,
        0x60 => c > d,
        0x70 => c >= d,
        0xa0 => a < b,
        0xb0 => a <= b,
        0xc0 => c < d,
        0xd0 => c <= d,
        _ => return None,
    })
}

/// Where a symbol of `.rodata` lies in it: the value of its entry in the symbol table.
pub fn symbol_place(object: &[u8], name: &str) -> usize {
    let number = |at: usize, n: usize| {
        let mut word = [0; 8];
        word[..n].copy_from_slice(&object[at..at + n]);
        u64::from_le_bytes(word) as usize
    };
    let (sections, size, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
    const SYMBOL_TABLE: usize = 2;
    for section in (0..count).map(|n| sections + n * size) {
        if number(section + 4, 4) != SYMBOL_TABLE {
            continue;
        }
        let (begin, bytes) = (number(section + 24, 8), number(section + 32, 8));
        let strings = number(sections + number(section + 40, 4) * size + 24, 8);
        for entry in (begin..begin + bytes).step_by(24) {
            let text = &object[strings + number(entry, 4)..];
            let end = text.iter().position(|byte| *byte == 0).unwrap_or_default();
            if &text[..end] == name.as_bytes() {
                return number(entry + 8, 8);
            }
        }
    }
    panic!("no symbol {name}");
}
