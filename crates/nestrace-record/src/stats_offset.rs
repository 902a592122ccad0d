//! Where a BlockBackend of QEMU has its accounting.
//!
//! The probes see the address of the accounting, and the disk is found by the BlockBackend around it. QEMU's
//! `blk_get_stats(blk)` returns `&blk->stats` and does nothing else, so its code says how far that lies behind `blk`.

/// The function, among those that are looked for in QEMU's program.
pub const FUNCTION: &str = "blk_get_stats";
/// Bytes of its code that are read.
pub const CODE_BYTES: usize = 16;
/// A BlockBackend is smaller.
const MAX_OFFSET: u32 = 4096;

/// `endbr64`, which may come first.
const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
/// `lea disp32(%rdi),%rax`.
const LEA_32: &[u8] = &[0x48, 0x8d, 0x87];
/// `lea disp8(%rdi),%rax`.
const LEA_8: &[u8] = &[0x48, 0x8d, 0x47];
/// `ret`.
const RET: u8 = 0xc3;

/// The offset, if the code is just a sum and a return.
pub fn parse(code: &[u8]) -> Option<u64> {
    let code = code.strip_prefix(ENDBR64).unwrap_or(code);
    let (offset, rest) = if let Some(rest) = code.strip_prefix(LEA_32) {
        let (bytes, rest) = rest.split_first_chunk::<4>()?;
        (u32::from_le_bytes(*bytes), rest)
    } else {
        let (byte, rest) = code.strip_prefix(LEA_8)?.split_first()?;
        (u32::from(*byte), rest)
    };
    let is_plain = rest.first() == Some(&RET) && offset < MAX_OFFSET && offset.is_multiple_of(8);
    is_plain.then_some(u64::from(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_says_where() {
        let debian = [0x48, 0x8d, 0x87, 0x20, 0x01, 0, 0, 0xc3, 0x0f, 0x1f];
        assert_eq!(parse(&debian), Some(0x120));
        let guarded: Vec<u8> = [ENDBR64, &debian].concat();
        assert_eq!(parse(&guarded), Some(0x120));
        assert_eq!(parse(&[0x48, 0x8d, 0x47, 0x40, 0xc3]), Some(0x40));
        // Something else happens, or the sum is no plausible place.
        assert_eq!(parse(&[0x48, 0x8d, 0x87, 0x20, 0x01, 0, 0, 0x90]), None);
        assert_eq!(parse(&[0x48, 0x8d, 0x87, 0, 0, 0x10, 0, 0xc3]), None);
        assert_eq!(parse(&debian[..5]), None);
        assert_eq!(parse(&[]), None);
    }
}
