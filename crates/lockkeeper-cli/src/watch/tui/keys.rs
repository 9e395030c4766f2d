//! Effects of keys on the view.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use lockkeeper::{Holder, Kind, LockName};

use super::row::Now;
use super::view::{Forcing, Mode, Tone, View, can_be_forced};
use crate::row::starts_descending;

/// An action outside of the view.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    Quit,
    /// Stop the process, as Ctrl-Z does elsewhere.
    Suspend,
    /// Redraw the screen after other output.
    Redraw,
    /// Pause or resume polling.
    Pause(bool),
    Inspect(LockName, Kind),
    Force {
        name: LockName,
        kind: Kind,
        reason: String,
        /// Only these holders.
        from: Vec<Holder>,
    },
}

impl View {
    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent, now: Now) -> Option<Action> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            // These work in every mode.
            return match key.code {
                // For the test that a panic restores the terminal.
                #[cfg(debug_assertions)]
                KeyCode::Char('p') => panic!("Ctrl-P panics in a debug build"),
                KeyCode::Char('c') => Some(Action::Quit),
                KeyCode::Char('z') => Some(Action::Suspend),
                KeyCode::Char('l') => Some(Action::Redraw),
                KeyCode::Char('u') => {
                    self.typed(now, String::clear);
                    None
                }
                _ => None,
            };
        }
        match &mut self.mode {
            Mode::Browsing => self.browse(key.code, now),
            Mode::Filtering { .. } => self.filter_key(key.code, now),
            Mode::Forcing(_) => self.forcing_key(key.code),
            Mode::Help => {
                self.mode = Mode::Browsing;
                (key.code == KeyCode::Char('q')).then_some(Action::Quit)
            }
        }
    }

    /// Handles pasted text; control characters in it are not keys.
    pub(super) fn paste(&mut self, text: &str, now: Now) {
        let line: String = text.chars().filter(|c| !c.is_control()).collect();
        self.typed(now, |typed| typed.push_str(&line));
    }

    fn browse(&mut self, code: KeyCode, now: Now) -> Option<Action> {
        let page = self.page();
        match code {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Esc => return self.step_back(now),
            KeyCode::Char('?') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filtering { before: self.filter.clone() },
            KeyCode::Char('s') => self.sort_by_next(now),
            KeyCode::Char('S') | KeyCode::Char('r') => {
                self.descending = !self.descending;
                self.arrange(self.shown_at(now));
            }
            KeyCode::Char(' ') => return Some(self.toggle_pause(now)),
            KeyCode::Char('u') => self.ask_to_force(now),
            KeyCode::Enter => {
                self.pane = !self.pane;
                return self.wanted();
            }
            KeyCode::Char('J') => self.pane_top = self.pane_top.saturating_add(1),
            KeyCode::Char('K') => self.pane_top = self.pane_top.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => return self.moved(|view| view.step(1)),
            KeyCode::Up | KeyCode::Char('k') => return self.moved(|view| view.step(-1)),
            KeyCode::PageDown => return self.moved(|view| view.step(page)),
            KeyCode::PageUp => return self.moved(|view| view.step(-page)),
            KeyCode::Home | KeyCode::Char('g') => return self.moved(|view| view.select(0)),
            KeyCode::End | KeyCode::Char('G') => {
                return self.moved(|view| view.select(usize::MAX));
            }
            _ => {}
        }
        None
    }

    /// The inspection that the pane needs.
    pub(super) fn wanted(&self) -> Option<Action> {
        let row = self.selected().filter(|_| self.pane)?;
        Some(Action::Inspect(row.lock.name.clone(), row.lock.kind))
    }

    fn moved(&mut self, step: impl FnOnce(&mut Self)) -> Option<Action> {
        step(self);
        self.wanted()
    }

    /// Closes the pane, else clears the filter, else quits.
    fn step_back(&mut self, now: Now) -> Option<Action> {
        if self.pane {
            self.pane = false;
        } else if !self.filter.is_empty() {
            self.filter.clear();
            self.arrange(self.shown_at(now));
        } else {
            return Some(Action::Quit);
        }
        None
    }

    fn sort_by_next(&mut self, now: Now) {
        self.sort = self.sort.next();
        self.descending = starts_descending(self.sort);
        self.arrange(self.shown_at(now));
    }

    fn toggle_pause(&mut self, now: Now) -> Action {
        let paused = !self.is_paused();
        self.set_paused(paused, now);
        Action::Pause(paused)
    }

    fn ask_to_force(&mut self, now: Now) {
        let Some(lock) = self.selected().filter(|row| !row.is_gone()).map(|row| row.lock.clone())
        else {
            return;
        };
        if !can_be_forced(lock.kind) {
            let instead = match lock.kind {
                Kind::Permits => "free permits with lockkeeper unlock",
                _ => "it has no holders",
            };
            let text = format!("a {} cannot be force-released: {instead}", lock.kind);
            return self.notify(Tone::Bad, text, now);
        }
        let forcing = Forcing { lock, reason: String::new(), sure: false };
        self.mode = Mode::Forcing(Box::new(forcing));
    }

    fn filter_key(&mut self, code: KeyCode, now: Now) -> Option<Action> {
        match code {
            KeyCode::Enter => self.mode = Mode::Browsing,
            KeyCode::Esc => {
                if let Mode::Filtering { before } =
                    std::mem::replace(&mut self.mode, Mode::Browsing)
                {
                    self.filter = before;
                    self.arrange(self.shown_at(now));
                }
            }
            KeyCode::Backspace => self.typed(now, |text| text.truncate(shorter(text))),
            KeyCode::Char(c) => self.typed(now, |text| text.push(c)),
            KeyCode::Down => self.step(1),
            KeyCode::Up => self.step(-1),
            _ => {}
        }
        self.wanted()
    }

    fn forcing_key(&mut self, code: KeyCode) -> Option<Action> {
        let Mode::Forcing(forcing) = &mut self.mode else { return None };
        match (code, forcing.sure) {
            (KeyCode::Esc, _) | (KeyCode::Char('n' | 'N' | 'q'), true) => {
                self.mode = Mode::Browsing;
            }
            (KeyCode::Char('y' | 'Y'), true) => {
                let Forcing { lock, reason, .. } = (**forcing).clone();
                let reason = reason.trim().to_owned();
                self.mode = Mode::Browsing;
                // The confirmation covers only the holders that were shown.
                let (name, kind, from) = (lock.name, lock.kind, lock.holders);
                return Some(Action::Force { name, kind, reason, from });
            }
            // A reason is mandatory.
            (KeyCode::Enter, false) => forcing.sure = !forcing.reason.trim().is_empty(),
            (KeyCode::Backspace, true) => forcing.sure = false,
            (KeyCode::Backspace, false) => forcing.reason.truncate(shorter(&forcing.reason)),
            (KeyCode::Char(c), false) => forcing.reason.push(c),
            _ => {}
        }
        None
    }

    /// Changes the text being typed, if any.
    fn typed(&mut self, now: Now, change: impl FnOnce(&mut String)) {
        match &mut self.mode {
            Mode::Filtering { .. } => {
                change(&mut self.filter);
                self.arrange(self.shown_at(now));
            }
            Mode::Forcing(forcing) if !forcing.sure => change(&mut forcing.reason),
            _ => {}
        }
    }
}

/// The length without the last character.
fn shorter(text: &str) -> usize {
    text.char_indices().next_back().map_or(0, |(at, _)| at)
}
