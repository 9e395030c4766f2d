//! The plain driver doing the same: says how much of the way is the runtime's and the driver's.

use std::sync::Arc;
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, Script, Value};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::{SETTLE, micros};
use crate::Result;
use crate::contenders::UUID;
use crate::contenders::driver::{config, connection_info};
use crate::form::{Form, Name, Request};

/// One side: a connection on a runtime of its own, and an owner id.
#[derive(Clone)]
struct Side {
    runtime: Handle,
    connection: MultiplexedConnection,
    owner: String,
    acquire: Arc<Script>,
    release: Arc<Script>,
}

/// Two clients, the second of which is subscribed.
pub(super) struct DriverPair {
    holder: Side,
    waiter: Side,
    messages: Option<mpsc::UnboundedReceiver<()>>,
    /// Keeps the subscription.
    _subscription: MultiplexedConnection,
}

impl DriverPair {
    pub(super) fn connect(runtimes: &[Handle; 2], url: &str) -> Result<Self> {
        let (send, messages) = mpsc::unbounded_channel();
        let push = move |push: PushInfo| match push.kind {
            PushKind::Message => send.send(()),
            _ => Ok(()),
        };
        let info = connection_info(url)?;
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = redis::Client::open(info.set_redis_settings(settings))?;
        let listening = AsyncConnectionConfig::new().set_push_sender(push);
        let subscription = runtimes[1].block_on(async {
            let opening = client.get_multiplexed_async_connection_with_config(&listening);
            let mut connection = opening.await?;
            connection.subscribe(name().channel).await?;
            Ok::<_, redis::RedisError>(connection)
        })?;
        Ok(Self {
            holder: Side::connect(&runtimes[0], url, 1)?,
            waiter: Side::connect(&runtimes[1], url, 2)?,
            messages: Some(messages),
            _subscription: subscription,
        })
    }

    pub(super) fn sample(&mut self) -> Result<f64> {
        let (mut holder, mut waiter) = (self.holder.clone(), self.waiter.clone());
        let runtimes = [holder.runtime.clone(), waiter.runtime.clone()];
        runtimes[0].block_on(holder.acquire())?;
        let mut messages = self.messages.take().ok_or("a sample before this one failed")?;
        let waiting = runtimes[1].spawn(async move {
            messages.recv().await;
            waiter.acquire().await?;
            let end = Instant::now();
            waiter.release().await?;
            // Its own release was published too.
            messages.recv().await;
            Ok::<_, crate::Error>((messages, end))
        });
        std::thread::sleep(SETTLE);
        let releasing = runtimes[0].spawn(async move {
            let start = Instant::now();
            holder.release().await.map(|()| start)
        });
        let start = runtimes[0].block_on(releasing)??;
        let (messages, end) = runtimes[1].block_on(waiting)??;
        self.messages = Some(messages);
        Ok(micros(end - start))
    }
}

impl Side {
    fn connect(runtime: &Handle, url: &str, owner: u64) -> Result<Self> {
        let client = redis::Client::open(connection_info(url)?)?;
        let config = config();
        let opening = client.get_multiplexed_async_connection_with_config(&config);
        let connection = runtime.block_on(opening)?;
        let (acquire, release) = Form::Lock.scripts();
        Ok(Self {
            runtime: runtime.clone(),
            connection,
            owner: format!("{UUID}:{owner}"),
            acquire: Arc::new(Script::new(acquire.unwrap_or_default())),
            release: Arc::new(Script::new(release)),
        })
    }

    async fn acquire(&mut self) -> Result<()> {
        let (name, owner, script) = (name(), self.owner.clone(), Arc::clone(&self.acquire));
        match self.call(&script, Form::Lock.acquire(&name, &owner)).await? {
            Value::Nil => Ok(()),
            other => Err(format!("the plain driver was refused: {other:?}").into()),
        }
    }

    async fn release(&mut self) -> Result<()> {
        let (name, owner, script) = (name(), self.owner.clone(), Arc::clone(&self.release));
        self.call(&script, Form::Lock.release(&name, &owner)).await.map(drop)
    }

    async fn call(&mut self, script: &Script, request: Request<'_>) -> Result<Value> {
        let (keys, arguments) = request.words().split_at(request.keys);
        let mut call = script.prepare_invoke();
        Ok(call.key(keys).arg(arguments).invoke_async(&mut self.connection).await?)
    }
}

fn name() -> Name {
    Name::of("wkd", 0)
}
