//! Keys, and what they want from outside the screen.

use nestrace_sums::rows::Subject;

/// A key, as far as the screen knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// A character with Ctrl, as a small letter.
    Ctrl(char),
    /// Cursor up.
    Up,
    /// Cursor down.
    Down,
    /// Cursor left.
    Left,
    /// Cursor right.
    Right,
    /// A screen up.
    PageUp,
    /// A screen down.
    PageDown,
    /// To the begin.
    Home,
    /// To the end.
    End,
    /// Return.
    Enter,
    /// Escape.
    Escape,
    /// Removes the character before the cursor.
    Backspace,
}

/// What the owner of the terminal is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// End the program.
    Quit,
    /// Record the guest of this disk.
    Record(Subject),
    /// End the recording that goes on; its answer is shown then.
    EndRecording,
    /// Draw all cells again: something else has written to the terminal.
    Redraw,
    /// Stop until the shell continues the program.
    Suspend,
}

/// The page that `?` opens.
pub const HELP: &str = "\
Figures are those of the last interval. Latencies are of reads and writes.

  q, Ctrl-C       quit
  ↑ ↓, k j        select a disk or a device; PageUp, PageDown, Home, End too
  ← →             another layer in the histogram
  m               latencies: mean or 99th percentile
  s, S            sort by the next or the previous column
  r               reverse the order
  /               filter by a part of a name; Enter keeps it, Esc clears it
  p, Space        pause: the figures stay until the key is pressed again
  e               record the guest of the selected disk for ten seconds, into
                  the current folder, and show what nestrace analyze says
  x               end that recording now
  Ctrl-L          draw the screen again
  Ctrl-Z          back to the shell; fg continues
  ?, h            this page

  guest    from a request's start to its end in the guest (with an agent)
  qemu     from QEMU's start of a request to its end
  file_io  I/O of QEMU on the image
  queue    of the device that carries the image, with all its users
  device   the same, from issue to completion
  infl     requests in flight
  oldest   the age of the oldest of them

  ? is not recorded; an empty place means that no request ended.
  In the histogram a column is a quarter of a power of two, and so high that
  one request is seen. The last column has what took longer than a second.
";
