//! The reader: what QEMU's memory and the tables of its qcow2 images say, which are made by the guest and by QEMU.
//!
//! It has no privilege at all. It reads through descriptors that it was given, and writes one file: the maps of images.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nestrace_trace::manifest::{Backend, Topology};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::Helper;
use super::channel::{Channel, Received};
use crate::backends::{BackendFinder, LAST_ANSWERS, QemuMemory};
use crate::image_maps::{AT_END, AT_START, ImageMaps, ImagePlace, OpenImage};
use crate::sandbox::system_calls::Role;
use crate::sandbox::{Sandbox, User};

/// How often it looks for what its threads have found.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// What an answer may take longer than the work for it.
const GRACE: Duration = Duration::from_millis(500);
/// How long it may take to begin.
const BEGIN: Duration = Duration::from_secs(2);

/// What the recorder says.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// At first: the guests, as JSON in the file beside it.
    Topology,
    /// At first: a qcow2 image, which comes beside it.
    Image(ImagePlace),
    /// At first: the memory and the map of the memory of the next guest, if they could be opened.
    Memory,
    /// All was said. The reader is this user from now on.
    Begin { user: Option<u32> },
    /// Read all tables, and keep what they say; the file for it comes beside it.
    ReadFirst,
    /// Which disk this BlockBackend belongs to.
    Backend(Question),
    /// The last answers about BlockBackends.
    LastBackends,
    /// Read all tables again, and write what both looks gave.
    Write,
}

/// A BlockBackend of a guest, by the guest's place in the topology.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Question {
    guest: usize,
    address: u64,
    is_first: bool,
}

/// What the reader says.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    /// It has begun.
    Begun(Result<(), String>),
    /// The first look is over.
    HasRead,
    /// The disk of a BlockBackend.
    Backend { guest: usize, backend: Backend },
    /// There are no more of these.
    NoMoreBackends,
    /// Images that could not be understood.
    Note(String),
    /// The maps are written.
    Written(Result<(), String>),
}

/// The recorder's view of its reader.
#[derive(Debug)]
pub struct Reader {
    /// `None` once it is gone.
    channel: Option<Channel>,
    /// Questions that it has not taken yet.
    waiting: VecDeque<Question>,
    backends: Vec<(usize, Backend)>,
    notes: Vec<String>,
    /// The answer to [`Self::begin_maps`], once it has come.
    maps_written: Option<Result<(), String>>,
}

impl Reader {
    /// Starts it; it waits for [`Self::begin`].
    ///
    /// # Errors
    /// What the system says.
    pub fn start() -> io::Result<Self> {
        Ok(Self {
            channel: Some(Helper::Reader.start()?),
            waiting: VecDeque::new(),
            backends: Vec::new(),
            notes: Vec::new(),
            maps_written: None,
        })
    }

