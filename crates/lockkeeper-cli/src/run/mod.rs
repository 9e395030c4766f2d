//! `run`: a command under a lock.
//!
//! The flow: choose the store, wait for the lock, run the command under it, give it back. What can
//! happen meanwhile is in [`supervise`].

mod acquire;
mod child;
mod clock;
mod descendants;
mod group;
pub(crate) mod guardian;
mod hook;
mod idle;
mod plan;
mod release;
pub(crate) mod signals;
mod supervise;
mod sys;
mod terminal;

use std::io;
use std::pin::pin;
use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper::{AnyGuard, Client, LostReason};
use rustix::process::Signal;

use crate::args::{Global, RunArgs};
use crate::exit::{Code, Failure, say};
use crate::log;
use crate::store::Store;

use acquire::{Patience, Target};
use child::{Child, Environment};
use guardian::Guardian;
use hook::Hook;
use plan::{GUARDIAN_MARGIN, Plan};
use signals::Signals;
use supervise::{Ending, Foreground, Progress, Supervisor, Why};
use sys::{Inherited, Preparation};
use terminal::Terminal;

/// How long the store is waited for when there is nothing left but to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// With `-v`, who holds the lock is told if it is not there within this time.
const WORTH_TELLING: Duration = Duration::from_millis(100);

/// How a run ended before it held the lock.
enum Outcome<T> {
    Done(T),
    Interrupted(Signal),
}

/// The command.
pub(crate) async fn run(global: &Global, args: &RunArgs) -> Result<Code, Failure> {
    log::listen(global.verbose);
    // Such as `-- $COMMAND` of a variable that is not set: nobody holds a lock for ever on purpose so.
    let is_missing = args.command.is_empty() && args.line.is_none();
    if is_missing && std::env::args_os().next_back().is_some_and(|last| last == "--") {
        return Err(Failure::usage("there is no command after --"));
    }
    let store = Store::resolve(global)?;
    let plan = Plan::new(args, &store)?;
    // Before anything starts a thread, which would inherit it.
    let inherited = Inherited::take();
    let terminal = Terminal::open();
    let signals = Signals::new().map_err(no_signals)?;
    let verbose = global.verbose > 0;
    let environment = Environment::new(args.name.given());
    Run { args, plan, terminal, inherited, signals, verbose, environment }.run(&store).await
}

struct Run<'a> {
    args: &'a RunArgs,
    plan: Plan,
    terminal: Option<Terminal>,
    inherited: Inherited,
    signals: Signals,
    verbose: bool,
    environment: Environment,
}

