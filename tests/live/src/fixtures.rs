//! `cargo xtask fixtures`: the recordings that hold each rule to its case, made anew on live guests.
//!
//! [`recipes`] says how each is made, [`rules`] which rule it is for. Bundles and what the analysis found
//! in them are kept in `fixtures/findings`; a test of the command holds the rules to them without a guest.

mod host_guest;
mod index;
pub mod limits;
mod recipes;
mod rules;
mod stage;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use nestrace_rig::{interrupt, recorder};
use xtask::cargo_build::workspace;
use xtask::progress::Progress;

use crate::context::LiveContext;
use index::{Index, Made};
use recipes::Recipe;
use rules::{CHAINS, RULES};
use stage::Stage;

/// Of a bundle.
const LARGEST: u64 = 1 << 20;
/// PCI has slots for more, but a host file system each takes its time.
const DISKS_PER_GUEST: usize = 9;
/// A recording that lost events is made again.
const TRIES: usize = 4;
const SEED: u32 = 1;
const OTHER_SEED: u32 = 2;

/// Options of `fixtures`.
#[derive(clap::Args)]
pub struct FixturesArgs {
    /// Only this recording, or those of this rule; may be given several times
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// Folder of the recordings and their index
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Makes second recordings with another seed, holds the rules to them and keeps their figures alone
    #[arg(long)]
    check: bool,
    /// Makes recordings anew that are there and whose recipe has not changed
    #[arg(long)]
    again: bool,
    /// Makes none: looks anew at those that are there
    #[arg(long)]
    judge: bool,
    /// Is in a guest that plays the host's role
    #[arg(long, hide = true)]
    inside_guest: bool,
    /// Records with this nestrace instead of building one
    #[arg(long, value_name = "PROGRAM")]
    nestrace: Option<PathBuf>,
    /// Has this static nestrace-agent in the guests instead of building one
    #[arg(long, value_name = "PROGRAM")]
    agent: Option<PathBuf>,
}

/// Makes what is missing and holds the rules to it.
pub fn run(args: &FixturesArgs) -> anyhow::Result<ExitCode> {
    let wanted = wanted(&args.only)?;
    let folder = args
        .out
        .clone()
        .unwrap_or_else(|| workspace().join("fixtures/findings"));
    let seed = if args.check { OTHER_SEED } else { SEED };
    let name = if args.check {
        "second.json"
    } else {
        "index.json"
    };
    let mut index = Index::read(&folder.join(name))?;
    let progress = Progress::start();
    let ctx = LiveContext::prepare(args.nestrace.clone(), false, progress)?
        .with_agent(args.agent.clone())?;
    let work = Work {
        ctx: &ctx,
        folder: &folder,
        seed,
        keep: !args.check,
        inside_guest: args.inside_guest,
    };
    if args.judge {
        work.look_again(&wanted, &mut index)?;
    } else {
        let is_made = |recipe: &&Recipe| work.is_made(recipe, &index) && !args.again;
        let (made, missing): (Vec<_>, Vec<_>) = wanted.iter().copied().partition(is_made);
        progress.say(&format!(
            "{} are there, {} to make",
            made.len(),
            missing.len()
        ));
        let elsewhere = |recipe: &&Recipe| recipe.host.devices.is_some() && !args.inside_guest;
        let (elsewhere, here): (Vec<_>, Vec<_>) = missing.into_iter().partition(elsewhere);
        if !elsewhere.is_empty() {
            let check: &[&str] = if args.check { &["--check"] } else { &[] };
            host_guest::record(&ctx, &elsewhere, &folder, check)?;
            index = Index::read(&folder.join(name))?;
        }
        let same_guest =
            |a: &&Recipe, b: &&Recipe| (a.guest_kernel, a.qemu) == (b.guest_kernel, b.qemu);
        let guests = here.chunk_by(same_guest);
        for recipes in guests.flat_map(|recipes| recipes.chunks(DISKS_PER_GUEST)) {
            work.make(recipes, &mut index)?;
        }
    }
    let wrong = index.judge(RULES);
    for line in &wrong {
        println!("wrong: {line}");
    }
    println!("{} recordings, {} wrong", index.n_made(), wrong.len());
    Ok(if wrong.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The recipes that `--only` names, by themselves or by their rule.
fn wanted(only: &[String]) -> anyhow::Result<Vec<&'static Recipe>> {
    let rule = |id: &str| RULES.iter().find(|rule| rule.id == id);
    let mut names = Vec::new();
    for id in only {
        match rule(id) {
            Some(rule) => names.extend([rule.positive, rule.control]),
            None => names.push(id.as_str()),
        }
    }
    for name in &names {
        let known = recipes::all().iter().any(|recipe| recipe.name == *name);
        ensure!(known, "find a rule or recording called {name}");
    }
    let mut wanted = recipes::all();
    let kept = |name: &str| {
        let mut rules = RULES.iter();
        CHAINS.contains(&name) || rules.any(|it| it.positive == name || it.control == name)
    };
    wanted.retain(|recipe| match names.as_slice() {
        [] => kept(recipe.name),
        names => names.contains(&recipe.name),
    });
    Ok(wanted)
}

/// Where recordings go, and how they are made.
struct Work<'a> {
    ctx: &'a LiveContext,
    folder: &'a Path,
    seed: u32,
    /// Whether bundles stay, or their figures alone.
    keep: bool,
    inside_guest: bool,
}

