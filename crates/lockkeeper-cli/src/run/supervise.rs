//! Watches over the command while the lock is held.
//!
//! One loop, one look at the clock at the start of each turn, whatever has woken it: a process that was
//! stopped for longer than its lease must find that out before it does anything else.
//!
//! | the command is | and then | it ends with |
//! |---|---|---|
//! | running | it ends | its own code |
//! | running | the lock is lost, or is about to be | stopping |
//! | running | `--max-hold` is over | stopping |
//! | stopping | its grace is over, or the lease will soon be | `KILL` |
//! | stopping | nothing of its group or below it is left | 76 or 124 |

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use lockkeeper::{AnyGuard, Client, LostReason};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use super::child::{Child, Environment, State};
use super::descendants::{Depth, Descendants};
use super::guardian::{Guardian, Health};
use super::hook::Hook;
use super::plan::{GUARDIAN_MARGIN, KILL_MARGIN, Plan};
use super::signals::{Signals, name};
use super::terminal::Terminal;
use super::{clock, sys};
use crate::exit::say;

/// How often a group whose first process has ended is looked at.
const GROUP_TICK: Duration = Duration::from_millis(10);

/// What does not die of SIGKILL within this time hangs in the kernel; nothing more can be done.
const HOPELESS: Duration = Duration::from_secs(1);

/// Whether this process was stopped is known within this time: the signal that let it go on has come by
/// then.
const CONTINUED: Duration = Duration::from_millis(50);

/// Why the command must end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Why {
    /// The lock is lost, and how.
    Lost(String),
    /// It was held for as long as it may be.
    MaxHold,
}

/// How it ended.
pub(super) struct Ending {
    /// Nothing, if it would not die.
    pub(super) status: Option<ExitStatus>,
    /// Nothing, if it ended by itself.
    pub(super) why: Option<Why>,
    /// Whether the keyboard's signals were for it.
    pub(super) foreground: Option<Foreground>,
    /// What was started when the lock was lost.
    pub(super) hook: Option<Hook>,
}

impl Ending {
    /// Of what never began.
    pub(super) fn lost(reason: &str) -> Self {
        let why = Some(Why::Lost(reason.to_owned()));
        Self { status: None, why, foreground: None, hook: None }
    }
}

/// Whose the foreground of the terminal was.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Foreground {
    /// This process's group.
    Ours,
    /// The command's group.
    Its,
}

struct Stop {
    why: Why,
    kill_at: Duration,
    killed: bool,
}

impl Stop {
    fn is_loss(&self) -> bool {
        matches!(self.why, Why::Lost(_))
    }
}

pub(super) struct Supervisor<'a> {
    pub(super) plan: &'a Plan,
    pub(super) client: &'a Client,
    pub(super) guard: &'a AnyGuard,
    pub(super) child: Child,
    pub(super) guardian: Option<Guardian>,
    pub(super) terminal: Option<&'a mut Terminal>,
    pub(super) signals: &'a mut Signals,
    pub(super) verbose: bool,
    /// Until when the lease lasts, as far as is known.
    pub(super) deadline: Duration,
    /// When `--max-hold` is over.
    pub(super) max_hold_at: Option<Duration>,
    pub(super) on_lost: Option<&'a OsStr>,
    pub(super) environment: &'a Environment,
    pub(super) state: Progress,
}

/// What changes while the command runs.
#[derive(Default)]
pub(super) struct Progress {
    stop: Option<Stop>,
    status: Option<ExitStatus>,
    foreground: Option<Foreground>,
    hook: Option<Hook>,
    below: Descendants,
}

enum Event {
    Lost(LostReason),
    Child,
    Signal(Signal),
    Tick,
}

