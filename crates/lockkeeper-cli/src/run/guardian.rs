//! The guardian: a process beside `run` that kills the command's process group when `run` cannot.
//!
//! `run` may be killed, or stopped for longer than its lease. A parent-death signal covers the first case
//! for the command but not for its children; code inside `run` cannot cover the second. So `run` starts
//! this binary again, with a socket between the two. `run` sends the child's process id and, with each
//! renewal, the time of the kill. At that time, or when the socket is closed because `run` has died, the
//! guardian kills the group, the child itself, and its [descendants]. If `run` has died, the kernel has
//! killed the child too, and its children are orphans: those that the guardian has not seen before are
//! recognised by their environment. At the end `run` kills the guardian, which works even if it is
//! stopped.
//!
//! **No other process is killed.** The number of a process group is not reused while an unreaped process
//! is in it. The leader is a child of `run`, which reaps it only after it has dismissed the guardian, or
//! has told it that only the rest of the group is left. If `run` dies, the guardian acts long before the
//! process numbers wrap around.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::descendants::{self, Depth, Descendants};
use super::{clock, sys};

/// The first argument of a guardian. Not a subcommand, so that the help does not show it.
pub(crate) const ARGUMENT: &str = "__guardian";

/// The exit code of a guardian that has killed at the time of the kill.
const KILLED_IN_TIME: u8 = 3;

/// The longest poll with a kill time: timers do not advance while the machine is suspended.
const TICK: Duration = Duration::from_millis(250);

/// A smaller change of the kill time is not sent: the time is computed anew from each clock reading.
const RESOLUTION: Duration = Duration::from_millis(5);

/// The maximum number of replacements of a dead guardian.
const REPLACEMENTS: u32 = 3;

/// The minimum interval between two scans for descendants.
const SCAN_INTERVAL: Duration = Duration::from_millis(500);

/// The length of a message: a kind and a number.
const FRAME: usize = 9;
const CHILD: u8 = b'c';
const CHILD_ENDED: u8 = b'e';
const KILL_AT: u8 = b'k';

/// The guardian, as `run` sees it.
pub(super) struct Guardian {
    process: Child,
    socket: UnixStream,
    kill_at: Duration,
    /// An entry in the environment of the command and its descendants only.
    mark: String,
    ended: bool,
    replaced: u32,
}

/// The state of a guardian.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Health {
    Alive,
    /// It had died, and was replaced.
    Replaced,
    /// It has died and cannot be replaced.
    Dead,
    /// It has killed the group at the kill time.
    Acted,
}

impl Guardian {
    /// Starts a guardian that kills the future child at `kill_at`. `mark` will be in the child's
    /// environment.
    pub(super) fn start(kill_at: Duration, mark: String) -> io::Result<Self> {
        let (process, socket) = spawn(&mark)?;
        let guardian = Self { process, socket, kill_at, mark, ended: false, replaced: 0 };
        guardian.send(KILL_AT, millis(kill_at));
        Ok(guardian)
    }

    /// The end of the socket from which a child [introduces](introduce) itself.
    pub(super) fn socket(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone().map(OwnedFd::from)
    }

    /// Moves the kill time.
    pub(super) fn prolong(&mut self, kill_at: Duration) {
        if kill_at.abs_diff(self.kill_at) >= RESOLUTION {
            self.kill_at = kill_at;
            self.send(KILL_AT, millis(kill_at));
        }
    }

    /// Tells the guardian that the child's number is about to become free.
    pub(super) fn child_ended(&mut self) {
        self.ended = true;
        self.send(CHILD_ENDED, 0);
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Checks the guardian, and replaces it if it has died.
    pub(super) fn check(&mut self, child: Pid) -> Health {
        match self.process.try_wait() {
            Ok(None) => return Health::Alive,
            Ok(Some(status)) if status.code() == Some(KILLED_IN_TIME.into()) => {
                return Health::Acted;
            }
            _ => {}
        }
        if self.replaced == REPLACEMENTS {
            return Health::Dead;
        }
        self.replaced += 1;
        match spawn(&self.mark) {
            Ok((process, socket)) => {
                (self.process, self.socket) = (process, socket);
                self.send(KILL_AT, millis(self.kill_at));
                self.send(CHILD, child.as_raw_nonzero().get().unsigned_abs().into());
                if self.ended {
                    self.child_ended();
                }
                Health::Replaced
            }
            Err(_) => Health::Dead,
        }
    }

    /// Ends the guardian. Returns whether it has killed the group, or the kill time has passed.
    pub(super) fn dismiss(mut self) -> bool {
        let over = clock::now() >= self.kill_at;
        let _ = self.process.kill();
        let status = self.process.wait();
        over || status.is_ok_and(|status| status.code() == Some(KILLED_IN_TIME.into()))
    }

    fn send(&self, kind: u8, number: u64) {
        let _ = write(self.socket.as_fd(), kind, number);
    }
}

/// Sends the child's process id to the guardian. Called by the child between fork and exec: it makes one
/// system call.
pub(super) fn introduce(socket: BorrowedFd<'_>, own: Pid) -> io::Result<()> {
    write(socket, CHILD, own.as_raw_nonzero().get().unsigned_abs().into())
}

/// Never blocks and never raises SIGPIPE: [`Guardian::check`] finds a dead guardian.
fn write(socket: BorrowedFd<'_>, kind: u8, number: u64) -> io::Result<()> {
    let mut frame = [kind; FRAME];
    frame[1..].copy_from_slice(&number.to_le_bytes());
    send(socket, &frame, FLAGS)?;
    Ok(())
}

#[cfg(not(target_vendor = "apple"))]
const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// SIGPIPE is disabled by a socket option instead.
#[cfg(target_vendor = "apple")]
const FLAGS: SendFlags = SendFlags::DONTWAIT;

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Both ends close on exec, so that each process has only its own.
fn spawn(mark: &str) -> io::Result<(Child, UnixStream)> {
    let (ours, its) = UnixStream::pair()?;
    #[cfg(target_vendor = "apple")]
    rustix::net::sockopt::set_socket_nosigpipe(&ours, true)?;
    let process = Command::new(own_path()?)
        .arg0("lockkeeper-guardian")
        .args([ARGUMENT, mark])
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(OwnedFd::from(its))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok((process, ours))
}

/// Also correct if the binary was replaced since this process started.
#[cfg(target_os = "linux")]
fn own_path() -> io::Result<&'static str> {
    Ok("/proc/self/exe")
}

