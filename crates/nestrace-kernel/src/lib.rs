//! What a kernel offers, read from its own description of itself.
//!
//! Pure: the caller hands bytes in. Nothing here opens a file, reads a clock or looks at `/proc`, so
//! "what attaches on 6.1?" is a test without root. The crate sits above `nestrace-abi` alone.
//!
//! ```
//! use nestrace_kernel::btf::Btf;
//! // 24 bytes of header, no types, one empty string: the smallest BTF.
//! let mut bytes = vec![0x9f, 0xeb, 1, 0];
//! for word in [24u32, 0, 0, 0, 1] {
//!     bytes.extend(word.to_le_bytes());
//! }
//! bytes.push(0);
//! let btf = Btf::parse(&bytes)?;
//! assert_eq!(btf.offset_of("bio", "bi_iter.bi_sector"), None);
//! # Ok::<(), nestrace_kernel::btf::BtfError>(())
//! ```

pub mod btf;
pub mod facts;
mod how;
pub mod kallsyms;
pub mod layout;
pub mod needs;
pub mod plan;
pub mod preemption;
pub mod probes;
pub mod smb;
pub mod throttle;
pub mod tracepoint_format;
pub mod uring;
