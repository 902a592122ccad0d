//! Puts the kernel's own functions that turn preemption off and on where the probes ask for them
//! (`ebpf/src/preemption.rs`).

use aya::Btf;
use aya_obj::btf::BtfKind;
use nestrace_abi::layout::{PREEMPT_DISABLE_MARK, PREEMPT_ENABLE_MARK};

/// `call` of a helper: operation code, registers and offset.
const CALL_HELPER: [u8; 4] = [0x85, 0, 0, 0];
/// `call` of a function of the kernel by its type's number (`BPF_PSEUDO_KFUNC_CALL`).
const CALL_KERNEL: [u8; 4] = [0x85, 0x20, 0, 0];
/// `r0 = 0`: as a call leaves it undefined, so may this.
const NOTHING: [u8; 8] = [0xb7, 0, 0, 0, 0, 0, 0, 0];
const INSTRUCTION: usize = 8;

/// Numbers of the kernel's two functions among its types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptFunctions {
    disable: u32,
    enable: u32,
}

impl PreemptFunctions {
    /// `None` where the kernel has none (before 6.10).
    #[must_use]
    pub fn find(kernel: &Btf) -> Option<Self> {
        let number = |name| kernel.id_by_type_name_kind(name, BtfKind::Func).ok();
        Some(Self {
            disable: number("bpf_preempt_disable")?,
            enable: number("bpf_preempt_enable")?,
        })
    }
}

/// The object as this kernel is to load it: with calls of its functions, or without any.
///
/// A mark is a whole instruction at a multiple of eight bytes, where an object's code lies.
#[must_use]
pub fn settle(object: &[u8], functions: Option<PreemptFunctions>) -> Vec<u8> {
    let mut settled = object.to_vec();
    for instruction in settled.chunks_exact_mut(INSTRUCTION) {
        let Some((operation, mark)) = instruction.split_first_chunk::<4>() else {
            continue;
        };
        let mark = mark.first_chunk::<4>().copied().map(u32::from_le_bytes);
        let function = match mark {
            Some(PREEMPT_DISABLE_MARK) => functions.map(|functions| functions.disable),
            Some(PREEMPT_ENABLE_MARK) => functions.map(|functions| functions.enable),
            _ => continue,
        };
        if *operation != CALL_HELPER {
            continue;
        }
        let call = match function {
            Some(number) => {
                let mut call = [0; INSTRUCTION];
                let (operation, immediate) = call.split_at_mut(4);
                operation.copy_from_slice(&CALL_KERNEL);
                immediate.copy_from_slice(&number.to_le_bytes());
                call
            }
            None => NOTHING,
        };
        instruction.copy_from_slice(&call);
    }
    settled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::PROBES;

    fn count(object: &[u8], pattern: [u8; 8]) -> usize {
        let instructions = object.chunks_exact(INSTRUCTION);
        instructions.filter(|found| **found == pattern).count()
    }

    fn call(operation: [u8; 4], immediate: u32) -> [u8; 8] {
        let mut call = [0; INSTRUCTION];
        call[..4].copy_from_slice(&operation);
        call[4..].copy_from_slice(&immediate.to_le_bytes());
        call
    }

    #[test]
    fn every_mark_of_the_probes_becomes_a_call_of_the_kernel_or_nothing() {
        let n_off = count(PROBES, call(CALL_HELPER, PREEMPT_DISABLE_MARK));
        let n_on = count(PROBES, call(CALL_HELPER, PREEMPT_ENABLE_MARK));
        assert!(n_off >= 40 && n_on >= 40, "{n_off} {n_on}");
        let functions = PreemptFunctions {
            disable: 71_354,
            enable: 71_355,
        };
        let with = settle(PROBES, Some(functions));
        let without = settle(PROBES, None);
        for mark in [PREEMPT_DISABLE_MARK, PREEMPT_ENABLE_MARK] {
            assert_eq!(count(&with, call(CALL_HELPER, mark)), 0);
            assert_eq!(count(&without, call(CALL_HELPER, mark)), 0);
        }
        assert_eq!(count(&with, call(CALL_KERNEL, 71_354)), n_off);
        assert_eq!(count(&with, call(CALL_KERNEL, 71_355)), n_on);
        assert_eq!(
            count(&without, NOTHING),
            count(PROBES, NOTHING) + n_off + n_on
        );
    }
}
