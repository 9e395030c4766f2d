//! Which store: `--url`, else `LOCKKEEPER_URL`, else the configuration, else a file of the user's own.

use std::env;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{Client, ClientOptions};

use crate::args::Global;
use crate::config::{Config, user_directory};
use crate::exit::{Code, Failure, say};
use crate::secret;

/// The variable that names the store.
pub(crate) const URL_VARIABLE: &str = "LOCKKEEPER_URL";

/// The variable that names the file whose first line is the password.
pub(crate) const PASSWORD_VARIABLE: &str = "LOCKKEEPER_PASSWORD_FILE";

/// What to do if there is none.
const ADVICE: &str = "choose a store with --url file:PATH or LOCKKEEPER_URL";

/// A store that was chosen, not yet connected to. No `Debug`: it knows the password.
pub(crate) struct Store {
    url: String,
    /// Settings that go for every command; a command may add its own.
    pub(crate) options: ClientOptions,
    /// The lease that the configuration asks for.
    pub(crate) lease: Option<Duration>,
    /// Where the URL comes from, for `-v`.
    pub(crate) source: &'static str,
}

impl Store {
    /// Finds out which store is meant.
    pub(crate) fn resolve(global: &Global) -> Result<Self, Failure> {
        let named = global.url.is_some() || env::var_os(URL_VARIABLE).is_some();
        let config = Config::load(global.config.as_deref(), named)?;
        let (url, source) = choose(global, config.url.as_deref())?;
        if url.starts_with("memory:") {
            return Err(Failure::usage(format!(
                "{url} ({source}) is a store of this process alone: {ADVICE}"
            )));
        }
        let url = match password_file(&config) {
            Some(path) if url.starts_with("redis") => secret::add(&url, &secret::read(&path)?),
            _ => url,
        };
        let options = options(&config)?;
        Ok(Self { url, options, lease: config.lease, source })
    }

    /// The URL without what is secret in it.
    pub(crate) fn shown(&self) -> String {
        secret::shown(&self.url)
    }

    /// Opens it.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        self.connect_with(self.options.clone()).await
    }

    /// Opens it to look: it need not be writable.
    pub(crate) async fn connect_to_look(&self) -> Result<Client, Failure> {
        self.connect_with(self.options.clone().read_only()).await
    }

    /// Opens it with settings made out of [`options`](Store::options).
    pub(crate) async fn connect_with(&self, options: ClientOptions) -> Result<Client, Failure> {
        let client = Client::connect_with(&self.url, options).await;
        client.map_err(|error| Failure::new(Code::of(&error), format!("{}: {error}", self.shown())))
    }
}

fn choose(global: &Global, configured: Option<&str>) -> Result<(String, &'static str), Failure> {
    if let Some(url) = &global.url {
        if secret::has_password(url) {
            say(format_args!(
                "--url has a password in it, which every user of this host can see: put it into a file \
                 that only you can read, and name that in {PASSWORD_VARIABLE}"
            ));
        }
        return Ok((url.clone(), "--url"));
    }
    match env::var(URL_VARIABLE) {
        // A secret that is missing, more likely than not; with the default each host would have its own.
        Ok(url) if url.is_empty() => {
            return Err(Failure::usage(format!("{URL_VARIABLE} is set, and empty")));
        }
        Ok(url) => return Ok((url, URL_VARIABLE)),
        Err(env::VarError::NotUnicode(_)) => {
            return Err(Failure::usage(format!("{URL_VARIABLE} is not UTF-8")));
        }
        Err(env::VarError::NotPresent) => {}
    }
    match configured {
        Some(url) => Ok((url.to_owned(), "the configuration")),
        None => Ok((default_url()?, "the default: a file of this user's, on this host only")),
    }
}

/// The environment is nearer than the configuration. An empty variable is none.
fn password_file(config: &Config) -> Option<PathBuf> {
    let variable = env::var_os(PASSWORD_VARIABLE).filter(|path| !path.is_empty());
    variable.map(PathBuf::from).or_else(|| config.password_file.clone())
}

fn options(config: &Config) -> Result<ClientOptions, Failure> {
    let mut options = ClientOptions::new().client_name("lockkeeper-cli");
    if let Some(prefix) = &config.prefix {
        options = options.name_prefix(prefix);
    }
    if let Some(path) = &config.tls_ca {
        options = options.tls_ca(pem(path)?);
    }
    match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => options = options.tls_identity(pem(cert)?, pem(key)?),
        (None, None) => {}
        _ => {
            return Err(Failure::usage(
                "the configuration has one of tls_cert and tls_key; both are needed",
            ));
        }
    }
    Ok(options)
}

fn pem(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| {
        Failure::new(Code::of_io(&error), format!("{} cannot be read: {error}", path.display()))
    })
}

/// The file store of this user. Its directory is nobody else's business.
fn default_url() -> Result<String, Failure> {
    let base = user_directory("XDG_STATE_HOME", ".local/state").ok_or_else(|| {
        Failure::usage(format!("neither XDG_STATE_HOME nor HOME is set: {ADVICE}"))
    })?;
    let directory = base.join("lockkeeper");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| {
        Failure::usage(format!("{} cannot be created: {error}; {ADVICE}", directory.display()))
    })?;
    let path = directory.join("locks.db").into_os_string().into_string();
    let path = path.map_err(|path| {
        Failure::usage(format!("{} is not UTF-8: {ADVICE}", Path::new(&path).display()))
    })?;
    Ok(format!("file:{path}"))
}
