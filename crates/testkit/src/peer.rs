//! A program in another language that does what its input says: one line a command, one line an answer,
//! in whatever order the commands finish. `java/README.md` has the protocol.

mod clock;
mod pending;
mod switchboard;

use std::io::{BufRead, BufReader, ErrorKind};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub use pending::{Answer, Pending, Thrown};

use crate::process::Process;
use clock::Clock;
use switchboard::{GREETING, Switchboard};

/// A JVM and a client need a second; two of them on two busy cores have been seen to need five.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Ending is at once.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Of so many round trips, the quickest says how the clocks compare.
const CLOCK_ROUNDS: usize = 32;

/// Such a program, running; killed and reaped on `Drop`.
///
/// It cannot outlive this process. Its error output goes where this process's goes.
pub(crate) struct Peer {
    process: Process,
    switchboard: Arc<Switchboard>,
    clock: Clock,
    greeting: String,
}

impl Peer {
    /// Starts it; returns when it is connected.
    ///
    /// # Panics
    ///
    /// If it cannot be started or connected; the message says why, and `how_to_get_it` if there is no
    /// such program.
    pub(crate) fn start(mut command: Command, how_to_get_it: &str) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command, None).unwrap_or_else(|error| {
            let hint = if error.kind() == ErrorKind::NotFound { how_to_get_it } else { "" };
            panic!("{:?} cannot be run: {error}. {hint}", command.get_program())
        });

        let input = process.child_mut().stdin.take().expect("its input is piped");
        let output = process.child_mut().stdout.take().expect("its output is piped");
        let switchboard = Arc::new(Switchboard::new(input));
        let greeting = switchboard.expect(GREETING, "start");
        read_answers(output, Arc::clone(&switchboard));

        let greeting = Pending::new(greeting, Clock::UNSET, |words| words[0].clone());
        let greeting = greeting.answer_within(START_LIMIT);
        let greeting =
            greeting.unwrap_or_else(|| panic!("the peer has not started within {START_LIMIT:?}"));
        let greeting = greeting.ok();

        let clock = Clock::compare(&switchboard, CLOCK_ROUNDS);
        Self { process, switchboard, clock, greeting }
    }

    /// What it said when it was connected.
    pub(crate) fn greeting(&self) -> &str {
        &self.greeting
    }

    pub(crate) fn clock_error(&self) -> Duration {
        self.clock.error()
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Closes its input and waits for its end.
    ///
    /// # Panics
    ///
    /// If it does not end.
    pub(crate) fn close(mut self) -> ExitStatus {
        self.switchboard.close();
        let status = self.process.wait(END_LIMIT);
        status.unwrap_or_else(|| panic!("the peer runs {END_LIMIT:?} after its input was closed"))
    }

    /// Sends a command; `words` are written as they are.
    pub(crate) fn send<T>(
        &self,
        worker: &str,
        words: &[&str],
        read: fn(&[String]) -> T,
    ) -> Pending<T> {
        Pending::new(self.switchboard.send(worker, words), self.clock, read)
    }
}

/// A thread, because whoever waits for an answer may be busy elsewhere. It ends when the peer does.
fn read_answers(output: ChildStdout, switchboard: Arc<Switchboard>) {
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            switchboard.answered(&line);
        }
        switchboard.ended();
    });
}
