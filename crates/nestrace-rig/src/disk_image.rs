//! Makes disk images.

use std::path::Path;

use crate::external_tool::{Tool, ToolError};
use crate::stack::ImageFormat;

/// Makes a sparse image of `size_bytes`; `preallocation` is qemu-img's word (`off`, `metadata`,
/// `falloc`, `full`).
///
/// # Errors
/// qemu-img is missing or refused.
pub fn create(
    path: &Path,
    format: ImageFormat,
    size_bytes: u64,
    preallocation: &str,
) -> Result<(), ToolError> {
    Tool::new("qemu-img")
        .args(["create", "-q", "-f", format.word(), "-o"])
        .arg(format!("preallocation={preallocation}"))
        .arg(path)
        .arg(size_bytes.to_string())
        .run()?;
    Ok(())
}