    /// Gives it the memory of the guests' QEMUs and their images, which the caller may open.
    ///
    /// # Errors
    /// What the system says, or the reader.
    pub fn begin(
        &mut self,
        topology: &Topology,
        images: ImageMaps,
        user: Option<User>,
    ) -> io::Result<()> {
        let (images, notes) = images.into_parts();
        self.notes = notes;
        let channel = self.channel.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut text = File::from(memfd_create("nestrace-topology", MFdFlags::MFD_CLOEXEC)?);
        text.write_all(&serde_json::to_vec(topology)?)?;
        text.rewind()?;
        channel.send(&Order::Topology, &[text.as_fd()])?;
        for guest in &topology.guests {
            let memory = QemuMemory::open(guest.pid);
            let files: Vec<_> = memory.files().map(AsFd::as_fd).collect();
            channel.send(&Order::Memory, &files)?;
        }
        for image in &images {
            channel.send(&Order::Image(image.place.clone()), &[image.file.as_fd()])?;
        }
        let user = user.map(|user| user.uid);
        channel.send(&Order::Begin { user }, &[])?;
        match self.next(BEGIN)? {
            Some(Word::Begun(begun)) => begun.map_err(io::Error::other),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The first look at the images' tables; their maps are written to `file` in the end.
    ///
    /// # Errors
    /// What the system says, or that it took too long.
    pub fn read_first(&mut self, file: &File) -> io::Result<()> {
        self.say(&Order::ReadFirst, Some(file))?;
        self.until(AT_START + GRACE, |word| match word {
            Word::HasRead => Ok(()),
            other => Err(other),
        })
    }

    /// Asks for the disk of a guest's BlockBackend; [`Self::found`] has the answer, some time.
    pub fn ask(&mut self, guest: usize, address: u64, is_first: bool) {
        self.waiting.push_back(Question {
            guest,
            address,
            is_first,
        });
    }

    /// Answers that have come: the guest's place in the topology, and the disk with its proof.
    ///
    /// # Errors
    /// Where the reader is gone, once.
    pub fn found(&mut self) -> io::Result<Vec<(usize, Backend)>> {
        while let Some(question) = self.waiting.front()
            && let Some(channel) = &self.channel
        {
            // It takes them when it can: nothing here waits.
            if !channel.try_send(&Order::Backend(*question))? {
                break;
            }
            self.waiting.pop_front();
        }
        while self.channel.is_some() {
            match self.next(Duration::ZERO) {
                Ok(None) => break,
                Ok(Some(word)) => self.take(word),
                Err(error) => {
                    self.channel = None;
                    return Err(error);
                }
            }
        }
        Ok(std::mem::take(&mut self.backends))
    }

    /// The last answers.
    ///
    /// # Errors
    /// What the system says, or that it took too long: then those that have come are lost.
    pub fn last(&mut self) -> io::Result<Vec<(usize, Backend)>> {
        let mut backends = self.found()?;
        self.say(&Order::LastBackends, None)?;
        self.until(LAST_ANSWERS + GRACE, |word| match word {
            Word::NoMoreBackends => Ok(()),
            other => Err(other),
        })?;
        backends.append(&mut self.backends);
        Ok(backends)
    }

    /// The second look at the images' tables; both are written.
    ///
    /// # Errors
    /// The file's, what the system says, or that it took too long.
    pub fn write_maps(&mut self) -> io::Result<()> {
        self.say(&Order::Write, None)?;
        let written = self.until(AT_END + 2 * GRACE, |word| match word {
            Word::Written(written) => Ok(written),
            other => Err(other),
        })?;
        written.map_err(io::Error::other)
    }

    /// The first look without waiting for it: the next one finds what it has.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin_first(&self, file: &File) -> io::Result<()> {
        self.say(&Order::ReadFirst, Some(file))
    }

    /// The second look without waiting for it; [`Self::are_maps_written`] says when it is over.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin_maps(&mut self) -> io::Result<()> {
        self.maps_written = None;
        self.say(&Order::Write, None)
    }

    /// Whether the maps are written, or why they could not be; `None`: not yet.
    pub fn are_maps_written(&mut self) -> Option<Result<(), String>> {
        self.maps_written.take()
    }

    /// Images that could not be opened or understood, in words.
    pub fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn say(&self, order: &Order, file: Option<&File>) -> io::Result<()> {
        let channel = self.channel.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        let file: Vec<_> = file.into_iter().map(AsFd::as_fd).collect();
        channel.send(order, &file)
    }

    /// Waits for a word, and takes all others.
    fn until<R>(
        &mut self,
        limit: Duration,
        wanted: impl Fn(Word) -> Result<R, Word>,
    ) -> io::Result<R> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let word = self.next(left)?.ok_or(io::ErrorKind::TimedOut)?;
            match wanted(word) {
                Ok(found) => return Ok(found),
                Err(other) => self.take(other),
            }
        }
    }

    fn take(&mut self, word: Word) {
        match word {
            Word::Backend { guest, backend } => self.backends.push((guest, backend)),
            Word::Note(note) => self.notes.push(note),
            Word::Written(written) => self.maps_written = Some(written),
            // An answer that came too late, or was not waited for.
            Word::Begun(_) | Word::HasRead | Word::NoMoreBackends => {}
        }
    }

    fn next(&self, limit: Duration) -> io::Result<Option<Word>> {
        let channel = self.channel.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        if !channel.wait(limit)? {
            return Ok(None);
        }
        let received: Option<Received<Word>> = channel.receive()?;
        let (word, _) = received.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Some(word))
    }
}