#[cfg(not(target_os = "linux"))]
fn own_path() -> io::Result<std::path::PathBuf> {
    std::env::current_exe()
}

/// The guardian process.
pub(crate) fn main() -> ExitCode {
    // `killall lockkeeper` must not end the guardian.
    sys::block_all();
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"lk-guardian");
    raise_limit();
    let mark = std::env::args_os().nth(2).unwrap_or_default().into_encoded_bytes();
    let mut guarded = Guarded { mark, ..Guarded::default() };
    let mut kill_at = None;
    loop {
        // Without a child the kill time does not matter.
        match next(kill_at.filter(|_| guarded.group.is_some())) {
            Ok(Message::Child(number)) => {
                guarded.child = Pid::from_raw(number);
                guarded.group = guarded.child;
            }
            Ok(Message::ChildEnded) => guarded.child = None,
            Ok(Message::KillAt(time)) => kill_at = Some(time),
            Ok(Message::None) if kill_at.is_some_and(|time| clock::now() >= time) => {
                guarded.kill();
                return KILLED_IN_TIME.into();
            }
            Ok(Message::None) => guarded.scan_if_due(),
            Err(_) => {
                guarded.kill();
                return ExitCode::SUCCESS;
            }
        }
    }
}

/// Each handle of a descendant takes a file descriptor.
fn raise_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ =
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// The processes that a guardian kills.
#[derive(Default)]
struct Guarded {
    group: Option<Pid>,
    /// The command, until it is reaped.
    child: Option<Pid>,
    descendants: Descendants,
    /// The time of the last scan; zero at first, because the command may be older than the guardian.
    scanned_at: Duration,
    /// The time of the next scan.
    scan_at: Duration,
    /// An entry in the environment of the command.
    mark: Vec<u8>,
}

impl Guarded {
    /// Scans for descendants: if `run` is killed, the kernel kills the command too, and its children can no
    /// longer be found by their parent. A scan takes at most a hundredth of the time.
    fn scan_if_due(&mut self) {
        let started = clock::now();
        if let Some(child) = self.child.filter(|_| started >= self.scan_at) {
            self.descendants.find(child, Depth::All);
            self.scanned_at = started;
            let took = clock::now().saturating_sub(started);
            self.scan_at = started + SCAN_INTERVAL.max(took * 100);
        }
    }

    fn kill(&mut self) {
        if let Some(child) = self.child {
            self.descendants.find(child, Depth::All);
        }
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        // The child may have left its group.
        if let Some(child) = self.child {
            let _ = kill_process(child, Signal::KILL);
        }
        self.descendants.signal(Signal::KILL);
        descendants::kill_marked(&self.mark, self.scanned_at);
    }
}

enum Message {
    None,
    Child(i32),
    ChildEnded,
    KillAt(Duration),
}

/// The next message; `Message::None` if none arrived before `until` or the end of a tick. A pending
/// message is read before the clock, because it may extend the time. An error is the end of the socket.
fn next(until: Option<Duration>) -> io::Result<Message> {
    if !wait(until)? {
        return Ok(Message::None);
    }
    // Not `io::stdin`: its buffer would hide messages from `wait`. A message is written and read as a
    // whole.
    let mut frame = [0; FRAME];
    if rustix::io::read(rustix::stdio::stdin(), &mut frame)? < FRAME {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let [kind, number @ ..] = frame;
    let number = u64::from_le_bytes(number);
    Ok(match kind {
        CHILD => Message::Child(i32::try_from(number).unwrap_or_default()),
        CHILD_ENDED => Message::ChildEnded,
        KILL_AT => Message::KillAt(Duration::from_millis(number)),
        _ => Message::None,
    })
}

/// Waits for a message until `until` or the end of a tick; returns whether one arrived.
fn wait(until: Option<Duration>) -> io::Result<bool> {
    let stdin = rustix::stdio::stdin();
    let mut polled = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
    let timeout = until.map(|until| until.saturating_sub(clock::now()).min(TICK));
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    Ok(poll(&mut polled, timeout.as_ref())? > 0)
}
