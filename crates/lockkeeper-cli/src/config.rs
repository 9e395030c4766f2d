//! The configuration file: `lockkeeper/config.toml` below the user's configuration directory, or
//! `--config`.
//!
//! It says what a command line would otherwise repeat, and no more.

use std::env;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::duration;
use crate::exit::{Code, Failure, say};

/// What the file may say. A key that is not known is an error: a misspelt one would otherwise be
/// found out only when the wrong store is used.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The store.
    pub(crate) url: Option<String>,
    /// The file whose first line is the password.
    pub(crate) password_file: Option<PathBuf>,
    /// The lease of `run`.
    #[serde(default, deserialize_with = "span")]
    pub(crate) lease: Option<Duration>,
    /// Put before every name.
    pub(crate) prefix: Option<String>,
    /// The certificate authority to trust for `rediss://` (a PEM file).
    pub(crate) tls_ca: Option<PathBuf>,
    /// The certificate to show (a PEM file).
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its key (a PEM file).
    pub(crate) tls_key: Option<PathBuf>,
}

impl Config {
    /// Reads `given`, which must be there, or the user's file, which need not. If the store is `named`
    /// elsewhere the user's file may be one that this process may not read: it may be another user's, as under
    /// `sudo`.
    pub(crate) fn load(given: Option<&Path>, named: bool) -> Result<Self, Failure> {
        let Some(path) = given.map(Path::to_owned).or_else(default_path) else {
            return Ok(Self::default());
        };
        let refused = |code, error: String| {
            Failure::new(code, format!("the configuration {}: {error}", path.display()))
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let config: Self = toml::from_str(&text)
                    .map_err(|error| refused(Code::USAGE, wrong(&text, &error)))?;
                config.beside(&path).map_err(|error| refused(Code::USAGE, error))
            }
            Err(error) if given.is_none() && is_missing(&error) => Ok(Self::default()),
            Err(error) if given.is_none() && named && is_unreadable(&error) => {
                let path = path.display();
                say(format_args!(
                    "the configuration {path} cannot be read and is not used: {error}"
                ));
                Ok(Self::default())
            }
            Err(error) => Err(refused(Code::of_io(&error), error.to_string())),
        }
    }

    /// Its paths begin where it lies, not where somebody happens to be: cron and a shell must not have
    /// two stores.
    fn beside(mut self, path: &Path) -> Result<Self, String> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let paths =
            [&mut self.password_file, &mut self.tls_ca, &mut self.tls_cert, &mut self.tls_key];
        for path in paths.into_iter().flatten() {
            *path = directory.join(&*path);
        }
        if let Some(file) = self.url.as_deref().and_then(|url| url.strip_prefix("file:"))
            && !file.starts_with('/')
        {
            return Err(format!("url: write the whole path of the file, not {file:?}"));
        }
        Ok(self)
    }
}

/// What is wrong, and in which line; not the line itself, which may hold a password.
fn wrong(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    match before {
        Some(before) => format!("line {}: {}", before.matches('\n').count() + 1, error.message()),
        None => error.message().to_owned(),
    }
}

/// Whether there is no way to read it; not, that this process has no room for it, nor that it is no text.
fn is_unreadable(error: &std::io::Error) -> bool {
    error.kind() != ErrorKind::InvalidData && Code::of_io(error) != Code::INTERNAL
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn default_path() -> Option<PathBuf> {
    user_directory("XDG_CONFIG_HOME", ".config").map(|base| base.join("lockkeeper/config.toml"))
}

/// A directory of the XDG specification, which says that a relative path counts as none.
pub(crate) fn user_directory(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
}

/// A number of seconds, or a text as on the command line.
fn span<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<Duration>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Span {
        Whole(u64),
        Fraction(f64),
        Text(String),
    }
    let text = match Span::deserialize(input)? {
        Span::Whole(seconds) => seconds.to_string(),
        Span::Fraction(seconds) => seconds.to_string(),
        Span::Text(text) => text,
    };
    duration::parse(&text).map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_or_texts() {
        for (text, millis) in [("5", 5_000), ("2.5", 2_500), ("\"1m\"", 60_000)] {
            let config: Config = toml::from_str(&format!("lease = {text}")).unwrap();
            assert_eq!(config.lease, Some(Duration::from_millis(millis)));
        }
    }

    #[test]
    fn paths_begin_where_the_configuration_lies() {
        let beside = |text: &str| {
            let config: Config = toml::from_str(text).unwrap();
            config.beside(Path::new("/etc/lockkeeper/config.toml"))
        };
        let config = beside("password_file = \"secret\"\ntls_ca = \"/etc/ca.pem\"").unwrap();
        assert_eq!(config.password_file.unwrap(), Path::new("/etc/lockkeeper/secret"));
        assert_eq!(config.tls_ca.unwrap(), Path::new("/etc/ca.pem"));
        for fine in ["file:/a/b.db", "file:///a/b.db", "redis://host"] {
            assert_eq!(beside(&format!("url = \"{fine}\"")).unwrap().url.unwrap(), fine);
        }
        assert!(beside("url = \"file:b.db\"").unwrap_err().contains("whole path"));
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = toml::from_str::<Config>("ulr = \"redis://x\"").unwrap_err().to_string();
        assert!(error.contains("ulr") && error.contains("`url`"), "{error}");
    }
}
