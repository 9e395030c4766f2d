//! `run`: runs a command under a lock.
//!
//! The flow: choose the store, acquire the lock, run the command ([`supervise`]), release the lock.

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

use lockkeeper::{AnyGuard, Client, LockName, LostReason};
use rustix::process::Signal;

use crate::args::{Global, RunArgs};
use crate::exit::{Code, Failure, say};
use crate::log;
use crate::store::Store;

use acquire::{Target, WaitLimit};
use child::{Child, Environment};
use guardian::Guardian;
use hook::Hook;
use plan::{GUARDIAN_MARGIN, Plan};
use signals::Signals;
use supervise::{Ending, Foreground, Progress, Supervisor, Why};
use sys::{Inherited, Preparation};
use terminal::Terminal;

/// The time limit for closing the client.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);

/// With `-v`, the holder is printed after waiting for this time.
const REPORT_WAIT_AFTER: Duration = Duration::from_millis(100);

/// How a step before the lock is held ended.
enum Outcome<T> {
    Done(T),
    Interrupted(Signal),
}

pub(crate) async fn run(global: &Global, args: &RunArgs) -> Result<Code, Failure> {
    log::listen(global.verbose);
    // Probably `-- $COMMAND` with an unset variable, which must not hold the lock without end.
    let is_missing = args.command.is_empty() && args.line.is_none();
    if is_missing && std::env::args_os().next_back().is_some_and(|last| last == "--") {
        return Err(Failure::usage(
            "there is no command after --: add one, or omit -- to hold the lock until a signal",
        ));
    }
    let store = Store::resolve(global)?;
    let plan = Plan::new(args, &store)?;
    // Before any thread starts, which would inherit the signal mask.
    let inherited = Inherited::take();
    let terminal = Terminal::open();
    let signals = Signals::new().map_err(no_signals)?;
    let verbose = global.verbose > 0;
    let environment = Environment::new(args.name.given());
    let name = LockName::from(args.name.bytes());
    Run { args, name, plan, terminal, inherited, signals, verbose, environment }.run(&store).await
}

struct Run<'a> {
    args: &'a RunArgs,
    name: LockName,
    plan: Plan,
    terminal: Option<Terminal>,
    inherited: Inherited,
    signals: Signals,
    verbose: bool,
    environment: Environment,
}

