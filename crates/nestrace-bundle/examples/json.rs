//! Prints the analysis of a recording as JSON. `cargo run -p nestrace-bundle --example json -- vm1.nest`

use nestrace_bundle::Options;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args()
        .nth(1)
        .ok_or("give a bundle or a capture")?;
    let analysis = nestrace_bundle::analyze(path, &Options::default())?;
    println!("{}", serde_json::to_string(&analysis)?);
    Ok(())
}
