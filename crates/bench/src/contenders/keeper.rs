//! lockkeeper as a user writes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{AnyLock, Client};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::{Contender, Stop, drive};
use crate::Result;
use crate::form::{Form, Name};
use crate::probe::{Probe, Slice};

/// Its name in the tables, where it is the hash lock that is measured.
pub(crate) const KEEPER: &str = "lockkeeper Lock";

/// A client, and which of its locks is measured.
#[derive(Clone)]
pub(crate) struct Keeper {
    runtime: Handle,
    client: Client,
    form: Form,
}

impl Keeper {
    /// Connects.
    pub(crate) fn connect(runtime: &Handle, url: &str, form: Form) -> Result<Self> {
        let client = runtime.block_on(Client::connect(url))?;
        Ok(Self::of(runtime, client, form))
    }

    /// A client that is connected.
    pub(crate) fn of(runtime: &Handle, client: Client, form: Form) -> Self {
        Self { runtime: runtime.clone(), client, form }
    }

    /// On the embedded store.
    pub(crate) fn memory(runtime: &Handle, form: Form) -> Self {
        // The client's tasks go to the runtime it is made in.
        let _entered = runtime.enter();
        Self { runtime: runtime.clone(), client: Client::memory(), form }
    }

    /// Lets `tasks` tasks fight for one name; measures only the middle, when all of them are there:
    /// handoffs.
    pub(crate) fn fight(
        &self,
        probe: &mut Probe,
        name: &str,
        tasks: usize,
        time: Duration,
    ) -> Result<Slice> {
        let (stop, passed) = (Stop::default(), Arc::new(AtomicU64::new(0)));
        let mut fighters = JoinSet::new();
        for _ in 0..tasks {
            let fighter = fighter(self.lock(name), stop.clone(), Arc::clone(&passed));
            fighters.spawn_on(fighter, &self.runtime);
        }
        std::thread::sleep(time / 5);
        let slice = probe.slice(|| {
            let before = passed.load(Ordering::Relaxed);
            std::thread::sleep(time);
            Ok(passed.load(Ordering::Relaxed) - before)
        })?;
        stop.set();
        self.runtime.block_on(async {
            while let Some(ended) = fighters.join_next().await {
                ended??;
            }
            Ok(slice)
        })
    }

    /// The client, for workloads that do more with it.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Which of its locks is measured.
    pub(crate) fn form(&self) -> Form {
        self.form
    }

    fn lock(&self, name: &str) -> AnyLock {
        match self.form {
            Form::Lock => self.client.lock(name).into(),
            Form::Mutex => self.client.mutex(name).into(),
        }
    }
}

impl Contender for Keeper {
    fn name(&self) -> String {
        match self.form {
            Form::Lock => KEEPER.into(),
            Form::Mutex => "lockkeeper Mutex".into(),
        }
    }

    fn run(&mut self, tasks: usize, time: Duration) -> Result<u64> {
        drive(&self.runtime, tasks, time, |task, stop| {
            pairs(self.lock(&Name::of("kpr", task).key), stop)
        })
    }
}

async fn pairs(lock: AnyLock, stop: Stop) -> Result<u64> {
    let mut pairs = 0;
    while !stop.reached() {
        lock.lock().await?.release().await?;
        pairs += 1;
    }
    Ok(pairs)
}

async fn fighter(lock: AnyLock, stop: Stop, passed: Arc<AtomicU64>) -> Result<()> {
    while !stop.reached() {
        let guard = lock.lock().await?;
        passed.fetch_add(1, Ordering::Relaxed);
        guard.release().await?;
    }
    Ok(())
}