impl Run<'_> {
    async fn run(mut self, store: &Store) -> Result<Code, Failure> {
        // From here on a signal ends the wait cleanly, and none is lost until the command runs.
        self.signals.listen().map_err(no_signals)?;
        self.log(format_args!("store {} ({})", store.shown(), store.source));
        let started = Instant::now();
        let options = self.plan.options(store.options.clone(), self.args.waiting.wait);
        let by = self.args.holding.acknowledged_by;
        let options = store.acknowledged(by, options, self.plan.lease);
        let options = match child::program_name(&self.args.command) {
            Some(program) => options.program(program),
            None => options,
        };
        let client = match self.interruptible(store.connect_with(options)).await {
            Outcome::Done(client) => client?,
            Outcome::Interrupted(signal) => return Ok(self.interrupted(signal)),
        };
        let limit = WaitLimit::new(&self.args.waiting).less(started.elapsed());
        let target = Target::new(&client, self.args);
        // With the prefix of the configuration.
        self.name = target.name().clone();
        let around = self.environment.around.clone();
        let verbose = self.verbose;
        let wait = wait(&target, limit, &around, verbose);
        let outcome = match self.interruptible(wait).await {
            Outcome::Done(outcome) => outcome,
            Outcome::Interrupted(signal) => {
                // Dropping the wait undoes its request in the background.
                shut_down(&client).await;
                return Ok(self.interrupted(signal));
            }
        };
        match outcome {
            Ok(Some(guard)) => {
                self.log(format_args!("acquired {} after {:.3?}", self.lock(), started.elapsed()));
                self.hold(&client, guard).await
            }
            Ok(None) => {
                shut_down(&client).await;
                Ok(self.busy().await)
            }
            Err(failure) => {
                shut_down(&client).await;
                Err(failure)
            }
        }
    }

    /// Does the work unless a signal ends it. Other signals are for the command, which does not run yet:
    /// they are dropped.
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
            self.log(format_args!(
                "dropped {}: the command does not run yet",
                signals::name(signal)
            ));
        }
    }

    /// The exit code of a wait that a signal has ended. After a keyboard signal this process kills itself
    /// with it, because a shell continues its script after any exit code.
    fn interrupted(&self, signal: Signal) -> Code {
        self.log(format_args!("interrupted by {}", signals::name(signal)));
        let at_keyboard = self.terminal.as_ref().is_some_and(Terminal::is_ours);
        if at_keyboard && matches!(signal, Signal::INT | Signal::QUIT) {
            sys::die_of(signal);
        }
        Code::signalled(signal.as_raw())
    }

    async fn busy(&mut self) -> Code {
        self.log(format_args!("{} is busy", self.lock()));
        let waiting = &self.args.waiting;
        let hook = Hook::start(waiting.on_busy.as_deref(), &self.environment, "busy");
        hook.finish(&mut self.signals).await;
        Code(waiting.busy_exit_code)
    }

    /// Runs the command under the lock, or waits for a signal if there is none.
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
                    // The command has not run, so `--at-least` does not apply.
                    let _ = release::release(guard, None, self.signals.ending()).await;
                    shut_down(client).await;
                    return Err(failure);
                }
            },
            None => {
                say(format_args!("{} is held: send INT or TERM to release it", self.lock()));
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
        // A SIGTTOU so far was not caused by the command.
        sys::take_pending(Signal::TTOU);
        let now = clock::now();
        let deadline = now + guard.remaining();
        let kill_at = deadline.saturating_sub(GUARDIAN_MARGIN);
        let guardian = Guardian::start(kill_at, self.environment.mark()).map_err(no_guardian)?;
        let steps = Preparation {
            guardian: guardian.socket().map_err(no_guardian)?,
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
                    return Ok(Ending::lost("its lease expired before the command was started"));
                }
                return Err(child::not_started(&program, &error));
            }
        };
        self.log(format_args!("started {} as process {}", program.display(), child.group()));
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

    /// Releases the lock, if it is still held, and determines the exit code.
    async fn finish(
        mut self,
        ending: Ending,
        client: &Client,
        guard: AnyGuard,
        rest: Option<Duration>,
    ) -> Result<Code, Failure> {
        let Ending { status, why, foreground, hook } = ending;
        // Signals until the end of the command were for the command.
        self.signals.clear().await;
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
        let code = match release::release(guard, rest, self.signals.ending()).await {
            Ok(()) => {
                match rest {
                    Some(rest) => {
                        self.log(format_args!("{} stays held for {rest:.1?}", self.lock()))
                    }
                    None => self.log(format_args!("released {}", self.lock())),
                }
                own
            }
            Err(release::Unreleased::Lost(reason)) => self.lost(client, &reason, None).await,
            Err(release::Unreleased::Unconfirmed(message)) => {
                say(&message);
                // `--at-least` was requested and is uncertain. A plain release without an answer is
                // harmless: the lease expires.
                if rest.is_some() && own == Code::OK { Code::UNREACHABLE } else { own }
            }
        };
        shut_down(client).await;
        if let Some(status) = status.filter(|_| why.is_none()) {
            end_as(status, foreground);
        }
        Ok(code)
    }

    /// Ends the process after a loss. Sends nothing more to the store, and waits only for the line of
    /// `--on-lost`.
    async fn lost(&mut self, client: &Client, reason: &str, hook: Option<Hook>) -> ! {
        client.abandon();
        say(format_args!("{} was lost: {reason}", self.lock()));
        let line = self.args.loss.on_lost.as_deref();
        let hook = hook.unwrap_or_else(|| Hook::start(line, &self.environment, reason));
        hook.finish_soon(&mut self.signals).await;
        // Not by returning: dropped guards send requests to the store.
        std::process::exit(i32::from(Code::LOST.0))
    }

    /// The lock in a message.
    fn lock(&self) -> String {
        format!("lock \"{}\"", self.name)
    }

    fn log(&self, message: impl std::fmt::Display) {
        if self.verbose {
            say(message);
        }
    }
}

/// The loss reason. The clock shows a loss at once; the reason may arrive later.
async fn reason(guard: &AnyGuard) -> String {
    let reason = tokio::time::timeout(SHUTDOWN_LIMIT, guard.lost()).await;
    reason.unwrap_or(LostReason::Expired).to_string()
}

/// Acquires the lock. Warns if a run around this one holds it (`around` are the ids of those runs), and
/// with `-v` prints the holder.
async fn wait(
    target: &Target,
    limit: WaitLimit,
    around: &[String],
    verbose: bool,
) -> Result<Option<AnyGuard>, Failure> {
    let acquire = target.acquire(limit);
    let waits = !matches!(limit, WaitLimit::NoWait);
    let report = async {
        let name = target.name();
        if waits && !around.is_empty() && target.waits_for_itself(around).await {
            say(format_args!(
                "lock \"{name}\" is held by the `lockkeeper run` around this one: if its command waits for \
                 this one, neither ever ends"
            ));
        }
        if !verbose {
            return std::future::pending().await;
        }
        tokio::time::sleep(REPORT_WAIT_AFTER).await;
        match target.holders().await {
            Ok(Some(holders)) => say(format_args!("waiting for lock \"{name}\": {holders}")),
            _ => say(format_args!("waiting for lock \"{name}\"")),
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        outcome = acquire => outcome,
        never = report => never,
    }
}

/// After an interrupt from the keyboard, ends by the same signal as the command. If only the command's
/// group got it, sends it to this process group too, so that a script around it ends.
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

/// Closes the client within the time limit.
async fn shut_down(client: &Client) {
    let _ = tokio::time::timeout(SHUTDOWN_LIMIT, client.shutdown()).await;
}

fn no_signals(error: io::Error) -> Failure {
    Failure::internal(format!("cannot handle signals: {error}"))
}

fn no_guardian(error: io::Error) -> Failure {
    Failure::internal(format!("cannot start the guardian process: {error}"))
}
