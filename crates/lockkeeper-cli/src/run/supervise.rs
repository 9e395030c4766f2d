//! Supervises the command while the lock is held.
//!
//! One loop, which reads the clock first in every turn: a process that was stopped for longer than its
//! lease must notice that before it does anything else.
//!
//! | state | event | result |
//! |---|---|---|
//! | running | the command ends | its own exit code |
//! | running | the lock is lost, or is about to be | stopping |
//! | running | `--max-hold` has passed | stopping |
//! | stopping | the grace has passed, or the lease is about to expire | `KILL` |
//! | stopping | no process of the group and no descendant is left | exit code 76 or 124 |

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

/// The polling interval for a group whose leader has ended.
const GROUP_TICK: Duration = Duration::from_millis(10);

/// A process that survives SIGKILL for this long hangs in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// If this process was stopped, the SIGCONT that resumed it arrives within this time.
const CONTINUED_LIMIT: Duration = Duration::from_millis(50);

/// The loss reason after the guardian has acted.
const STOPPED_TOO_LONG: &str = "its lease was about to expire while this process was stopped";

/// Why the command must end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Why {
    /// The lock is lost, for this reason.
    Lost(String),
    MaxHold,
}

/// How the command ended.
pub(super) struct Ending {
    /// `None` if it could not be killed.
    pub(super) status: Option<ExitStatus>,
    /// `None` if it ended by itself.
    pub(super) why: Option<Why>,
    /// Which group got the signals of the keyboard.
    pub(super) foreground: Option<Foreground>,
    /// The line of `--on-lost`, if it was started.
    pub(super) hook: Option<Hook>,
}

impl Ending {
    /// The lock was lost before the command started.
    pub(super) fn lost(reason: &str) -> Self {
        let why = Some(Why::Lost(reason.to_owned()));
        Self { status: None, why, foreground: None, hook: None }
    }
}

/// The group that had the foreground of the terminal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Foreground {
    /// The group of this process.
    Ours,
    /// The group of the command.
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
    /// The known end of the lease.
    pub(super) deadline: Duration,
    /// The end of `--max-hold`.
    pub(super) max_hold_at: Option<Duration>,
    pub(super) on_lost: Option<&'a OsStr>,
    pub(super) environment: &'a Environment,
    pub(super) state: Progress,
}

/// The state that changes while the command runs.
#[derive(Default)]
pub(super) struct Progress {
    stop: Option<Stop>,
    status: Option<ExitStatus>,
    foreground: Option<Foreground>,
    hook: Option<Hook>,
    descendants: Descendants,
}

enum Event {
    Lost(LostReason),
    Child,
    Signal(Signal),
    Tick,
}

