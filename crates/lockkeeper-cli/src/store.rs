//! Chooses the store: `--url`, else `LOCKKEEPER_URL`, else the configuration, else a file of this user.

use std::env;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{Client, ClientOptions, Error, RedisOptions};

use crate::acknowledgement::Acknowledgement;
use crate::args::Global;
use crate::config::{Config, user_directory};
use crate::exit::{Code, Failure, say};
use crate::secret;

/// Names the store.
pub(crate) const URL_VARIABLE: &str = "LOCKKEEPER_URL";

/// Names a file whose first line is the password.
pub(crate) const PASSWORD_VARIABLE: &str = "LOCKKEEPER_PASSWORD_FILE";

/// Names a file whose first line is the password of the sentinels.
pub(crate) const SENTINEL_PASSWORD_VARIABLE: &str = "LOCKKEEPER_SENTINEL_PASSWORD_FILE";

/// The library's default, of a lease and of the longest lease on a quorum.
const LEASE: Duration = Duration::from_secs(30);

const ADVICE: &str = "choose a store with --url file:PATH or LOCKKEEPER_URL";

/// A chosen store, not yet connected. No `Debug`: its URL may contain a password.
pub(crate) struct Store {
    url: String,
    /// Settings for all subcommands.
    pub(crate) options: ClientOptions,
    /// Part of the options.
    redis: RedisOptions,
    /// The lease in the configuration.
    lease: Option<Duration>,
    /// The longest lease, if the store is a quorum.
    pub(crate) longest_lease: Option<Duration>,
    acknowledged_by: Option<Acknowledgement>,
    /// The source of the URL, for `-v`.
    pub(crate) source: &'static str,
}

impl Store {
    /// Chooses the store and reads the password.
    pub(crate) fn resolve(global: &Global) -> Result<Self, Failure> {
        let named = global.url.is_some() || env::var_os(URL_VARIABLE).is_some();
        let config = Config::load(global.config.as_deref(), named)?;
        let (url, source) = choose(global, config.url.as_deref())?;
        if url.starts_with("memory:") {
            return Err(Failure::usage(format!(
                "{url} ({source}) exists only within one process: {ADVICE}"
            )));
        }
        let wakeups = global.cluster_wakeups.or(config.cluster_wakeups);
        let mut redis =
            redis_options(&config)?.cluster_wakeups(wakeups.map(Into::into).unwrap_or_default());
        let scheme = url.split(':').next().unwrap_or_default();
        let is_quorum = scheme == "quorum";
        if let Some(path) = file(PASSWORD_VARIABLE, &config.password_file)
            && (is_quorum || scheme.starts_with("redis"))
        {
            redis = redis.password(secret::read(&path)?);
        }
        if let Some(path) = file(SENTINEL_PASSWORD_VARIABLE, &config.sentinel_password_file)
            && scheme.ends_with("+sentinel")
        {
            redis = redis.sentinel_password(secret::read(&path)?);
        }
        if global.longest_lease.is_some() && !is_quorum {
            let shown = secret::shown(&url);
            return Err(Failure::usage(format!(
                "--longest-lease is for a quorum, and {shown} ({source}) is none: set the lease with --lease"
            )));
        }
        let longest_lease =
            is_quorum.then(|| global.longest_lease.or(config.longest_lease).unwrap_or(LEASE));
        let mut options = ClientOptions::new().redis(redis.clone());
        if let Some(prefix) = &config.prefix {
            options = options.name_prefix(prefix);
        }
        if let Some(longest) = longest_lease {
            let lease = LEASE.min(longest);
            options = options.longest_lease(longest).watchdog_timeout(lease);
        }
        let Config { lease, acknowledged_by, .. } = config;
        Ok(Self { url, options, redis, lease, longest_lease, acknowledged_by, source })
    }

    /// The lease of a subcommand: the option, the configuration, or the default.
    pub(crate) fn lease(&self, given: Option<Duration>) -> Result<Duration, Failure> {
        let longest = self.longest_lease.unwrap_or(Duration::MAX);
        match given.or(self.lease) {
            Some(lease) if lease > longest => Err(Failure::usage(format!(
                "the lease of {lease:?} is longer than the longest lease of the quorum, {longest:?}; all \
                 clients may set a longer one with --longest-lease"
            ))),
            Some(lease) => Ok(lease),
            None => Ok(LEASE.min(longest)),
        }
    }

