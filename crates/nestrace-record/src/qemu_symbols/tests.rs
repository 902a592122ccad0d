use std::fs;
use std::path::Path;
use std::process::Command;

use super::debug_file;
use super::{Located, locate, locate_in};
use nestrace_kernel::probes::QEMU;
use proptest::prelude::*;

/// Three USDT probes as `sys/sdt.h` lays them down, and two functions, one of them static.
const PROGRAM: &str = r#"
typedef unsigned short semaphore_t;
semaphore_t counted_semaphore __attribute__((section(".probes"), used)) = 0;
#define NOTE(name, semaphore, args) __asm__ volatile( \
    "990: nop\n" \
    ".pushsection .note.stapsdt,\"?\",\"note\"\n.balign 4\n" \
    ".4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n" \
    "993: .8byte 990b, _.stapsdt.base, " semaphore "\n" \
    ".asciz \"qemu\"\n.asciz \"" name "\"\n.asciz \"" args "\"\n994: .balign 4\n.popsection\n" \
    ".ifndef _.stapsdt.base\n.pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n" \
    ".size _.stapsdt.base, 1\n.popsection\n.endif\n")
__attribute__((noinline)) static int quiet(int x) { NOTE("counted", "counted_semaphore", "-4@%edi"); return x + 1; }
__attribute__((noinline)) int exported(int x) { NOTE("plain", "0", "8@%rdi 8@%rsi"); return quiet(x) * 3; }
int main(int argc, char **argv) { (void)argv; return exported(argc); }
"#;

fn compiled(arguments: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, program) = (folder.path().join("p.c"), folder.path().join("p"));
    fs::write(&source, PROGRAM).expect("the source is written");
    let status = Command::new("cc")
        .args(["-O1", "-o"])
        .args([&program, &source])
        .args(arguments)
        .status()
        .expect("cc runs (package gcc)");
    assert!(status.success());
    fs::read(program).expect("the program is there")
}

/// The bytes that the linker put at a function's address, as `objdump` has them.
fn code_of(elf: &[u8], function: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("p");
    fs::write(&path, elf).expect("the program is written");
    let option = format!("--disassemble={function}");
    let output = Command::new("objdump")
        .arg(option)
        .arg(&path)
        .output()
        .expect("objdump runs (package binutils)");
    let text = String::from_utf8(output.stdout).expect("text");
    let heading = format!("<{function}>:");
    let lines = text
        .lines()
        .skip_while(|line| !line.contains(&heading))
        .skip(1);
    let code = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split('\t').nth(1));
    let bytes = code
        .flat_map(str::split_ascii_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16));
    bytes.collect::<Result<_, _>>().expect("hexadecimal bytes")
}

#[test]
fn offsets_are_those_of_the_code() {
    let elf = compiled(&[]);
    let located = locate(
        &elf,
        &["exported", "quiet", "main", "absent", "counted_semaphore"],
    );
    assert_eq!(
        located.symbols.keys().collect::<Vec<_>>(),
        ["exported", "main", "quiet"]
    );
    for (name, offset) in &located.symbols {
        let code = code_of(&elf, name);
        assert!(code.len() > 3, "{name}: {code:x?}");
        assert!(
            elf[*offset as usize..].starts_with(&code),
            "{name} at {offset:#x}"
        );
    }
}

#[test]
fn usdt_probes_are_where_the_nop_is() {
    let elf = compiled(&[]);
    let usdt = locate(&elf, &[]).usdt;
    let texts: Vec<_> = usdt
        .iter()
        .map(|probe| (&*probe.provider, &*probe.name, &*probe.args))
        .collect();
    assert_eq!(
        texts,
        [
            ("qemu", "counted", "-4@%edi"),
            ("qemu", "plain", "8@%rdi 8@%rsi")
        ]
    );
    for probe in &usdt {
        assert_eq!(elf[probe.location as usize], 0x90, "{probe:?}");
        assert_eq!(probe.semaphore.is_some(), probe.name == "counted");
    }
}

/// A stripped program that exports its functions, as Debian's QEMU is.
#[test]
fn stripped_and_exported() {
    let elf = compiled(&["-s", "-rdynamic"]);
    let located = locate(&elf, &["exported", "quiet"]);
    assert_eq!(located.symbols.keys().collect::<Vec<_>>(), ["exported"]);
    assert_eq!(located.usdt.len(), 2);
    assert_eq!(locate(&compiled(&["-s"]), &["exported"]).symbols.len(), 0);
}