impl Run<'_> {
    async fn run(mut self, store: &Store) -> Result<Code, Failure> {
        // From here on a signal ends the wait in good order, and none is missed until the command is
        // there to get it.
        self.signals.listen().map_err(no_signals)?;
        self.tell(format_args!("store {} ({})", store.shown(), store.source));
        let started = Instant::now();
        let options = self.plan.options(store.options.clone(), self.args.waiting.wait);
        let options = match child::shown(&self.args.command) {
            Some(program) => options.program(program),
            None => options,
        };
        let client = match self.interruptible(store.connect_with(options)).await {
            Outcome::Done(client) => client?,
            Outcome::Interrupted(signal) => return Ok(self.interrupted(signal)),
        };
        let patience = Patience::new(&self.args.waiting).less(started.elapsed());
        let target = Target::new(&client, self.args);
        let around = self.environment.around.clone();
        let wait = wait(&target, patience, &around, self.verbose);
        let outcome = match self.interruptible(wait).await {
            Outcome::Done(outcome) => outcome,
            Outcome::Interrupted(signal) => {
                // The wait was dropped; what it had asked for is being taken back.
                goodbye(&client).await;
                return Ok(self.interrupted(signal));
            }
        };
        match outcome {
            Ok(Some(guard)) => {
                self.tell(format_args!("acquired after {:.3?}", started.elapsed()));
                self.hold(&client, guard).await
            }
            Ok(None) => {
                goodbye(&client).await;
                Ok(self.busy().await)
            }
            Err(failure) => {
                goodbye(&client).await;
                Err(failure)
            }
        }
    }

    /// Does it, unless one is told to end. Other signals were meant for the command, and it is not there:
    /// it may not want them later, and they are no reason not to begin.
    async fn interruptible<T>(&mut self, work: impl Future<Output = T>) -> Outcome<T> {
        let mut work = pin!(work);
        loop {
            let signal = tokio::select! {
                biased;
                done = &mut work => return Outcome::Done(done),
                signal = self.signals.next() => signal,
            };
            if signals::is_ending(signal) {
                return Outcome::Interrupted(signal);
            }
            self.tell(format_args!("{} came before the command", signals::name(signal)));
        }
    }

    /// The exit code of a wait that a signal has ended. At a keyboard this process ends by the signal
    /// itself, because a shell that runs a script goes on after an exit code, whatever it is.
    fn interrupted(&self, signal: Signal) -> Code {
        self.tell(format_args!("interrupted by {}", signals::name(signal)));
        let at_keyboard = self.terminal.as_ref().is_some_and(Terminal::is_ours);
        if at_keyboard && matches!(signal, Signal::INT | Signal::QUIT) {
            sys::die_of(signal);
        }
        Code::signalled(signal.as_raw())
    }

    async fn busy(&mut self) -> Code {
        self.tell("busy");
        let waiting = &self.args.waiting;
        let hook = Hook::start(waiting.on_busy.as_deref(), &self.environment, "busy");
        hook.finish(&mut self.signals).await;
        Code(waiting.busy_exit_code)
    }

    /// Runs the command under the lock, or waits for the end if there is none.
    async fn hold(mut self, client: &Client, guard: AnyGuard) -> Result<Code, Failure> {
        let acquired = clock::now();
        let permit = guard.permit_ids().first().map(ToString::to_string);
        self.environment.owner = Some(permit.unwrap_or_else(|| guard.owner_id().to_string()));
        self.environment.token = guard.token();
        let command = child::command(&self.args.command, self.args.line.as_deref());
        let ending = match command {
            Some(command) => match self.supervise(command, client, &guard).await {
                Ok(ending) => ending,
                Err(failure) => {
                    // Nothing has run, so nothing has to be kept for long.
                    let _ = release::give_back(guard, None, self.signals.ending()).await;
                    goodbye(client).await;
                    return Err(failure);
                }
            },
            None => {
                let name = guard.name();
                say(format_args!("\"{name}\" is held until this process is told to end"));
                idle::hold(&self.plan, &guard, &mut self.signals).await
            }
        };
        let rest = self.plan.at_least.map(|span| (acquired + span).saturating_sub(clock::now()));
        self.finish(ending, client, guard, rest.filter(|rest| !rest.is_zero())).await
    }

    async fn supervise(
        &mut self,
        mut command: Command,
        client: &Client,
        guard: &AnyGuard,
    ) -> Result<Ending, Failure> {
        self.environment.apply(&mut command);
        self.signals.listen_for_command().map_err(no_signals)?;
        // What has come so far was for whoever used the terminal.
        sys::take_pending(Signal::TTOU);
        let now = clock::now();
        let deadline = now + guard.remaining();
        let kill_at = deadline.saturating_sub(GUARDIAN_MARGIN);
        let guardian = Guardian::start(kill_at, self.environment.mark()).map_err(no_guardian)?;
        let steps = Preparation {
            guardian: guardian.line().map_err(no_guardian)?,
            terminal: self.terminal.as_ref().and_then(Terminal::for_child),
            inherited: self.inherited,
            not_after: kill_at,
        };
        let program = command.get_program().to_owned();
        let handed_over = steps.terminal.is_some();
        let child = match Child::spawn(command, steps) {
            Ok(child) => child,
            Err(error) => {
                guardian.dismiss();
                if let Some(terminal) = self.terminal.as_ref().filter(|_| handed_over) {
                    terminal.take();
                }
                if clock::now() >= kill_at {
                    return Ok(Ending::lost("its lease ended before the command could be started"));
                }
                return Err(child::not_started(&program, &error));
            }
        };
        self.tell(format_args!("started {} as process {}", program.display(), child.group()));
        let supervisor = Supervisor {
            plan: &self.plan,
            client,
            guard,
            child,
            guardian: Some(guardian),
            terminal: self.terminal.as_mut(),
            signals: &mut self.signals,
            verbose: self.verbose,
            deadline,
            max_hold_at: self.plan.max_hold.map(|span| now + span),
            on_lost: self.args.loss.on_lost.as_deref(),
            environment: &self.environment,
            state: Progress::default(),
        };
        Ok(supervisor.watch().await)
    }

    /// Gives the lock back, if it is there to be given back, and finds the exit code.
    async fn finish(
        mut self,
        ending: Ending,
        client: &Client,
        guard: AnyGuard,
        rest: Option<Duration>,
    ) -> Result<Code, Failure> {
        let Ending { status, why, foreground, hook } = ending;
        // What came while the command was there, or as it ended, was for the command.
        self.signals.forget().await;
        let why = if guard.is_lost() && !matches!(why, Some(Why::Lost(_))) {
            Some(Why::Lost(reason(&guard).await))
        } else {
            why
        };
        let own = match (&why, status) {
            (Some(Why::Lost(reason)), _) => self.lost(client, reason, hook).await,
            (Some(Why::MaxHold), _) => Code::MAX_HOLD,
            (None, Some(status)) => child::code(status),
            (None, None) => Code::OK,
        };
        let code = match release::give_back(guard, rest, self.signals.ending()).await {
            Ok(()) => {
                match rest {
                    Some(rest) => self.tell(format_args!("left standing for another {rest:.1?}")),
                    None => self.tell("released"),
                }
                own
            }
            Err(release::Refusal::Gone(reason)) => self.lost(client, &reason, None).await,
            Err(release::Refusal::Unknown(what)) => {
                say(&what);
                // That it stands for longer was asked for and is not certain. A plain release costs
                // nobody anything: the command has ended, and the lease will.
                if rest.is_some() && own == Code::OK { Code::UNREACHABLE } else { own }
            }
        };
        goodbye(client).await;
        if let Some(status) = status.filter(|_| why.is_none()) {
            end_as(status, foreground);
        }
        Ok(code)
    }

    /// The lock is gone: nothing more is said to the store, and nothing is waited for but the line
    /// that tells somebody, for a moment.
    async fn lost(&mut self, client: &Client, reason: &str, hook: Option<Hook>) -> ! {
        client.abandon();
        say(format_args!("the lock was lost: {reason}"));
        let line = self.args.loss.on_lost.as_deref();
        let hook = hook.unwrap_or_else(|| Hook::start(line, &self.environment, reason));
        hook.finish_soon(&mut self.signals).await;
        // Not by returning: guards that are dropped talk to the store.
        std::process::exit(i32::from(Code::LOST.0))
    }

    fn tell(&self, what: impl std::fmt::Display) {
        if self.verbose {
            say(what);
        }
    }
}

