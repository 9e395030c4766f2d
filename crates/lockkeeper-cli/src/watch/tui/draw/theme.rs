//! Styles, with and without colours.

use ratatui::style::{Color, Modifier, Style};

/// One style per meaning. No meaning is shown by colour alone: without colours it has a mark or a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    pub(super) title: Style,
    pub(super) heading: Style,
    pub(super) sorted: Style,
    pub(super) strong: Style,
    pub(super) dim: Style,
    pub(super) accent: Style,
    pub(super) key: Style,
    pub(super) good: Style,
    pub(super) warning: Style,
    pub(super) bad: Style,
    pub(super) selected: Style,
    pub(super) gone: Style,
    /// The empty part of a gauge.
    pub(super) track: Style,
}

impl Theme {
    pub(crate) fn new(colours: bool) -> Self {
        if colours { Self::coloured() } else { Self::plain() }
    }

    /// The terminal's sixteen colours, which its user has chosen to be readable, and greys.
    fn coloured() -> Self {
        let fg = |colour| Style::new().fg(colour);
        Self {
            title: Style::new().fg(Color::Black).bg(Color::Cyan).add_modifier(Modifier::BOLD),
            heading: fg(Color::Indexed(245)),
            sorted: fg(Color::Cyan).add_modifier(Modifier::BOLD),
            strong: Style::new().add_modifier(Modifier::BOLD),
            dim: fg(Color::Indexed(245)),
            accent: fg(Color::Cyan),
            key: fg(Color::Cyan).add_modifier(Modifier::BOLD),
            good: fg(Color::Green),
            warning: fg(Color::Yellow),
            bad: fg(Color::Red).add_modifier(Modifier::BOLD),
            selected: Style::new().bg(Color::Indexed(237)),
            gone: fg(Color::Indexed(242)).add_modifier(Modifier::CROSSED_OUT),
            track: Style::new().bg(Color::Indexed(236)),
        }
    }

    fn plain() -> Self {
        let with = |modifier| Style::new().add_modifier(modifier);
        Self {
            title: with(Modifier::REVERSED),
            heading: with(Modifier::UNDERLINED),
            sorted: with(Modifier::UNDERLINED | Modifier::BOLD),
            strong: with(Modifier::BOLD),
            dim: Style::new(),
            accent: with(Modifier::BOLD),
            key: with(Modifier::BOLD),
            good: Style::new(),
            warning: with(Modifier::BOLD),
            bad: with(Modifier::BOLD),
            selected: with(Modifier::REVERSED),
            gone: with(Modifier::DIM | Modifier::CROSSED_OUT),
            track: Style::new(),
        }
    }
}
