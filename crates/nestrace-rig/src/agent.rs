//! The agent in a guest: started, killed and listened to over the command channel.

use std::time::Duration;

use crate::guest::{Guest, GuestError};
use crate::guest_spec::AGENT_PLACE;

/// What a call in the guest may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// What an agent says in a guest.
pub const LOG: &str = "/run/agent.log";

/// Shell that waits until an agent that writes to [`LOG`] has loaded its programs, or has said that it uses none.
#[must_use]
pub fn wait_script(patience: Duration) -> String {
    let tries = patience.as_millis() / 100;
    format!(
        "for try in $(seq {tries}); do \
         grep -q '^nestrace-agent: backend ' {LOG} && exit; sleep 0.1; done; \
         tail -5 {LOG} >&2; exit 1"
    )
}

impl Guest {
    /// Starts the agent with `arguments` (`--backend ebpf`) and leaves it running. What it says goes
    /// to [`LOG`] in the guest.
    ///
    /// # Errors
    /// The guest was booted without an agent, or the agent ended at once.
    pub fn start_agent(&self, arguments: &str) -> Result<(), GuestError> {
        let script = format!(
            "setsid {AGENT_PLACE} {arguments} >> {LOG} 2>&1 < /dev/null &\n\
             echo $! > /run/agent.pid; sleep 0.3; \
             kill -0 $(cat /run/agent.pid) || {{ tail -5 {LOG} >&2; exit 1; }}"
        );
        self.run_ok(&script, PATIENCE).map(|_| ())
    }

    /// Waits until the agent that was started last has loaded its programs, or has said that it uses none: a
    /// recording is live at once then. A translated guest takes some ten seconds.
    ///
    /// # Errors
    /// It does not say so within `patience`.
    pub fn wait_for_agent(&self, patience: Duration) -> Result<(), GuestError> {
        let script = wait_script(patience);
        self.run_ok(&script, patience + PATIENCE).map(|_| ())
    }

    /// Sends a signal (`KILL`) to the agent that was started last and waits until it is gone.
    ///
    /// # Errors
    /// There is none, or it does not go away.
    pub fn kill_agent(&self, signal: &str) -> Result<(), GuestError> {
        let script = format!(
            "pid=$(cat /run/agent.pid) && kill -{signal} $pid && \
             while kill -0 $pid 2> /dev/null; do sleep 0.05; done"
        );
        self.run_ok(&script, PATIENCE).map(|_| ())
    }

    /// What the agents of this guest have said.
    ///
    /// # Errors
    /// The channel broke.
    pub fn agent_log(&self) -> Result<String, GuestError> {
        Ok(self
            .run(&format!("tail -n 40 {LOG} 2> /dev/null"), PATIENCE)?
            .stdout)
    }
}
