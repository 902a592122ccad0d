//! Runs shell in a guest of the user's: over ssh, or by QEMU's guest agent.

use std::io::{Seek, Write};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use nestrace_rig::external_tool::{Tool, ToolError, last_lines};
use nestrace_rig::interrupt;
use serde_json::{Value, json};

use super::OwnGuestError;
use crate::experiment::failure::KILLED;
use crate::plan::workload::FOLDER;
use crate::plan::{OwnGuest, Shell};

/// What scripts of the lab expect of a guest: programs by name, modules, and a disk by its serial number.
const PRELUDE: &str = "\
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C\n\
    bin=\n\
    load() { for module in \"$@\"; do modprobe \"$module\" 2> /dev/null || true; done; }\n\
    disk() {\n\
      tries=0\n\
      while [ $tries -lt 100 ]; do\n\
        found=\n\
        for block in /sys/block/*; do\n\
          for file in $block/serial $block/device/serial $block/device/vpd_pg80; do\n\
            [ -r $file ] && tr -cd 'a-zA-Z0-9_.-' < $file | grep -q -x -F -- \"$1\" && { found=\"$found ${block##*/}\"; break; }\n\
          done\n\
        done\n\
        set -- \"$1\" $found\n\
        [ $# = 2 ] && { echo $2; return 0; }\n\
        [ $# -gt 2 ] && { echo \"disk: $found have the serial $1\" >&2; return 1; }\n\
        tries=$((tries + 1)); sleep 0.1\n\
      done\n\
      echo \"disk: no disk has the serial $1\" >&2; return 1\n\
    }\n";
/// Leader of the session of a script that runs.
const PID: &str = "/run/nestrace-lab.pid";
/// Beyond the script's own time.
const GRACE: Duration = Duration::from_secs(20);
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// Runs a script that has to succeed, and gives its stdout; it is killed after `patience`, with all that it started.
pub(super) fn run_ok(
    guest: &OwnGuest,
    script: &str,
    patience: Duration,
) -> Result<String, OwnGuestError> {
    let script = format!("echo $$ > {PID}\ntrap 'rm -f {PID}' EXIT\n{PRELUDE}{script}");
    let done = run(guest, &script, patience, false);
    if matches!(&done, Err(OwnGuestError::Command { status, .. }) if *status == i64::from(KILLED)) {
        // What it started is in its session, and would go on using the disk.
        let _ = run(guest, &end_script(), STOP_PATIENCE, true);
    }
    done
}

/// Shell that ends a script that still runs.
fn end_script() -> String {
    format!(
        "pid=$(cat {PID} 2> /dev/null)\n\
         [ -n \"$pid\" ] && kill -KILL -$pid 2> /dev/null\n\
         rm -f {PID}\n"
    )
}

/// Ends a script that still runs, and unmounts what it mounted; Ctrl-C does not stop this.
pub(super) fn stop(guest: &OwnGuest) -> Result<(), OwnGuestError> {
    let script = format!(
        "{}grep -q ' {FOLDER} ' /proc/mounts || exit 0\n\
         cd /\n\
         umount {FOLDER} || umount -l {FOLDER}",
        end_script()
    );
    run(guest, &script, STOP_PATIENCE, true).map(|_| ())
}

fn run(
    guest: &OwnGuest,
    script: &str,
    patience: Duration,
    is_clean_up: bool,
) -> Result<String, OwnGuestError> {
    match &guest.shell {
        Shell::Ssh(host) => over_ssh(host, script, patience, is_clean_up),
        Shell::GuestAgent(domain) => by_agent(domain, script, patience, is_clean_up),
    }
}

/// In a session of its own, so that all of it can be killed.
fn timed(patience: Duration) -> String {
    format!("timeout -s KILL {} setsid sh -c", patience.as_secs())
}

