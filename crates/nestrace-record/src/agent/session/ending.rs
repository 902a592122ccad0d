//! How a session ends: by itself, when nothing of use can come any more, or with the recording.

use nestrace_probes::refusal::with_causes;
use nestrace_wire::FrameError;

use super::super::account::State;
use super::super::ingest::IngestError;
use super::Session;

impl Session {
    /// Bytes that cannot be understood: an agent that was killed within a frame leaves the like behind,
    /// so there is another session. A bounded number of them. Otherwise it is over with this guest, and only the
    /// recording's end says how much of it is missing.
    pub(super) fn give_up(&mut self, error: &IngestError, now_ns: u64) {
        self.ingest
            .account
            .refuse("stream that cannot be understood", 1);
        let is_damage = matches!(
            error,
            IngestError::Frame(
                FrameError::Magic { .. } | FrameError::Checksum { .. } | FrameError::Length { .. }
            )
        );
        if is_damage && self.begin_anew(now_ns) {
            return;
        }
        let error = with_causes(error);
        let message = format!("failed to {error}; its agent is ignored from here on");
        let account = &mut self.ingest.account;
        account.note(now_ns, "agent_refused", &message);
        account.tell(&message);
        account.state = State::Ended;
        self.given_up_ns = Some(self.ingest.missing_since_ns());
        self.lose_port("it was given up");
        self.ingest.close(now_ns);
    }

    /// What is reported once nothing more comes.
    pub(super) fn note_end(&mut self, now_ns: u64) {
        if let Some((since_ns, reason)) = self.missing_to_the_end() {
            self.ingest.gap(since_ns, now_ns, reason);
        }
        let account = &mut self.ingest.account;
        match account.state {
            State::Live | State::Attaching => account.note(
                now_ns,
                "agent_silent",
                "its agent did not say that it ended",
            ),
            State::NoAnswer | State::NotConnected => {
                let why = match &self.connect_error {
                    Some(error) => format!("its agent was not reached: {error}"),
                    None => "no agent answered on its channel".to_owned(),
                };
                account.note(now_ns, "agent_none", &why);
            }
            State::Silent | State::Ended => {}
        }
        let before: Vec<(String, u64)> = account
            .refused_without_side()
            .map(|(reason, times)| (reason.to_owned(), times))
            .collect();
        for (reason, times) in before {
            let message = format!("refused on its channel: {reason} ({times} times)");
            account.note(now_ns, "agent_refused", &message);
        }
    }

    /// Since when the guest's recording is missing at the end, if it is, and why.
    fn missing_to_the_end(&self) -> Option<(u64, &'static str)> {
        let since_ns = self.ingest.missing_since_ns();
        match (self.ingest.account.state, self.given_up_ns) {
            (_, Some(since_ns)) => Some((since_ns, "its agent was ignored")),
            (State::Attaching, _) if since_ns == 0 => Some((0, "its agent never recorded")),
            (State::Attaching, _) => Some((since_ns, "its agent started again and never recorded")),
            (State::Live, _) if since_ns < self.ingest.heard_ns() => Some((
                since_ns,
                "its clock jumped, and its agent did not start again",
            )),
            (State::Silent, _) => self
                .silent
                .map(|silence| (silence.since_ns, "the agent was silent to the end")),
            // It was not asked to end yet.
            (State::Ended, _) if self.stop_ns.is_none_or(|stop_ns| since_ns < stop_ns) => {
                Some((since_ns, "its agent had ended"))
            }
            _ => None,
        }
    }
}