    /// Settings for a subcommand that acquires locks with this lease: which replicas must acknowledge
    /// them. The option overrides the configuration.
    pub(crate) fn acknowledged(
        &self,
        given: Option<Acknowledgement>,
        options: ClientOptions,
        lease: Duration,
    ) -> ClientOptions {
        match given.or(self.acknowledged_by) {
            Some(acknowledgement) => {
                options.redis(acknowledgement.apply(self.redis.clone(), lease))
            }
            None => options,
        }
    }

    /// The settings, for a subcommand that acquires no lock: no replica acknowledges anything.
    pub(crate) fn unacknowledged(&self) -> ClientOptions {
        self.options.clone().redis(self.redis.clone().unacknowledged())
    }

    /// The URL without its password.
    pub(crate) fn shown(&self) -> String {
        secret::shown(&self.url)
    }

    /// Opens the store for reading: it need not be writable, and no replica acknowledges anything.
    pub(crate) async fn connect_to_look(&self) -> Result<Client, Failure> {
        self.connect_with(self.unacknowledged().read_only()).await
    }

    /// Opens the store with settings derived from [`options`](Store::options).
    pub(crate) async fn connect_with(&self, options: ClientOptions) -> Result<Client, Failure> {
        let client = Client::connect_with(&self.url, options).await;
        client.map_err(|error| {
            let mut text = format!("{}: {error}", self.shown());
            let variable = [
                ("sentinel", SENTINEL_PASSWORD_VARIABLE),
                ("NOAUTH", PASSWORD_VARIABLE),
                ("WRONGPASS", PASSWORD_VARIABLE),
            ];
            let said = error.to_string();
            let fits = |(word, _): &&(&str, &str)| said.contains(word);
            if let (Error::Denied { .. }, Some((_, variable))) =
                (&error, variable.iter().find(fits))
            {
                text += &format!("; let {variable} name a file that has the password");
            }
            Failure::new(Code::of(&error), text)
        })
    }
}

fn choose(global: &Global, configured: Option<&str>) -> Result<(String, &'static str), Failure> {
    if let Some(url) = &global.url {
        if secret::has_password(url) {
            say(format_args!(
                "--url contains a password, which every user of this host can read: put it into a file \
                 that only you can read, and set {PASSWORD_VARIABLE} to its path"
            ));
        }
        return Ok((url.clone(), "--url"));
    }
    match env::var(URL_VARIABLE) {
        // Probably a missing secret. The default store would silently be another one on each host.
        Ok(url) if url.is_empty() => {
            return Err(Failure::usage(format!(
                "{URL_VARIABLE} is set but empty: unset it, or {ADVICE}"
            )));
        }
        Ok(url) => return Ok((url, URL_VARIABLE)),
        Err(env::VarError::NotUnicode(_)) => {
            return Err(Failure::usage(format!("{URL_VARIABLE} is not UTF-8")));
        }
        Err(env::VarError::NotPresent) => {}
    }
    match configured {
        Some(url) => Ok((url.to_owned(), "the configuration file")),
        None => Ok((default_url()?, "the default: a file of this user on this host")),
    }
}

/// The environment overrides the configuration. An empty variable counts as unset.
fn file(variable: &str, configured: &Option<PathBuf>) -> Option<PathBuf> {
    let variable = env::var_os(variable).filter(|path| !path.is_empty());
    variable.map(PathBuf::from).or_else(|| configured.clone())
}

fn redis_options(config: &Config) -> Result<RedisOptions, Failure> {
    let mut options = RedisOptions::new().client_name("lockkeeper-cli");
    if let Some(path) = &config.tls_ca {
        options = options.tls_ca(pem(path)?);
    }
    match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => options = options.tls_identity(pem(cert)?, pem(key)?),
        (None, None) => {}
        _ => {
            return Err(Failure::usage(
                "the configuration file sets only one of tls_cert and tls_key: set both",
            ));
        }
    }
    Ok(options)
}

fn pem(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| {
        Failure::new(Code::of_io(&error), format!("cannot read {}: {error}", path.display()))
    })
}

/// The file store of this user, in a directory that only this user can read.
fn default_url() -> Result<String, Failure> {
    let base = user_directory("XDG_STATE_HOME", ".local/state").ok_or_else(|| {
        Failure::usage(format!("neither XDG_STATE_HOME nor HOME is set: {ADVICE}"))
    })?;
    let directory = base.join("lockkeeper");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| {
        Failure::usage(format!("cannot create {}: {error}; {ADVICE}", directory.display()))
    })?;
    let path = directory.join("locks.db").into_os_string().into_string();
    let path = path.map_err(|path| {
        Failure::usage(format!("{} is not UTF-8: {ADVICE}", Path::new(&path).display()))
    })?;
    Ok(format!("file:{path}"))
}