impl Work<'_> {
    fn bundle(&self, recipe: &Recipe) -> PathBuf {
        if self.keep {
            self.folder.join(format!("{}.nest", recipe.name))
        } else {
            self.ctx.bundle(recipe.name)
        }
    }

    fn is_made(&self, recipe: &Recipe, index: &Index) -> bool {
        let known = index.get(recipe.name);
        let same = known.is_some_and(|made| made.recipe == index::describe(recipe));
        same && (!self.keep || self.bundle(recipe).is_dir())
    }

    /// Records the loads of these recipes in one guest.
    fn make(&self, recipes: &[&'static Recipe], index: &mut Index) -> anyhow::Result<()> {
        let progress = &self.ctx.progress;
        progress.say(&format!("a guest with {} disks", recipes.len()));
        let stage = Stage::boot(self.ctx, recipes, self.inside_guest)?;
        progress.say("the guest is up");
        for recipe in recipes {
            interrupt::check()?;
            match self.record(&stage, recipe) {
                Ok(made) => {
                    progress.say(&made.to_string());
                    index.put(made)?;
                }
                // The others may still come out well.
                Err(error) => {
                    interrupt::check()?;
                    progress.say(&format!("{}: failed to {error:#}", recipe.name));
                }
            }
        }
        Ok(())
    }

    /// One recording without losses.
    fn record(&self, stage: &Stage<'_>, recipe: &Recipe) -> anyhow::Result<Made> {
        let bundle = self.bundle(recipe);
        std::fs::create_dir_all(self.folder).context("make the folder")?;
        for attempt in 1.. {
            stage.record(recipe, self.seed, &bundle)?;
            let made = self.look(recipe, &bundle)?;
            if made.lost == 0 || attempt == TRIES {
                ensure!(
                    made.lost == 0,
                    "record without losses: {} events",
                    made.lost
                );
                ensure!(made.bytes <= LARGEST, "keep it small: {} bytes", made.bytes);
                if !self.keep {
                    self.ctx.discard(&bundle);
                }
                return Ok(made);
            }
            let name = recipe.name;
            self.ctx
                .progress
                .say(&format!("{name}: {} events lost, again", made.lost));
        }
        unreachable!("the last try returns")
    }

    fn look(&self, recipe: &Recipe, bundle: &Path) -> anyhow::Result<Made> {
        let analysis = recorder::analyze(&self.ctx.nestrace, bundle)?;
        Made::of(recipe, self.seed, bundle, &analysis)
    }

    fn look_again(&self, recipes: &[&'static Recipe], index: &mut Index) -> anyhow::Result<()> {
        for recipe in recipes {
            let bundle = self.bundle(recipe);
            if bundle.is_dir() {
                index.put(self.look(recipe, &bundle)?)?;
            }
        }
        Ok(())
    }
}
