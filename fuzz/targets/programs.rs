//! Any bytes as the program that a process says it runs, and as a file of debug symbols: no panic, every table is bounded, and what is
//! found lies in the file.

use nestrace_kernel::probes::QEMU;
use nestrace_record::guest::executable::emulator_of_bytes;
use nestrace_record::qemu_symbols::{Located, locate, locate_with};

/// Probes of a program that are kept.
const MAX_USDT: usize = 16_384;

/// Checks one input: the first two bytes say where the file of debug symbols begins.
pub fn check(input: &[u8]) {
    let names: Vec<&str> = QEMU.iter().map(|probe| probe.target).collect();
    let Some((length, rest)) = input.split_first_chunk::<2>() else {
        return;
    };
    let at = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (debug, program) = rest.split_at(at);
    let located = locate(program, &names);
    within(&located, program, &names);
    if let Ok(located) = locate_with(program, debug, &names) {
        within(&located, program, &names);
    }
    let (_, version) = emulator_of_bytes(program);
    assert!(version.is_none_or(|version| (1..=64).contains(&version.len())));
}

fn within(located: &Located, program: &[u8], names: &[&str]) {
    let length = program.len() as u64;
    assert!(
        located
            .symbols
            .keys()
            .all(|name| names.contains(&name.as_str()))
    );
    assert!(located.symbols.values().all(|offset| *offset < length));
    assert!(located.usdt.len() <= MAX_USDT);
    for probe in &located.usdt {
        assert!(probe.location < length);
        assert!(probe.semaphore.is_none_or(|semaphore| semaphore < length));
        assert!(probe.provider.len() + probe.name.len() + probe.args.len() <= program.len());
    }
}
