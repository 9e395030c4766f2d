//! The event loop: feeds keys, polls, ticks and signals into the view, and draws it.

use std::io;
use std::thread;
use std::time::Duration;

use crossterm::event::{Event, KeyEventKind};
use lockkeeper::{Inspector, Kind, LockName};
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::draw::{self, Theme};
use super::keys::Action;
use super::poller::{self, Report};
use super::row::Now;
use super::screen::Screen;
use super::view::{Tone, View};
use crate::display;
use crate::exit::{Code, Failure};
use crate::store::Store;

/// The interval between frames.
const FRAME: Duration = Duration::from_millis(200);

/// Runs until the user quits.
pub(super) async fn run(
    store: Store,
    pattern: Vec<u8>,
    every: Duration,
    theme: Theme,
) -> Result<Code, Failure> {
    let shown = String::from_utf8_lossy(&pattern);
    let view = View::new(store.shown(), display::text(&shown), every, Now::get());
    let (reports, mut reported) = mpsc::unbounded_channel();
    let (pausing, paused) = watch::channel(false);
    let mut signals = Signals::new().map_err(|error| broken(&error))?;
    let screen = Screen::new().map_err(|error| broken(&error))?;
    let mut keys = keys();
    tokio::spawn(poller::poll(store, pattern, every, paused, reports.clone()));

    let mut live = Live { view, screen, theme, inspector: None, pausing, reports };
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        live.draw().map_err(|error| broken(&error))?;
        let end = tokio::select! {
            key = keys.recv() => match key {
                Some(event) => live.event(event).map_err(|error| broken(&error))?,
                // The terminal was closed.
                None => Some(Ok(Code::OK)),
            },
            Some(report) = reported.recv() => live.report(report),
            _ = frames.tick() => {
                live.view.tick(Now::get());
                None
            }
            signal = signals.next() => live.signal(signal).map_err(|error| broken(&error))?,
        };
        if let Some(end) = end {
            return end;
        }
    }
}

/// The result of the loop, if it ends.
type End = Option<Result<Code, Failure>>;

struct Live {
    view: View,
    screen: Screen,
    theme: Theme,
    /// Set once the store is connected.
    inspector: Option<Inspector>,
    pausing: watch::Sender<bool>,
    reports: mpsc::UnboundedSender<Report>,
}

impl Live {
    fn draw(&mut self) -> io::Result<()> {
        let (view, theme, now) = (&mut self.view, &self.theme, Now::get());
        self.screen.draw(|frame| draw::draw(frame, view, theme, now))
    }

    fn event(&mut self, event: Event) -> io::Result<End> {
        let now = Now::get();
        let action = match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.view.key(key, now),
            Event::Paste(text) => {
                self.view.paste(&text, now);
                None
            }
            // The next frame reads a new size.
            _ => None,
        };
        match action {
            Some(Action::Quit) => return Ok(Some(Ok(Code::OK))),
            Some(Action::Suspend) => {
                self.screen.leave();
                // The whole job, as the terminal would do; `signal` then stops this process.
                kill_current_process_group(Signal::TSTP)?;
            }
            Some(Action::Redraw) => self.screen.clear()?,
            Some(Action::Pause(paused)) => drop(self.pausing.send(paused)),
            Some(Action::Inspect(name, kind)) => self.inspect(name, kind),
            Some(Action::Force { name, kind, reason, from }) => {
                if let Some(inspector) = self.inspector.clone() {
                    let reports = self.reports.clone();
                    tokio::spawn(poller::force(inspector, (name, kind), reason, from, reports));
                }
            }
            None => {}
        }
        Ok(None)
    }

    fn inspect(&self, name: LockName, kind: Kind) {
        if let Some(inspector) = self.inspector.clone() {
            tokio::spawn(poller::inspect(inspector, name, kind, self.reports.clone()));
        }
    }

    fn report(&mut self, report: Report) -> End {
        let now = Now::get();
        match report {
            Report::Connected(inspector) => self.inspector = Some(inspector),
            Report::Looked(look) => {
                self.view.looked(look, now);
                if let Some(Action::Inspect(name, kind)) = self.view.wanted() {
                    self.inspect(name, kind);
                }
            }
            Report::Failed(why) => self.view.failed(why),
            Report::Inspected(lock) => self.view.inspected(*lock, now),
            Report::Forced(name, Ok(Some(consequence))) => {
                let name = display::name(&name);
                let text = format!("lock \"{name}\" was force-released; {consequence}");
                self.view.notify(Tone::Good, text, now);
            }
            Report::Forced(name, Ok(None)) => {
                let name = display::name(&name);
                let text = format!("lock \"{name}\" is free: there is nothing to release");
                self.view.notify(Tone::Bad, text, now);
            }
            Report::Forced(_, Err(why)) => self.view.notify(Tone::Bad, why, now),
            Report::Fatal(failure) => return Some(Err(failure)),
        }
        None
    }

    fn signal(&mut self, signal: Signal) -> io::Result<End> {
        match signal {
            Signal::TSTP => {
                self.screen.leave();
                // Not TSTP, which has a handler.
                kill_process(getpid(), Signal::STOP)?;
            }
            // In the background this stops the process again, as intended.
            Signal::CONT => self.screen.enter()?,
            fatal => {
                let number = u8::try_from(fatal.as_raw()).unwrap_or(0);
                return Ok(Some(Ok(Code(128_u8.saturating_add(number)))));
            }
        }
        Ok(None)
    }
}

/// Reads the terminal in a thread, because reading blocks. The thread ends with the process.
fn keys() -> mpsc::UnboundedReceiver<Event> {
    let (sender, keys) = mpsc::unbounded_channel();
    thread::spawn(move || {
        while let Ok(event) = crossterm::event::read() {
            if sender.send(event).is_err() {
                break;
            }
        }
    });
    keys
}

/// The signals whose default action would leave the terminal in raw mode.
struct Signals {
    ends: [(Signal, unix::Signal); 4],
    stop: unix::Signal,
    resume: unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let on = |signal: Signal| unix::signal(SignalKind::from_raw(signal.as_raw()));
        let end = |signal: Signal| Ok::<_, io::Error>((signal, on(signal)?));
        Ok(Self {
            ends: [end(Signal::TERM)?, end(Signal::INT)?, end(Signal::HUP)?, end(Signal::QUIT)?],
            stop: on(Signal::TSTP)?,
            resume: on(Signal::CONT)?,
        })
    }

    async fn next(&mut self) -> Signal {
        let [term, int, hup, quit] = &mut self.ends;
        tokio::select! {
            // Stop before resume: if both are pending, the process must not end up stopped.
            biased;
            _ = term.1.recv() => term.0,
            _ = int.1.recv() => int.0,
            _ = hup.1.recv() => hup.0,
            _ = quit.1.recv() => quit.0,
            _ = self.stop.recv() => Signal::TSTP,
            _ = self.resume.recv() => Signal::CONT,
        }
    }
}

fn broken(error: &io::Error) -> Failure {
    Failure::internal(format!("cannot use the terminal: {error}"))
}