/// What the reader has.
struct State {
    topology: Topology,
    images: ImageMaps,
    finders: Vec<BackendFinder>,
    maps: Option<File>,
}

/// The reader's life.
pub(super) fn run(channel: &Channel) -> io::Result<()> {
    let mut topology = Topology::default();
    let (mut images, mut memories) = (Vec::new(), Vec::new());
    let user = loop {
        let Some((order, with)) = channel.receive()? else {
            return Ok(());
        };
        let mut with = with.into_iter();
        match order {
            Order::Topology => {
                let mut text = Vec::new();
                let file = with.next().ok_or(io::ErrorKind::InvalidData)?;
                File::from(file).read_to_end(&mut text)?;
                topology = serde_json::from_slice(&text)?;
            }
            Order::Image(place) => {
                let file = with.next().ok_or(io::ErrorKind::InvalidData)?;
                images.push(OpenImage {
                    place,
                    file: File::from(file),
                });
            }
            Order::Memory => memories.push(QemuMemory::of(with.map(File::from))),
            Order::Begin { user } => break user,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    };
    let user = user.map(User::of_id);
    let entered = Sandbox::new(Role::Reader, user, &[]).and_then(|sandbox| sandbox.enter_last());
    channel.send(
        &Word::Begun(entered.map_err(|error| error.to_string())),
        &[],
    )?;
    let mut state = State {
        topology,
        images: ImageMaps::of(images),
        // Their threads have what this one has.
        finders: memories.into_iter().map(BackendFinder::start).collect(),
        maps: None,
    };
    loop {
        if channel.wait(LOOK_AROUND)? {
            match channel.receive()? {
                Some((order, with)) => state.obey(channel, order, with.into_iter().next())?,
                None => return Ok(()),
            }
        }
        state.tell(channel, BackendFinder::found)?;
    }
}

impl State {
    fn obey(&mut self, channel: &Channel, order: Order, with: Option<OwnedFd>) -> io::Result<()> {
        match order {
            Order::ReadFirst => {
                self.maps = with.map(File::from);
                self.images.read_first();
                channel.send(&Word::HasRead, &[])
            }
            Order::Backend(question) => {
                let guest = self.topology.guests.get(question.guest);
                if let (Some(guest), Some(finder)) = (guest, self.finders.get_mut(question.guest)) {
                    finder.ask(question.address, guest, question.is_first);
                }
                Ok(())
            }
            Order::LastBackends => {
                let deadline = Instant::now() + LAST_ANSWERS;
                self.tell(channel, |finder| finder.last(deadline))?;
                channel.send(&Word::NoMoreBackends, &[])
            }
            Order::Write => {
                let file = self.maps.take().ok_or(io::ErrorKind::NotFound)?;
                let written = self.images.read_and_write(&file);
                for note in std::mem::take(&mut self.images.notes) {
                    channel.send(&Word::Note(note), &[])?;
                }
                let written = written.map_err(|error| error.to_string());
                channel.send(&Word::Written(written), &[])
            }
            Order::Topology | Order::Image(_) | Order::Memory | Order::Begin { .. } => {
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }

    fn tell(
        &mut self,
        channel: &Channel,
        found: impl Fn(&mut BackendFinder) -> Vec<Backend>,
    ) -> io::Result<()> {
        for (guest, finder) in self.finders.iter_mut().enumerate() {
            for backend in found(finder) {
                channel.send(&Word::Backend { guest, backend }, &[])?;
            }
        }
        Ok(())
    }
}
