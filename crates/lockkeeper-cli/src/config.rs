//! The configuration file: `lockkeeper/config.toml` below the user's configuration directory, or
//! `--config`.

use std::env;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::acknowledgement::Acknowledgement;
use crate::args::WakeupsArg;
use crate::duration;
use crate::exit::{Code, Failure, say};

/// The keys of the file. An unknown key is an error: a misspelt `url` would silently select the wrong
/// store.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The store.
    pub(crate) url: Option<String>,
    /// The file whose first line is the password.
    pub(crate) password_file: Option<PathBuf>,
    /// The same for the password of the sentinels.
    pub(crate) sentinel_password_file: Option<PathBuf>,
    /// The replicas that must acknowledge the locks of `run`.
    pub(crate) acknowledged_by: Option<Acknowledgement>,
    /// How waiters in a Redis Cluster are notified.
    pub(crate) cluster_wakeups: Option<WakeupsArg>,
    /// The longest lease on a quorum.
    #[serde(default, deserialize_with = "span")]
    pub(crate) longest_lease: Option<Duration>,
    /// The lease of `run`.
    #[serde(default, deserialize_with = "span")]
    pub(crate) lease: Option<Duration>,
    /// A prefix for every name.
    pub(crate) prefix: Option<String>,
    /// The certificate authority to trust for `rediss://` (a PEM file).
    pub(crate) tls_ca: Option<PathBuf>,
    /// The client certificate (a PEM file).
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its key (a PEM file).
    pub(crate) tls_key: Option<PathBuf>,
}

impl Config {
    /// Reads `given`, which must exist, or the user's file, which need not. If the store is `named`
    /// elsewhere, an unreadable user's file is ignored: under `sudo` it may belong to another user.
    pub(crate) fn load(given: Option<&Path>, named: bool) -> Result<Self, Failure> {
        let Some(path) = given.map(Path::to_owned).or_else(default_path) else {
            return Ok(Self::default());
        };
        let refused = |code, error: String| {
            Failure::new(code, format!("configuration file {}: {error}", path.display()))
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let config: Self = toml::from_str(&text)
                    .map_err(|error| refused(Code::USAGE, located(&text, &error)))?;
                config.relative_to(&path).map_err(|error| refused(Code::USAGE, error))
            }
            Err(error) if given.is_none() && is_missing(&error) => Ok(Self::default()),
            Err(error) if given.is_none() && named && is_unreadable(&error) => {
                let path = path.display();
                say(format_args!("ignoring the configuration file {path}: {error}"));
                Ok(Self::default())
            }
            Err(error) => Err(refused(Code::of_io(&error), error.to_string())),
        }
    }

    /// Makes paths relative to the file, not to the current directory: cron and a shell must use the same
    /// store.
    fn relative_to(mut self, path: &Path) -> Result<Self, String> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let paths = [
            &mut self.password_file,
            &mut self.sentinel_password_file,
            &mut self.tls_ca,
            &mut self.tls_cert,
            &mut self.tls_key,
        ];
        for path in paths.into_iter().flatten() {
            *path = directory.join(&*path);
        }
        if let Some(file) = self.url.as_deref().and_then(|url| url.strip_prefix("file:"))
            && !file.starts_with('/')
        {
            return Err(format!("url: write an absolute path, not {file:?}"));
        }
        Ok(self)
    }
}

/// The error and the line number; not the line itself, which may contain a password.
fn located(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    match before {
        Some(before) => format!("line {}: {}", before.matches('\n').count() + 1, error.message()),
        None => error.message().to_owned(),
    }
}

/// Whether this user cannot read the file. Lack of descriptors and invalid text are other errors.
fn is_unreadable(error: &std::io::Error) -> bool {
    error.kind() != ErrorKind::InvalidData && Code::of_io(error) != Code::INTERNAL
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn default_path() -> Option<PathBuf> {
    user_directory("XDG_CONFIG_HOME", ".config").map(|base| base.join("lockkeeper/config.toml"))
}

/// A directory of the XDG specification, which ignores relative paths.
pub(crate) fn user_directory(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
}

/// A number of seconds, or a string as on the command line.
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
    fn durations_are_numbers_or_strings() {
        for (text, millis) in [("5", 5_000), ("2.5", 2_500), ("\"1m\"", 60_000)] {
            let text = format!("lease = {text}\nlongest_lease = {text}");
            let config: Config = toml::from_str(&text).unwrap();
            let span = Some(Duration::from_millis(millis));
            assert_eq!((config.lease, config.longest_lease), (span, span));
        }
    }

    #[test]
    fn replicas_are_a_number_or_a_string() {
        for text in ["2", "\"2\""] {
            let config: Config = toml::from_str(&format!("acknowledged_by = {text}")).unwrap();
            assert_eq!(config.acknowledged_by, "2".parse().ok());
        }
        let error = toml::from_str::<Config>("acknowledged_by = \"all\"").unwrap_err();
        assert!(error.message().contains("write 2"), "{error}");
    }

    #[test]
    fn wake_ups_are_written_as_on_the_command_line() {
        let config: Config = toml::from_str("cluster_wakeups = \"both\"").unwrap();
        assert_eq!(config.cluster_wakeups, Some(WakeupsArg::Both));
        let error = toml::from_str::<Config>("cluster_wakeups = \"all\"").unwrap_err();
        assert!(error.message().contains("`classic`"), "{error}");
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let load = |text: &str| {
            let config: Config = toml::from_str(text).unwrap();
            config.relative_to(Path::new("/etc/lockkeeper/config.toml"))
        };
        let config = load("password_file = \"secret\"\ntls_ca = \"/etc/ca.pem\"").unwrap();
        assert_eq!(config.password_file.unwrap(), Path::new("/etc/lockkeeper/secret"));
        assert_eq!(config.tls_ca.unwrap(), Path::new("/etc/ca.pem"));
        for fine in ["file:/a/b.db", "file:///a/b.db", "redis://host"] {
            assert_eq!(load(&format!("url = \"{fine}\"")).unwrap().url.unwrap(), fine);
        }
        assert!(load("url = \"file:b.db\"").unwrap_err().contains("absolute path"));
    }
}
