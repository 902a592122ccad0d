//! Prints what the probes ask of a kernel, from its BTF: how `fixtures/kernel/*.txt` were made.
//!
//! ```text
//! cargo run -p nestrace-kernel --example layout -- /sys/kernel/btf
//! ```
//! The folder holds `vmlinux` and, where they are not built in, the modules of
//! `nestrace_kernel::probes::MODULES`, each the bytes of a `.BTF` section.

use std::error::Error;
use std::path::PathBuf;

use nestrace_kernel::btf::Btf;
use nestrace_kernel::layout::{KernelTypes, Layout};
use nestrace_kernel::probes::MODULES;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(
        std::env::args_os()
            .nth(1)
            .unwrap_or("/sys/kernel/btf".into()),
    );
    let mut types = KernelTypes::new(Btf::parse(&std::fs::read(folder.join("vmlinux"))?)?);
    for module in MODULES {
        let path = folder.join(module);
        if path.exists() {
            let btf = Btf::parse_split(&std::fs::read(path)?, types.vmlinux())?;
            println!("# module {module}");
            types.add_module(*module, btf);
        }
    }
    print!("{}", Layout::read(&types).to_text());
    Ok(())
}
