//! The terminal while a screen has it, and as it was whatever ends the screen: a key, a signal or a panic.

use std::io::{self, IsTerminal, Stdout, stdin, stdout};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nestrace_top::draw::draw;
use nestrace_top::keys::Key;
use nestrace_top::state::State;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, read};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::sync::mpsc::{Receiver, channel};

/// Keys that wait to be looked at.
const MAX_KEYS: usize = 64;

/// Whether the terminal is to be given back.
static IS_HELD: AtomicBool = AtomicBool::new(false);
/// Whether some thread has panicked while it was held.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

/// Whether there is a terminal that can show a screen and send keys.
pub fn is_there() -> bool {
    let is_able = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    is_able && stdout().is_terminal() && stdin().is_terminal()
}

/// Whether it may show colours (<https://no-color.org>).
pub fn has_color() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A terminal that is given back when this is dropped.
pub struct Held {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Held {
    /// Takes it: raw, on its second screen, without a cursor.
    ///
    /// # Errors
    /// The terminal's; it is as it was then.
    pub fn take() -> io::Result<Self> {
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                if give_back() {
                    HAS_PANICKED.store(true, Ordering::SeqCst);
                }
                before(info);
            }));
        });
        enter()?;
        let terminal = Terminal::new(CrosstermBackend::new(stdout()));
        terminal
            .map(|terminal| Self { terminal })
            .inspect_err(|_| _ = give_back())
    }

    /// Draws what has changed, and says how many lines there are.
    ///
    /// # Errors
    /// The terminal's.
    pub fn draw(&mut self, state: &State) -> io::Result<u16> {
        let drawn = self.terminal.draw(|frame| draw(state, frame))?;
        Ok(drawn.area.height)
    }

    /// Draws all cells the next time.
    ///
    /// # Errors
    /// The terminal's.
    pub fn clear(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    /// Gives the terminal to the shell until that continues the program.
    ///
    /// # Errors
    /// The terminal's.
    pub fn suspend(&mut self) -> io::Result<()> {
        give_back();
        // All of the shell's job, as the terminal's own Ctrl-Z.
        kill(Pid::from_raw(0), Signal::SIGTSTP)?;
        self.take_again()
    }

    /// Takes it as it is now: a shell has had it meanwhile.
    ///
    /// # Errors
    /// The terminal's.
    pub fn take_again(&mut self) -> io::Result<()> {
        give_back();
        enter()?;
        self.clear()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        give_back();
    }
}

/// Whether a thread has panicked and the terminal was given back because of it.
pub fn has_panicked() -> bool {
    HAS_PANICKED.load(Ordering::SeqCst)
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    IS_HELD.store(true, Ordering::SeqCst);
    execute!(stdout(), EnterAlternateScreen, Hide).inspect_err(|_| _ = give_back())
}

/// Makes the terminal what it was; `false`: it is that already. A terminal that is gone wants nothing.
fn give_back() -> bool {
    let is_held = IS_HELD.swap(false, Ordering::SeqCst);
    if is_held {
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
    is_held
}

/// What comes from a terminal.
pub enum Input {
    /// A key.
    Key(Key),
    /// Another size.
    Resize,
}

/// Reads keys in a thread, which ends with the program. No more come when the terminal is gone.
///
/// # Errors
/// The thread's.
pub fn inputs() -> io::Result<Receiver<Input>> {
    let (sender, inputs) = channel(MAX_KEYS);
    thread::Builder::new()
        .name("nestrace-keys".to_owned())
        .spawn(move || {
            while let Ok(event) = read() {
                let input = match event {
                    Event::Key(event) => key(&event).map(Input::Key),
                    Event::Resize(..) => Some(Input::Resize),
                    _ => None,
                };
                if input.is_some_and(|input| sender.blocking_send(input).is_err()) {
                    break;
                }
            }
        })?;
    Ok(inputs)
}

fn key(event: &KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    Some(match event.code {
        KeyCode::Char(c) if event.modifiers.contains(KeyModifiers::CONTROL) => {
            Key::Ctrl(c.to_ascii_lowercase())
        }
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use nix::pty::{Winsize, openpty};
    use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

    use super::*;

    const WORD: &str = "NESTRACE_TEST_IN_TERMINAL";

    /// Runs only as a child of the next test, in a terminal.
    #[test]
    fn in_a_terminal() {
        let Ok(end) = std::env::var(WORD) else { return };
        assert!(is_there());
        let mut held = Held::take().unwrap();
        let modes = tcgetattr(stdin()).unwrap();
        assert!(
            !modes
                .local_flags
                .contains(LocalFlags::ICANON | LocalFlags::ECHO)
        );
        held.draw(&State::default()).unwrap();
        match end.as_str() {
            "panic" => panic!("made"),
            "other" => {
                let _ = thread::spawn(|| panic!("made")).join();
                assert!(has_panicked());
            }
            _ => {}
        }
    }

    fn size_80_24() -> Winsize {
        Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        }
    }

    /// All that a terminal showed, and its modes before and after.
    fn shown(end: &str) -> (String, Termios, Termios) {
        let pty = openpty(&size_80_24(), None).unwrap();
        // One mode that is not as usual.
        let mut modes = tcgetattr(&pty.slave).unwrap();
        modes.local_flags.remove(LocalFlags::ECHOE);
        tcsetattr(&pty.slave, SetArg::TCSANOW, &modes).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let stdio = || Stdio::from(pty.slave.as_fd().try_clone_to_owned().unwrap());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "top::terminal::tests::in_a_terminal",
                "--nocapture",
            ])
            .env(WORD, end)
            .env("TERM", "xterm")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio());
        let become_leader = || {
            nix::unistd::setsid()?;
            Ok(())
        };
        // SAFETY: setsid is a system call that may be made after fork.
        let mut child = unsafe { command.pre_exec(become_leader) }.spawn().unwrap();
        drop(command);
        let mut output = File::from(pty.master.as_fd().try_clone_to_owned().unwrap());
        let reader = thread::spawn(move || {
            let (mut all, mut some) = (Vec::new(), [0; 4096]);
            // The end of a terminal is an error.
            while let Ok(n @ 1..) = output.read(&mut some) {
                all.extend_from_slice(&some[..n]);
            }
            String::from_utf8_lossy(&all).into_owned()
        });
        child.wait().unwrap();
        let after = tcgetattr(&pty.slave).unwrap();
        drop(pty.slave);
        (reader.join().unwrap(), before, after)
    }

    #[test]
    fn the_terminal_is_as_it_was_also_after_a_panic() {
        for end in ["drop", "panic", "other"] {
            let (text, before, after) = shown(end);
            assert_eq!(before, after, "{end}: {text}");
            let enter = text.find("\x1b[?1049h").expect(&text);
            let leave = text.find("\x1b[?1049l").expect(&text);
            assert!(enter < leave, "{end}");
            assert!(text[enter..leave].contains("nestrace top"), "{end}: {text}");
            assert!(text[leave..].contains("\x1b[?25h"), "{end}: the cursor");
            // What the panic says is read on the screen that stays.
            let said = text.find("made");
            assert_eq!(said.is_some_and(|at| at > leave), end != "drop", "{text}");
        }
    }
}