/// Its debug symbols add all that is asked for, whatever else is known of it.
#[test]
fn a_debug_file_adds_what_is_missing() {
    const BUILD_ID: &str = "-Wl,--build-id=0x0123456789abcdef";
    let program = compiled(&["-s", "-rdynamic", BUILD_ID]);
    let debug = compiled(&["-rdynamic", BUILD_ID]);
    let mut located = locate(&program, &["exported"]);
    let names = ["quiet", "main"];
    let added = debug_file::add(&mut located, &program[..], &debug[..], &names);
    assert!(added.is_ok(), "{added:?}");
    let known: Vec<_> = located.symbols.keys().collect();
    assert_eq!(known, ["exported", "main", "quiet"]);
}

#[test]
fn debian_qemu_has_every_function() {
    let path = Path::new("/usr/bin/qemu-system-x86_64");
    let names: Vec<_> = QEMU.iter().map(|row| row.target).collect();
    let program = fs::File::open(path);
    let program = program.expect("qemu-system-x86_64 is installed (package qemu-system-x86)");
    let located = locate_in(&program, &names);
    assert_eq!(located.symbols.len(), names.len(), "{:?}", located.symbols);
    let elf = fs::read(path).expect("qemu is readable");
    assert_eq!(locate(&elf, &names), located);
}

#[test]
fn what_is_no_program() {
    for bytes in [
        &b""[..],
        b"#!/bin/sh\n",
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0",
    ] {
        let located = locate(bytes, &["main"]);
        assert!(located.problem.is_some() && located.symbols.is_empty());
    }
}

#[test]
fn damaged_programs_do_no_harm() {
    let elf = compiled(&[]);
    let changes = prop::collection::vec((0..elf.len(), any::<u8>()), 1..40);
    let cut = prop::option::weighted(0.2, 0..elf.len());
    proptest!(ProptestConfig { cases: 1000, ..ProptestConfig::default() }, |(changes in changes, cut in cut)| {
        let mut damaged = elf.clone();
        for (at, value) in changes {
            damaged[at] = value;
        }
        damaged.truncate(cut.unwrap_or(damaged.len()));
        let Located { symbols, usdt, .. } = locate(&damaged, &["exported", "main"]);
        // Offsets that are handed to the kernel lie within the segments that the file claims.
        prop_assert!(symbols.len() <= 2 && usdt.len() <= damaged.len());
    });
}

/// Tables of a size that no program has are refused before they are read, and soon.
#[test]
fn tables_without_end_are_refused() {
    let elf = compiled(&[]);
    let sections_at = u64::from_le_bytes(elf[40..48].try_into().unwrap()) as usize;
    let n_sections = usize::from(u16::from_le_bytes(elf[60..62].try_into().unwrap()));
    let headers = (0..n_sections).map(|index| sections_at + index * 64);
    let kind = |at: usize| u32::from_le_bytes(elf[at + 4..at + 8].try_into().unwrap());
    let symbols = headers.clone().find(|at| kind(*at) == 2).unwrap();
    let names = sections_at + 64 * elf[symbols + 40] as usize;
    for (section, bytes, expected) in [
        (
            symbols,
            24 * 3_000_000_u64,
            "it has too many symbols: 3000000, and 1048576 is the limit",
        ),
        (
            names,
            75 << 20,
            "it has too many bytes of symbol names: 78643200, and 16777216 is the limit",
        ),
        (
            symbols,
            24 << 20,
            "its symbols cannot be read: unexpected end of file",
        ),
    ] {
        let mut bomb = elf.clone();
        bomb[section + 32..section + 40].copy_from_slice(&bytes.to_le_bytes());
        let located = locate(&bomb, &["quiet"]);
        assert_eq!(located.problem.as_deref(), Some(expected));
        // What was read before stays.
        assert_eq!(located.usdt.len(), 2);
    }
}

/// What a symbol's address leads to is code: never data that the program writes.
#[test]
fn only_code_is_probed() {
    let elf = compiled(&[]);
    let offset = locate(&elf, &["quiet"]).symbols["quiet"];
    let segments_at = u64::from_le_bytes(elf[32..40].try_into().unwrap()) as usize;
    let n_segments = usize::from(u16::from_le_bytes(elf[56..58].try_into().unwrap()));
    let mut writable = elf.clone();
    for at in (0..n_segments).map(|index| segments_at + index * 56) {
        writable[at + 4] |= 2;
    }
    assert!(offset > 0 && locate(&writable, &["quiet"]).symbols.is_empty());
}