fn over_ssh(
    host: &str,
    script: &str,
    patience: Duration,
    is_clean_up: bool,
) -> Result<String, OwnGuestError> {
    let mut file = tempfile::tempfile().map_err(OwnGuestError::Script)?;
    file.write_all(script.as_bytes())
        .and_then(|()| file.rewind())
        .map_err(OwnGuestError::Script)?;
    // Whole before it runs: what reads stdin would take the rest of it. No exec: timeout kills itself too, and ssh tells
    // nothing of a command that a signal ended.
    let command = format!(
        "sh -c 'script=$(cat); {} \"$script\" < /dev/null; exit $?'",
        timed(patience)
    );
    let tool = Tool::new("ssh")
        .args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=20"])
        // A guest that died does not answer any more.
        .args([
            "-o",
            "ServerAliveInterval=15",
            "-o",
            "ServerAliveCountMax=4",
        ])
        .args(["--", host])
        .arg(command)
        .stdin(file);
    match cleaning(tool, is_clean_up).run() {
        // 255 is ssh's own.
        Err(ToolError::Failed { status, stderr, .. }) if status.code() != Some(255) => {
            Err(OwnGuestError::Command {
                status: i64::from(status.code().unwrap_or(KILLED)),
                said: stderr,
                script: script.to_owned(),
            })
        }
        done => Ok(done?),
    }
}

fn cleaning(tool: Tool, is_clean_up: bool) -> Tool {
    if is_clean_up {
        tool.for_clean_up()
    } else {
        tool
    }
}

fn by_agent(
    domain: &str,
    script: &str,
    patience: Duration,
    is_clean_up: bool,
) -> Result<String, OwnGuestError> {
    // The agent starts a program with its arguments and is asked for its end.
    let timed = format!("exec {} \"$0\"", timed(patience));
    let started = ask(
        domain,
        &json!({"execute": "guest-exec", "arguments": {
            "path": "/bin/sh", "arg": ["-c", timed, script], "capture-output": true,
        }}),
        is_clean_up,
    )?;
    let question = json!({"execute": "guest-exec-status", "arguments": {"pid": started["pid"]}});
    let begin = Instant::now();
    let mut pause = Duration::from_millis(50);
    loop {
        if !is_clean_up {
            interrupt::check()?;
        }
        let answer = ask(domain, &question, is_clean_up)?;
        if answer["exited"] == true {
            return ended(&answer, script);
        }
        if begin.elapsed() > patience + GRACE {
            return Err(OwnGuestError::Command {
                status: i64::from(KILLED),
                said: String::from("it does not end"),
                script: script.to_owned(),
            });
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

fn ask(domain: &str, question: &Value, is_clean_up: bool) -> Result<Value, OwnGuestError> {
    let tool = Tool::new("virsh")
        .args(["-q", "qemu-agent-command", "--timeout", "30", domain])
        .arg(question.to_string());
    let answer = cleaning(tool, is_clean_up).run()?;
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    Ok(answer["return"].clone())
}

/// stdout of what ended well.
fn ended(answer: &Value, script: &str) -> Result<String, OwnGuestError> {
    let text = |key: &str| {
        let bytes = BASE64.decode(answer[key].as_str().unwrap_or_default());
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    };
    match answer["exitcode"].as_i64() {
        Some(0) => Ok(text("out-data")),
        code => Err(OwnGuestError::Command {
            status: code.unwrap_or(i64::from(KILLED)),
            said: last_lines(&format!("{}\n{}", text("out-data"), text("err-data")), 8),
            script: script.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_agent_answers_is_read() {
        let good = json!({"exited": true, "exitcode": 0, "out-data": "YQo="});
        assert_eq!(ended(&good, "a").unwrap(), "a\n");
        let bad = json!({"exited": true, "exitcode": 3, "err-data": "bm8K"});
        let error = ended(&bad, "a").unwrap_err().to_string();
        assert!(error.contains('3') && error.contains("no"), "{error}");
        let killed = json!({"exited": true, "signal": 9});
        assert!(ended(&killed, "a").is_err());
    }

    #[test]
    fn the_prelude_is_shell() {
        let text = format!(
            "{PRELUDE}disk lab-that-is-not-there > /dev/null 2>&1 &\nkill $!\nload; echo ok"
        );
        let said = Tool::new("sh").args(["-c", &text]).run().unwrap();
        assert_eq!(said, "ok\n");
    }
}