impl Supervisor<'_> {
    /// Until the command has ended, of itself or not, and with it what must end.
    pub(super) async fn watch(mut self) -> Ending {
        let mut lost = pin!(self.guard.lost());
        loop {
            let nap = self.nap();
            let losing = self.is_losing();
            let event = tokio::select! {
                biased;
                reason = &mut lost, if !losing => Event::Lost(reason),
                signal = self.signals.any() => signal.map_or(Event::Child, Event::Signal),
                () = tokio::time::sleep(nap) => Event::Tick,
            };
            self.look();
            match event {
                Event::Lost(reason) if !self.is_losing() => {
                    self.stop(Why::Lost(reason.to_string()));
                }
                Event::Child => self.see_children().await,
                Event::Signal(signal) => self.forward(signal),
                Event::Tick => {
                    self.settle_terminal();
                    if sys::take_pending(Signal::TTOU) {
                        self.forward(Signal::TTOU);
                    }
                }
                Event::Lost(_) => {}
            }
            if self.is_over() {
                return self.end();
            }
        }
    }

    /// What the clock says. Before anything else in every turn.
    fn look(&mut self) {
        let now = clock::now();
        if !self.is_losing() {
            if self.guard.is_lost() {
                // Otherwise the store said so, and the reason is on its way.
                if now >= self.deadline {
                    self.stop(Why::Lost("its lease ended while this process stood still".into()));
                }
            } else {
                self.renewed(now);
            }
        }
        if self.state.stop.is_none() && self.max_hold_at.is_some_and(|end| now >= end) {
            self.stop(Why::MaxHold);
        }
        if let Some(stop) = &mut self.state.stop
            && now >= stop.kill_at
            && !stop.killed
        {
            stop.killed = true;
            self.order(Signal::KILL);
        }
    }

    /// The lease may have been renewed; if it has not been for too long, it is as good as lost: the
    /// command needs what is left of it to end.
    fn renewed(&mut self, now: Duration) {
        let remaining = self.guard.remaining();
        self.deadline = now + remaining;
        if let Some(guardian) = &mut self.guardian {
            guardian.prolong(self.deadline.saturating_sub(GUARDIAN_MARGIN));
        }
        if remaining <= self.plan.last_call() {
            self.stop(Why::Lost(LostReason::Unreachable.to_string()));
        }
    }

    /// Tells the command to end, and decides when it must have. A loss outweighs `--max-hold`.
    fn stop(&mut self, why: Why) {
        let now = clock::now();
        let grace_ends = now + self.plan.grace;
        let kill_at = match why {
            Why::Lost(_) => grace_ends.min(self.deadline.saturating_sub(KILL_MARGIN)),
            Why::MaxHold => grace_ends,
        };
        let before = self.state.stop.take();
        let (told, killed) = (before.is_some(), before.as_ref().is_some_and(|stop| stop.killed));
        let kill_at = before.map_or(kill_at, |before| before.kill_at.min(kill_at));
        // A grace that is over already is none: there is nothing to say first.
        if !told && kill_at > now {
            self.order(self.plan.signal);
            self.order(Signal::CONT);
        } else if !killed && kill_at <= now {
            self.order(Signal::KILL);
        }
        let killed = killed || kill_at <= now;
        if let Why::Lost(reason) = &why {
            // It must neither be renewed, now that it is given up, nor given back as long as the command
            // may do something.
            self.client.abandon();
            self.tell(format_args!("stopping the command: {reason}"));
            self.state.hook = Some(Hook::start(self.on_lost, self.environment, reason));
        } else {
            let (name, span) = (self.guard.name(), self.plan.max_hold.unwrap_or_default());
            say(format_args!("stopping the command: \"{name}\" was held for --max-hold, {span:?}"));
        }
        self.state.stop = Some(Stop { why, kill_at, killed });
    }

    async fn see_children(&mut self) {
        if self.state.status.is_none() {
            match self.child.state() {
                State::Running => {}
                State::Stopped(signal) => self.command_stopped(signal).await,
                State::Ended => self.command_ended(),
            }
        }
        self.see_guardian();
        if let Some(hook) = &mut self.state.hook {
            hook.is_running();
        }
        self.bury_strangers();
    }

    /// Reaps children that this process did not start. The first process of a container inherits who has
    /// lost its parent, and would keep every one of them for ever.
    fn bury_strangers(&self) {
        let child = (!self.child.is_reaped()).then(|| self.child.group());
        let guardian = self.guardian.as_ref().map(Guardian::pid);
        let own = [child, guardian, self.state.hook.as_ref().and_then(Hook::pid)];
        // One of its own that ends just now is seen in the next turn, and so are those behind it.
        while let Some(dead) = sys::dead_child().filter(|dead| !own.contains(&Some(*dead))) {
            let _ = waitid(WaitId::Pid(dead), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }

    fn see_guardian(&mut self) {
        let group = self.child.group();
        let health = self.guardian.as_mut().map_or(Health::Well, |guardian| guardian.check(group));
        match health {
            Health::Well => {}
            Health::Replaced => self.tell("the guardian was gone and has been replaced"),
            Health::Acted => {
                self.guardian = None;
                if !self.is_losing() {
                    self.stop(Why::Lost(
                        "its lease was ending and this process stood still".into(),
                    ));
                }
            }
            Health::Gone => {
                self.guardian = None;
                say(
                    "the guardian is gone: if this process is killed, only the command itself dies",
                );
            }
        }
    }

    fn command_ended(&mut self) {
        let group = self.child.group();
        if let Some(terminal) = &self.terminal {
            // If it was a shell that had to end, one of its jobs may have it.
            let below = |at_front: &Pid| self.state.below.contains(*at_front);
            let its = terminal.foreground().filter(below).unwrap_or(group);
            self.state.foreground = match () {
                () if terminal.is_of(its) => Some(Foreground::Its),
                () if terminal.is_ours() => Some(Foreground::Ours),
                () => None,
            };
            terminal.take_back(its);
        }
        // What the command leaves behind is left alone, so the guardian goes first, and only then is
        // the number of the group given free. Unless all of the group is being stopped.
        if self.state.stop.is_none()
            && let Some(guardian) = self.guardian.take()
            && guardian.dismiss()
        {
            self.stop(Why::Lost("its lease was ending and this process stood still".into()));
        }
        if let Some(guardian) = &mut self.guardian {
            guardian.child_ended();
        }
        let status = self.child.reap();
        let was_ended = self.state.stop.is_some() || status.signal().is_some();
        // As a shell does with its jobs; but to a shell `run` has ended in good order.
        if let Some(terminal) = &self.terminal
            && was_ended
            && self.state.foreground == Some(Foreground::Its)
        {
            terminal.tidy_up();
        }
        self.state.status = Some(status);
    }

    /// A job that stops as a whole: the command has, so has this process to, and go on with it.
    async fn command_stopped(&mut self, signal: Signal) {
        let group = self.child.group();
        // Without a terminal there is nobody who would let this process go on.
        let Some(terminal) = &mut self.terminal else {
            return;
        };
        let reached_for_it = matches!(signal, Signal::TTIN | Signal::TTOU);
        if reached_for_it && terminal.is_ours() {
            terminal.give(group);
            self.send(Signal::CONT);
            return;
        }
        // Who sends it SIGSTOP means the command. A shell at the keyboard sees it as its job all the same;
        // a script around it, which is in this group, sees nothing of it.
        if signal == Signal::STOP && !terminal.is_of(group) {
            return;
        }
        terminal.take_back(group);
        let stopping = if signal == Signal::STOP { Signal::TSTP } else { signal };
        sys::suffer(stopping);
        self.look();
        if self.is_losing() {
            return;
        }
        let continued = self.signals.only(Signal::CONT);
        let stopped = tokio::time::timeout(CONTINUED, continued).await.is_ok();
        // The kernel does not stop whom nobody could let go on, and so the command goes on as well.
        // But who sent it SIGSTOP itself has a reason.
        if stopped || signal != Signal::STOP {
            self.resume();
        }
    }

    fn resume(&mut self) {
        self.settle_terminal();
        self.send(Signal::CONT);
    }

    /// Passes the foreground on if this process has got it. A shell that fetches a running job to the
    /// front does not say so.
    fn settle_terminal(&self) {
        let running = self.state.status.is_none();
        if let Some(terminal) = self.terminal.as_ref().filter(|_| running) {
            terminal.give_again(self.child.group());
        }
    }

    fn forward(&mut self, signal: Signal) {
        match signal {
            Signal::CONT if !self.is_losing() => self.resume(),
            // That is about what this process itself has written.
            Signal::XFSZ => {}
            // The terminal tells its foreground itself.
            Signal::WINCH if self.is_in_foreground() => {}
            _ => {
                self.tell(format_args!("passing {} on", name(signal)));
                self.send(signal);
            }
        }
    }

    fn is_in_foreground(&self) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| terminal.is_of(self.child.group()))
    }

    fn is_losing(&self) -> bool {
        self.state.stop.as_ref().is_some_and(Stop::is_loss)
    }

    fn is_over(&mut self) -> bool {
        let Some(stop) = &self.state.stop else {
            return self.state.status.is_some();
        };
        match self.state.status {
            // What is sent SIGKILL does nothing more.
            Some(_) => stop.killed || !(self.child.has_group() || self.state.below.lives()),
            // While the lock is held, it is held for a command that will not die, too.
            None => stop.is_loss() && stop.killed && clock::now() >= stop.kill_at + HOPELESS,
        }
    }

    /// How long nothing happens by itself.
    fn nap(&self) -> Duration {
        let now = clock::now();
        let until = |time: Duration| time.saturating_sub(now);
        let mut nap = self.plan.tick();
        if let Some(stop) = &self.state.stop {
            nap = if stop.killed { nap } else { nap.min(until(stop.kill_at)) };
            nap = if self.state.status.is_some() { nap.min(GROUP_TICK) } else { nap };
        } else if let Some(end) = self.max_hold_at {
            nap = nap.min(until(end));
        }
        nap
    }

    fn end(mut self) -> Ending {
        // Nobody seems to be left of a group that had to end. Who was not to be seen does, too.
        if self.state.stop.is_some() {
            self.send(Signal::KILL);
        }
        if let Some(guardian) = self.guardian.take() {
            guardian.dismiss();
        }
        let Progress { stop, status, foreground, hook, .. } = self.state;
        Ending { status, why: stop.map(|stop| stop.why), foreground, hook }
    }

    /// Sends a signal to all that must end.
    fn order(&mut self, signal: Signal) {
        if !self.child.is_reaped() && signal != Signal::CONT {
            self.state.below.look(self.child.group(), Depth::OtherGroups);
        }
        self.send(signal);
        self.state.below.signal(signal);
    }

    fn send(&self, signal: Signal) {
        if let Err(error) = self.child.signal(signal) {
            say(format_args!("the command cannot be sent {}: {error}", name(signal)));
        }
    }

    fn tell(&self, what: impl std::fmt::Display) {
        if self.verbose {
            say(what);
        }
    }
}
