//! The guardian: a process beside `run` that kills the command's process group when `run` cannot.
//!
//! `run` may be killed, or stopped past its lease; a parent-death signal helps against the first,
//! for the command itself but not for its children, and nothing in this process helps against the
//! second. So this binary is started once more. The two share a socket. `run` writes down the
//! child's process id and, with each renewal, until when its group may live. The guardian kills the
//! group, the child wherever it is, and what is [below] it, when that time is over, and when
//! the socket ends: then `run` is dead. By then the kernel has killed the child as well, and its children have
//! lost their parent: those that the guardian has not seen below it yet are known by their environment. When all is over `run` kills the guardian, which is quicker than
//! asking it to go and works even if somebody has stopped it.
//!
//! **No stranger is killed.** A process group's number is not given out again while the group has a
//! member, dead or alive, that is not reaped. The leader is a child of `run`, which reaps it only
//! after it has sent the guardian away, or has told it that there is only the rest of the group to be
//! seen to. If `run` is dead, the guardian acts within moments, not after as many processes as there are
//! numbers.

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

/// The argument that makes this binary a guardian. Not a command: nobody is to find it in the help.
pub(crate) const ARGUMENT: &str = "__guardian";

/// The guardian's exit code when it has killed because the time was over.
const TIME_WAS_OVER: u8 = 3;

/// Its longest sleep while there is a time to keep: timers stand still while the machine sleeps.
const TICK: Duration = Duration::from_millis(250);

/// Times that differ by less are the same: they are reckoned anew from each look at the clock.
const SAME: Duration = Duration::from_millis(5);

/// How often one that has died is replaced.
const REPLACEMENTS: u32 = 3;

/// How often it looks who is below the command, at most.
const LOOKS: Duration = Duration::from_millis(500);

/// A message: what it is about, and a number.
const FRAME: usize = 9;
const CHILD: u8 = b'c';
const CHILD_ENDED: u8 = b'e';
const KILL_AT: u8 = b'k';

/// The guardian, as `run` sees it.
pub(super) struct Guardian {
    process: Child,
    line: UnixStream,
    kill_at: Duration,
    /// What stands in the environment of the command, and of no other process but those below it.
    mark: String,
    ended: bool,
    replaced: u32,
}

/// How a guardian is doing.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Health {
    /// It watches.
    Well,
    /// It was dead; another one watches.
    Replaced,
    /// It is dead and stays so.
    Gone,
    /// It has killed the group because its time was over.
    Acted,
}

impl Guardian {
    /// Starts one that lets the child, whoever that will be, live until `kill_at`. `mark` will stand in
    /// its environment.
    pub(super) fn start(kill_at: Duration, mark: String) -> io::Result<Self> {
        let (process, line) = spawn(&mark)?;
        let guardian = Self { process, line, kill_at, mark, ended: false, replaced: 0 };
        guardian.send(KILL_AT, millis(kill_at));
        Ok(guardian)
    }

    /// The end of the line from which a child [introduces](introduce) itself.
    pub(super) fn line(&self) -> io::Result<OwnedFd> {
        self.line.try_clone().map(OwnedFd::from)
    }

    /// Lets the child live until `kill_at`.
    pub(super) fn prolong(&mut self, kill_at: Duration) {
        if kill_at.abs_diff(self.kill_at) >= SAME {
            self.kill_at = kill_at;
            self.send(KILL_AT, millis(kill_at));
        }
    }

    /// Tells it that the child is about to be reaped, and its number no longer the child's.
    pub(super) fn child_ended(&mut self) {
        self.ended = true;
        self.send(CHILD_ENDED, 0);
    }

    /// Its process.
    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Looks after it, and replaces it if somebody has killed it.
    pub(super) fn check(&mut self, child: Pid) -> Health {
        match self.process.try_wait() {
            Ok(None) => return Health::Well,
            Ok(Some(status)) if status.code() == Some(TIME_WAS_OVER.into()) => {
                return Health::Acted;
            }
            _ => {}
        }
        if self.replaced == REPLACEMENTS {
            return Health::Gone;
        }
        self.replaced += 1;
        match spawn(&self.mark) {
            Ok((process, line)) => {
                (self.process, self.line) = (process, line);
                self.send(KILL_AT, millis(self.kill_at));
                self.send(CHILD, child.as_raw_nonzero().get().unsigned_abs().into());
                if self.ended {
                    self.child_ended();
                }
                Health::Replaced
            }
            Err(_) => Health::Gone,
        }
    }

    /// Sends it away. True if it has killed the group before, or must have, for its time was over.
    pub(super) fn dismiss(mut self) -> bool {
        let over = clock::now() >= self.kill_at;
        let _ = self.process.kill();
        let status = self.process.wait();
        over || status.is_ok_and(|status| status.code() == Some(TIME_WAS_OVER.into()))
    }

