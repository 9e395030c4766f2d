//! The `redis` crate used as its manual shows: one multiplexed connection, cloned into every task,
//! no layer above it.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, ConnectionInfo, IntoConnectionInfo, Script, Value};
use tokio::runtime::Handle;

use super::{Contender, Stop, drive};
use crate::Result;
use crate::form::{Form, Name, Request};

/// The plain driver contender.
pub(crate) struct Driver {
    runtime: Handle,
    user: User,
}

/// What each task has of it.
#[derive(Clone)]
struct User {
    connection: MultiplexedConnection,
    form: Form,
    acquire: Option<Arc<Script>>,
    release: Arc<Script>,
}

impl Driver {
    /// Connects.
    pub(crate) fn connect(runtime: &Handle, url: &str, form: Form) -> Result<Self> {
        let client = redis::Client::open(connection_info(url)?)?;
        let config = config();
        let opening = client.get_multiplexed_async_connection_with_config(&config);
        let connection = runtime.block_on(opening)?;
        let (acquire, release) = form.scripts();
        let acquire = acquire.map(|script| Arc::new(Script::new(script)));
        let release = Arc::new(Script::new(release));
        let user = User { connection, form, acquire, release };
        Ok(Self { runtime: runtime.clone(), user })
    }
}

impl Contender for Driver {
    fn name(&self) -> String {
        "driver".into()
    }

    fn run(&mut self, tasks: usize, time: Duration) -> Result<u64> {
        drive(&self.runtime, tasks, time, |task, stop| self.user.clone().pairs(task, stop))
    }
}

impl User {
    async fn pairs(mut self, task: usize, stop: Stop) -> Result<u64> {
        let name = Name::of("drv", task);
        let (acquire, release) = (self.acquire.clone(), self.release.clone());
        let mut pairs = 0;
        while !stop.reached() {
            let fresh = 1_000_000_000_000 * (task as u64 + 1) + pairs;
            let owner = format!("{}:{fresh:019}", super::UUID);
            let request = self.form.acquire(&name, &owner);
            let granted = self.call(acquire.as_deref(), request).await?;
            let request = self.form.release(&name, &owner);
            let released = self.call(Some(&release), request).await?;
            if granted != Value::Nil || released != Value::Int(0) {
                return Err(format!("unexpected: {granted:?}, {released:?}").into());
            }
            pairs += 1;
        }
        Ok(pairs)
    }

    async fn call(&mut self, script: Option<&Script>, request: Request<'_>) -> Result<Value> {
        let words = request.words();
        let Some(script) = script else {
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            return Ok(command.query_async(&mut self.connection).await?);
        };
        let (keys, arguments) = words.split_at(request.keys);
        let mut call = script.prepare_invoke();
        Ok(call.key(keys).arg(arguments).invoke_async(&mut self.connection).await?)
    }
}

/// Nagle off, as lockkeeper has it; the crate leaves it on.
pub(crate) fn connection_info(url: &str) -> Result<ConnectionInfo> {
    let tcp = TcpSettings::default().set_nodelay(true);
    Ok(url.into_connection_info()?.set_tcp_settings(tcp))
}

/// With a response timeout, because lockkeeper has one and it is not free.
pub(crate) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(5)))
}
