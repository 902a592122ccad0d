//! Loads and attaches every tracepoint program of a probe object on the running kernel, for a moment,
//! with the gate shut: `cargo run -p nestrace-probes --example load_probes -- OBJECT` (root).

use nestrace_kernel::plan::{Detail, Wanted as PlanWanted, plan};
use nestrace_probes::{
    globals::Globals,
    kernel_facts,
    load::{Mounts, Probes, Wanted},
    object::PROBES,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let object = match std::env::args_os().nth(1) {
        Some(path) => std::fs::read(path)?,
        None => PROBES.to_vec(),
    };
    let (facts, layout) = kernel_facts::gather();
    let globals = Globals::resolve(&layout, false);
    let mut refused = 0;
    let ways = [
        ("full", Detail::Full, false),
        ("light", Detail::Light, false),
        ("full by mount", Detail::Full, true),
        ("light by mount", Detail::Light, true),
    ];
    for (name, detail, mounts) in ways {
        let wanted = Wanted {
            ring_bytes: 4096,
            mounts: mounts.then(Mounts::default),
            ..Wanted::default()
        };
        let mut probes = Probes::load_object(&object, &globals, &wanted)?;
        let wanted = PlanWanted {
            detail,
            processes: !mounts,
            mounts,
            cpu: true,
        };
        probes.attach(&plan(&facts, &layout, wanted));
        println!("{name}: {} attached", probes.attached.len());
        for probe in &probes.refused {
            println!("{name}: {} refused: {}", probe.name, probe.reason);
            refused += u32::from(probe.reason.contains("verifier"));
        }
    }
    if refused > 0 {
        return Err(format!("{refused} programs were refused by the verifier").into());
    }
    Ok(())
}
