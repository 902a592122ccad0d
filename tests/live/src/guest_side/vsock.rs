//! The agent over vsock: recorder and agent are in one guest, whose loopback joins them. So both
//! clocks are the same one, and every estimate of their difference has to allow 0.
//!
//! Not tested here: vsock between a guest and its host, which needs vhost-vsock on this machine.

use std::time::Duration;

use anyhow::Context;
use nestrace_rig::external_tool::find_program;
use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::stack::{Aio, DiskStack, HostFsKind};
use xtask::case::{Case, Report};

use super::sides;
use crate::context::LiveContext;
use crate::kernels::machine::with_libraries;
use crate::stage::manifest;

const PORT: u32 = 40_000;

/// A fio by QEMU's name stands for the guest of this host; its disk is what the agent records.
const SCRIPT: &str = "\
export LD_LIBRARY_PATH=/opt/nestrace
disk=$(disk disk-a)
/usr/bin/nestrace-agent --vsock PORT --allow-local --backend ebpf > /tmp/agent.log 2>&1 &
agent=$!
/opt/nestrace/qemu-system-x86_64 --name=load --filename=/dev/$disk --direct=1 --rw=randwrite --bs=4k \
  --ioengine=psync --thread --time_based --runtime=60 > /tmp/fio.log 2>&1 &
fio=$!
sleep 2
/opt/nestrace/nestrace record --guest pid:$fio --device $disk --agent vsock:1:PORT --duration 12 -o /tmp/vsock.nest \
  > /tmp/record.log 2>&1
status=$?
kill $fio $agent
cat /tmp/record.log /tmp/agent.log
tar -cf /tmp/vsock.tar -C /tmp vsock.nest
exit $status";

/// The only case.
pub fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    report.case("guest-side/vsock", |case| loopback(ctx, case))?;
    Ok(())
}

fn loopback(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let stack = DiskStack {
        aio: Aio::Threads,
        ..DiskStack::RAW
    };
    let disk = ctx.disk(&host, "disk-a", stack, 32 << 20, "full")?;
    let mut files = with_libraries("nestrace", &ctx.nestrace)?;
    let fio = find_program("fio").context("find fio")?;
    files.push(("/opt/nestrace/qemu-system-x86_64".to_owned(), fio));
    let guest = Guest::boot(GuestSpec {
        disks: vec![disk],
        files,
        memory_mib: 1536,
        modules: vec!["vsock_loopback".to_owned()],
        ..ctx.agent_guest_spec(&ctx.guest_name("vsock"))?
    })?;
    let script = SCRIPT.replace("PORT", &PORT.to_string());
    let output = guest.run_ok(&script, Duration::from_secs(120))?;
    let folder = ctx.fetch_archive(&guest, "vsock", "/tmp/vsock.tar")?;
    let bundle = folder.join("vsock.nest");
    let sides = sides::sides(&bundle)?;
    case.equal("guest_sides", sides.len(), 1);
    let (side, n) = sides
        .first()
        .with_context(|| format!("find a side: {}", output.stdout))?;
    case.holds("events over vsock", *n > 500, &n.to_string());
    let apart = |sample: &&nestrace_trace::manifest::ClockSample| {
        sample.guest_ns < sample.host_sent_ns || sample.guest_ns > sample.host_received_ns
    };
    let samples = &side.clock_samples;
    case.holds(
        "round trips",
        samples.len() >= 3,
        &samples.len().to_string(),
    );
    case.equal(
        "round trips that exclude 0",
        samples.iter().filter(apart).count(),
        0,
    );
    let losses = manifest(&bundle)?.losses;
    let lost: u64 = losses.iter().map(|loss| loss.events).sum();
    case.figure(format!(
        "{n} events, {} round trips, {lost} lost",
        samples.len()
    ));
    ctx.discard(&folder);
    Ok(())
}