    fn send(&self, kind: u8, number: u64) {
        let _ = write(self.line.as_fd(), kind, number);
    }
}

/// Tells the guardian which child it guards. For the child itself, between fork and exec: it makes one
/// system call.
pub(super) fn introduce(line: BorrowedFd<'_>, own: Pid) -> io::Result<()> {
    write(line, CHILD, own.as_raw_nonzero().get().unsigned_abs().into())
}

/// Never blocks and never raises SIGPIPE: a guardian that does not read is found dead soon enough.
fn write(line: BorrowedFd<'_>, kind: u8, number: u64) -> io::Result<()> {
    let mut frame = [kind; FRAME];
    frame[1..].copy_from_slice(&number.to_le_bytes());
    send(line, &frame, QUIETLY)?;
    Ok(())
}

#[cfg(not(target_vendor = "apple"))]
const QUIETLY: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// There the socket itself has to be told not to raise SIGPIPE.
#[cfg(target_vendor = "apple")]
const QUIETLY: SendFlags = SendFlags::DONTWAIT;

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Both ends close on exec, so that only `run` has the one and only the guardian the other.
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

/// Also right when the binary has been replaced since it was started.
#[cfg(target_os = "linux")]
fn own_path() -> io::Result<&'static str> {
    Ok("/proc/self/exe")
}

#[cfg(not(target_os = "linux"))]
fn own_path() -> io::Result<std::path::PathBuf> {
    std::env::current_exe()
}

/// The guardian, as a process of its own.
pub(crate) fn main() -> ExitCode {
    // What is meant for everything called lockkeeper is not meant for the one who watches over it.
    sys::block_all();
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"lk-guardian");
    raise_limit();
    let mark = std::env::args_os().nth(2).unwrap_or_default().into_encoded_bytes();
    let mut ward = Ward { mark, ..Ward::default() };
    let mut kill_at = None;
    loop {
        // Without a child there is nothing to do by any time.
        match next(kill_at.filter(|_| ward.group.is_some())) {
            Ok(Message::Child(number)) => {
                ward.child = Pid::from_raw(number);
                ward.group = ward.child;
            }
            Ok(Message::ChildEnded) => ward.child = None,
            Ok(Message::KillAt(time)) => kill_at = Some(time),
            Ok(Message::None) if kill_at.is_some_and(|time| clock::now() >= time) => {
                ward.kill();
                return TIME_WAS_OVER.into();
            }
            Ok(Message::None) => ward.look_now_and_then(),
            Err(_) => {
                ward.kill();
                return ExitCode::SUCCESS;
            }
        }
    }
}

/// A handle of each process below the command takes a descriptor, and those may be many.
fn raise_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ =
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// Whom a guardian sees to.
#[derive(Default)]
struct Ward {
    group: Option<Pid>,
    /// The command, as long as it is not reaped.
    child: Option<Pid>,
    below: Descendants,
    /// When it was last looked below the command, which is long ago at first: the command may have begun
    /// before the guardian has. And when it will be looked again.
    looked_at: Duration,
    look_at: Duration,
    /// What stands in the environment of the command.
    mark: Vec<u8>,
}

impl Ward {
    /// Looks who is below the command. When `run` is killed the command is as well, by the kernel, and
    /// nobody knows any more whose its children were. Seldom where there are many.
    fn look_now_and_then(&mut self) {
        let begun = clock::now();
        if let Some(child) = self.child.filter(|_| begun >= self.look_at) {
            self.below.look(child, Depth::All);
            self.looked_at = begun;
            let took = clock::now().saturating_sub(begun);
            self.look_at = begun + LOOKS.max(took * 100);
        }
    }

    fn kill(&mut self) {
        if let Some(child) = self.child {
            self.below.look(child, Depth::All);
        }
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        // It may have left its group.
        if let Some(child) = self.child {
            let _ = kill_process(child, Signal::KILL);
        }
        self.below.signal(Signal::KILL);
        descendants::kill_marked(&self.mark, self.looked_at);
    }
}

enum Message {
    None,
    Child(i32),
    ChildEnded,
    KillAt(Duration),
}

/// The next message; none when none came before `until`, or for a while. What was written is read
/// before the clock is looked at: it may be that there is more time. An error is the end of the line.
fn next(until: Option<Duration>) -> io::Result<Message> {
    if !wait(until)? {
        return Ok(Message::None);
    }
    // Not through `io::stdin`: it would read ahead, and what it has read does not wake `wait`.
    // A message is written in one piece, so it is read in one piece.
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

/// Waits for a message; false when none came before `until`, or for a while.
fn wait(until: Option<Duration>) -> io::Result<bool> {
    let stdin = rustix::stdio::stdin();
    let mut polled = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
    let nap = until.map(|until| until.saturating_sub(clock::now()).min(TICK));
    let nap = nap.and_then(|nap| Timespec::try_from(nap).ok());
    Ok(poll(&mut polled, nap.as_ref())? > 0)
}