/// Why the lock is lost. That it is, is seen by the clock; the reason may take a moment.
async fn reason(guard: &AnyGuard) -> String {
    let reason = tokio::time::timeout(GOODBYE, guard.lost()).await;
    reason.unwrap_or(LostReason::Expired).to_string()
}

/// Acquires the lock. Says so if it waits for a run around this one, `around` being their holders, and
/// with `-v` for whom it waits.
async fn wait(
    target: &Target,
    patience: Patience,
    around: &[String],
    verbose: bool,
) -> Result<Option<AnyGuard>, Failure> {
    let take = target.take(patience);
    let waits = !matches!(patience, Patience::None);
    let tell = async {
        if waits && !around.is_empty() && target.waits_for_itself(around).await {
            let name = target.name();
            say(format_args!(
                "\"{name}\" is held by the `lockkeeper run` around this one, and is free only when the \
                 command of that run has ended: if that waits for this one, neither ever ends"
            ));
        }
        if !verbose {
            return std::future::pending().await;
        }
        tokio::time::sleep(WORTH_TELLING).await;
        match target.holders().await {
            Ok(Some(holders)) => say(format_args!("waiting; held by {holders}")),
            _ => say("waiting"),
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        outcome = take => outcome,
        never = tell => never,
    }
}

/// After the keyboard's interrupt, ends as the command did, and tells those beside this process what
/// the terminal told the command alone: a script around it is to end, too.
fn end_as(status: std::process::ExitStatus, foreground: Option<Foreground>) {
    use std::os::unix::process::ExitStatusExt;
    let signal = status.signal().and_then(Signal::from_named_raw);
    let Some(signal @ (Signal::INT | Signal::QUIT)) = signal else {
        return;
    };
    match foreground {
        Some(Foreground::Its) => {
            let _ = rustix::process::kill_current_process_group(signal);
            sys::die_of(signal);
        }
        Some(Foreground::Ours) => sys::die_of(signal),
        None => {}
    }
}

/// Lets the client take its leave of the store.
async fn goodbye(client: &Client) {
    let _ = tokio::time::timeout(GOODBYE, client.shutdown()).await;
}

fn no_signals(error: io::Error) -> Failure {
    Failure::internal(format!("signals cannot be listened for: {error}"))
}

fn no_guardian(error: io::Error) -> Failure {
    Failure::internal(format!("no guardian process can be started: {error}"))
}