impl Supervisor<'_> {
    /// Runs until the command, and all processes that must end with it, have ended.
    pub(super) async fn watch(mut self) -> Ending {
        let mut lost = pin!(self.guard.lost());
        loop {
            let timeout = self.timeout();
            let losing = self.is_losing();
            let event = tokio::select! {
                biased;
                reason = &mut lost, if !losing => Event::Lost(reason),
                signal = self.signals.any() => signal.map_or(Event::Child, Event::Signal),
                () = tokio::time::sleep(timeout) => Event::Tick,
            };
            self.check_clock();
            match event {
                Event::Lost(reason) if !self.is_losing() => {
                    self.stop(Why::Lost(reason.to_string()));
                }
                Event::Child => self.check_children().await,
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

    /// Acts on the clock. Called first in every turn.
    fn check_clock(&mut self) {
        let now = clock::now();
        if !self.is_losing() {
            if self.guard.is_lost() {
                // Before the deadline the store has reported the loss, and the reason follows.
                if now >= self.deadline {
                    self.stop(Why::Lost("its lease expired while this process was stopped".into()));
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
            self.signal_all(Signal::KILL);
        }
    }

    /// Takes over the deadline of the last renewal. If the rest of the lease is only enough to stop the
    /// command, the lock counts as lost.
    fn renewed(&mut self, now: Duration) {
        let remaining = self.guard.remaining();
        self.deadline = now + remaining;
        if let Some(guardian) = &mut self.guardian {
            guardian.prolong(self.deadline.saturating_sub(GUARDIAN_MARGIN));
        }
        if remaining <= self.plan.stop_margin() {
            self.stop(Why::Lost(LostReason::Unreachable.to_string()));
        }
    }

    /// Starts to stop the command, and sets the time of the kill. A loss overrides `--max-hold`.
    fn stop(&mut self, why: Why) {
        let now = clock::now();
        let grace_ends = now + self.plan.grace;
        let kill_at = match why {
            Why::Lost(_) => grace_ends.min(self.deadline.saturating_sub(KILL_MARGIN)),
            Why::MaxHold => grace_ends,
        };
        let before = self.state.stop.take();
        let (signalled, killed) = (before.is_some(), before.as_ref().is_some_and(|s| s.killed));
        let kill_at = before.map_or(kill_at, |before| before.kill_at.min(kill_at));
        // Without any grace left, KILL comes first.
        if !signalled && kill_at > now {
            self.signal_all(self.plan.signal);
            self.signal_all(Signal::CONT);
        } else if !killed && kill_at <= now {
            self.signal_all(Signal::KILL);
        }
        let killed = killed || kill_at <= now;
        if let Why::Lost(reason) = &why {
            // No renewal after the loss, and no release while the command may still run.
            self.client.abandon();
            self.log(format_args!("stopping the command: {reason}"));
            self.state.hook = Some(Hook::start(self.on_lost, self.environment, reason));
        } else {
            let (name, span) = (self.guard.name(), self.plan.max_hold.unwrap_or_default());
            say(format_args!(
                "stopping the command: lock \"{name}\" was held for --max-hold {span:?}"
            ));
        }
        self.state.stop = Some(Stop { why, kill_at, killed });
    }

    async fn check_children(&mut self) {
        if self.state.status.is_none() {
            match self.child.state() {
                State::Running => {}
                State::Stopped(signal) => self.command_stopped(signal).await,
                State::Ended => self.command_ended(),
            }
        }
        self.check_guardian();
        if let Some(hook) = &mut self.state.hook {
            hook.is_running();
        }
        self.reap_orphans();
    }

    /// Reaps children that this process did not start: the first process of a container inherits orphans.
    fn reap_orphans(&self) {
        let child = (!self.child.is_reaped()).then(|| self.child.group());
        let guardian = self.guardian.as_ref().map(Guardian::pid);
        let own = [child, guardian, self.state.hook.as_ref().and_then(Hook::pid)];
        // An own child at the head of the list ends the loop; it is handled in the next turn.
        while let Some(zombie) = sys::zombie_child().filter(|pid| !own.contains(&Some(*pid))) {
            let _ = waitid(WaitId::Pid(zombie), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }

    fn check_guardian(&mut self) {
        let group = self.child.group();
        let health = self.guardian.as_mut().map_or(Health::Alive, |guardian| guardian.check(group));
        match health {
            Health::Alive => {}
            Health::Replaced => self.log("the guardian had died and was replaced"),
            Health::Acted => {
                self.guardian = None;
                if !self.is_losing() {
                    self.stop(Why::Lost(STOPPED_TOO_LONG.into()));
                }
            }
            Health::Dead => {
                self.guardian = None;
                say("the guardian has died and cannot be replaced: if this process is killed, \
                     the children of the command continue");
            }
        }
    }

    fn command_ended(&mut self) {
        let group = self.child.group();
        if let Some(terminal) = &self.terminal {
            // If the command is a shell, one of its jobs may have the foreground.
            let is_job = |group: &Pid| self.state.descendants.contains(*group);
            let its = terminal.foreground().filter(is_job).unwrap_or(group);
            self.state.foreground = match () {
                () if terminal.is_of(its) => Some(Foreground::Its),
                () if terminal.is_ours() => Some(Foreground::Ours),
                () => None,
            };
            terminal.take_back(its);
        }
        // Processes that the command leaves behind continue, so the guardian is dismissed before the
        // group's number can be reused; unless the whole group is being stopped.
        if self.state.stop.is_none()
            && let Some(guardian) = self.guardian.take()
            && guardian.dismiss()
        {
            self.stop(Why::Lost(STOPPED_TOO_LONG.into()));
        }
        if let Some(guardian) = &mut self.guardian {
            guardian.child_ended();
        }
        let status = self.child.reap();
        let was_ended = self.state.stop.is_some() || status.signal().is_some();
        // A shell does this for its own jobs, but for the shell `run` has ended normally.
        if let Some(terminal) = &self.terminal
            && was_ended
            && self.state.foreground == Some(Foreground::Its)
        {
            terminal.restore_settings();
        }
        self.state.status = Some(status);
    }

    /// Stops this process with the command, as one job, and resumes both.
    async fn command_stopped(&mut self, signal: Signal) {
        let group = self.child.group();
        // Without a terminal no shell would resume this process.
        let Some(terminal) = &mut self.terminal else {
            return;
        };
        let uses_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
        if uses_terminal && terminal.is_ours() {
            terminal.give(group);
            self.send(Signal::CONT);
            return;
        }
        // SIGSTOP was sent to the command alone. Only a shell whose foreground job it is must see the stop.
        if signal == Signal::STOP && !terminal.is_of(group) {
            return;
        }
        terminal.take_back(group);
        let stopping = if signal == Signal::STOP { Signal::TSTP } else { signal };
        sys::apply_default(stopping);
        self.check_clock();
        if self.is_losing() {
            return;
        }
        let continued = self.signals.only(Signal::CONT);
        let stopped = tokio::time::timeout(CONTINUED_LIMIT, continued).await.is_ok();
        // The kernel does not stop an orphaned group; then the command continues too, unless it was
        // stopped on purpose by SIGSTOP.
        if stopped || signal != Signal::STOP {
            self.resume();
        }
    }

    fn resume(&mut self) {
        self.settle_terminal();
        self.send(Signal::CONT);
    }

    /// Passes the foreground on to the command. A shell does not notify a job that it brings to the front.
    fn settle_terminal(&self) {
        let running = self.state.status.is_none();
        if let Some(terminal) = self.terminal.as_ref().filter(|_| running) {
            terminal.give_again(self.child.group());
        }
    }

    fn forward(&mut self, signal: Signal) {
        match signal {
            Signal::CONT if !self.is_losing() => self.resume(),
            // Caused by the output of this process.
            Signal::XFSZ => {}
            // The terminal notifies its foreground itself.
            Signal::WINCH if self.is_in_foreground() => {}
            _ => {
                self.log(format_args!("passing {} on to the command", name(signal)));
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
            // A killed process does nothing more.
            Some(_) => {
                stop.killed || !(self.child.has_group() || self.state.descendants.any_alive())
            }
            // Without a loss, the lock is kept for a command that cannot be killed.
            None => stop.is_loss() && stop.killed && clock::now() >= stop.kill_at + KILL_LIMIT,
        }
    }

    /// The time until the next check of the clock.
    fn timeout(&self) -> Duration {
        let now = clock::now();
        let until = |time: Duration| time.saturating_sub(now);
        let mut timeout = self.plan.tick();
        if let Some(stop) = &self.state.stop {
            timeout = if stop.killed { timeout } else { timeout.min(until(stop.kill_at)) };
            timeout = if self.state.status.is_some() { timeout.min(GROUP_TICK) } else { timeout };
        } else if let Some(end) = self.max_hold_at {
            timeout = timeout.min(until(end));
        }
        timeout
    }

    fn end(mut self) -> Ending {
        // Kills members of the group that could not be seen.
        if self.state.stop.is_some() {
            self.send(Signal::KILL);
        }
        if let Some(guardian) = self.guardian.take() {
            guardian.dismiss();
        }
        let Progress { stop, status, foreground, hook, .. } = self.state;
        Ending { status, why: stop.map(|stop| stop.why), foreground, hook }
    }

    /// Sends a signal to the group and to all descendants.
    fn signal_all(&mut self, signal: Signal) {
        if !self.child.is_reaped() && signal != Signal::CONT {
            self.state.descendants.find(self.child.group(), Depth::OtherGroups);
        }
        self.send(signal);
        self.state.descendants.signal(signal);
    }

    fn send(&self, signal: Signal) {
        if let Err(error) = self.child.signal(signal) {
            say(format_args!("cannot send {} to the command: {error}", name(signal)));
        }
    }

    fn log(&self, message: impl std::fmt::Display) {
        if self.verbose {
            say(message);
        }
    }
}
