//! What a package installs beside the command: completions and a man page.

use clap::CommandFactory;

use crate::{
    cli::{Cli, CompletionsArgs},
    exit::{self, DONE, Failure, print},
};

/// `nestrace completions SHELL`.
pub fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "nestrace", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(DONE)
}

/// `nestrace man`.
pub fn man() -> Result<u8, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command())
        .render(&mut page)
        .map_err(|error| Failure::caused(exit::FAILURE, &error))?;
    print(&String::from_utf8_lossy(&page))?;
    Ok(DONE)
}
