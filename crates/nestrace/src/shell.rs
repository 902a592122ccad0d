//! What a package installs beside the command: completions and man pages.

use std::{fs, path::Path};

use clap::{Command, CommandFactory};

use crate::{
    cli::{Cli, CompletionsArgs, ManArgs},
    exit::{DONE, FAILURE, Failure, USAGE, print, say},
    page_file::put,
};

/// `nestrace completions SHELL`.
pub fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "nestrace", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(DONE)
}

/// `nestrace man`.
pub fn man(args: &ManArgs) -> Result<u8, Failure> {
    let root = built();
    if let Some(folder) = &args.dir {
        return write_all(&root, folder);
    }
    let mut command = &root;
    for name in &args.command {
        command = command.find_subcommand(name).ok_or_else(|| {
            let known: Vec<&str> = subcommands(command).map(Command::get_name).collect();
            let wrong = format!(
                "{} has no command {name}",
                command.get_bin_name().unwrap_or("nestrace")
            );
            let failure = Failure::new(USAGE, wrong);
            match known.is_empty() {
                true => failure,
                false => failure.hint(format!("its commands: {}", known.join(", "))),
            }
        })?;
    }
    print(&String::from_utf8_lossy(&page(command, &root)?))?;
    Ok(DONE)
}

/// The command with all that its parts take from it.
fn built() -> Command {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    root
}

fn write_all(root: &Command, folder: &Path) -> Result<u8, Failure> {
    fs::create_dir_all(folder)
        .map_err(|error| Failure::new(FAILURE, format!("create {}: {error}", folder.display())))?;
    let commands = with_all_below(root);
    for command in &commands {
        let file = folder.join(format!("{}.1", name_of(command)));
        put(&file, &page(command, root)?)?;
    }
    let (n, folder) = (commands.len(), folder.display());
    say(format_args!("wrote {n} pages to {folder}"));
    say(format_args!("next: man {folder}/nestrace.1"));
    Ok(DONE)
}

fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|one| !one.is_hide_set())
}

/// A command, those below it, and so on.
fn with_all_below(command: &Command) -> Vec<&Command> {
    let below = subcommands(command).flat_map(with_all_below);
    [command].into_iter().chain(below).collect()
}

/// `nestrace-lab-run`: what its page is called.
fn name_of(command: &Command) -> &str {
    command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
}

/// The page of a command, with the names of the others.
fn page(command: &Command, root: &Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .source(concat!("nestrace ", env!("CARGO_PKG_VERSION")))
        .render(&mut page)
        .map_err(|error| Failure::caused(FAILURE, &error))?;
    let all = with_all_below(root).into_iter().map(name_of);
    let others: Vec<String> = all
        .filter(|name| *name != name_of(command))
        .map(|name| format!("\\fB{}\\fR(1)", name.replace('-', "\\-")))
        .collect();
    page.extend(format!(".SH \"SEE ALSO\"\n.nh\n{}\n", others.join(", ")).bytes());
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_that_names_the_others() {
        let root = built();
        let commands = with_all_below(&root);
        let names: Vec<&str> = commands.iter().map(|command| name_of(command)).collect();
        for expected in ["nestrace", "nestrace-record", "nestrace-lab-run"] {
            assert!(names.contains(&expected), "{expected}: {names:?}");
        }
        for command in commands {
            let page = page(command, &root).expect("a page");
            let page = String::from_utf8(page).expect("text");
            let escaped = |name: &str| name.replace('-', "\\-");
            assert!(
                page.contains(&format!(".TH {} 1", name_of(command))),
                "{page}"
            );
            let (_, others) = page.split_once(".SH \"SEE ALSO\"").expect("a section");
            for name in &names {
                let is_named = others.contains(&format!("\\fB{}\\fR(1)", escaped(name)));
                assert_eq!(is_named, *name != name_of(command), "{name}: {others}");
            }
        }
    }
}
