//! Looking at locks from outside: what there is, who holds it, what changes, and forcing it open.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::backend::{
    Change, Changed, ClientEntry, Fault, Forced, HolderEntry, Holding, Kind, List, Listed, Page,
    Pattern, Resource, Select,
};
use crate::engine::Core;
use crate::error::{Error, Phase, Result};
use crate::lock::{Holder, Remaining};
use crate::{LockName, OwnerId, PermitId};

/// About how many keys of the store one page looks at.
const PAGE: u32 = 1000;

/// How often a watch looks, unless told otherwise.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// How many locks a watch keeps in mind. Beyond that it says that it is incomplete.
const WATCHED_MAX: usize = 100_000;

/// Looks at the locks of a store, Redisson's included: for tools, consoles and whoever is on call.
///
/// Made by [`Client::inspector`](crate::Client::inspector). It sees names behind the client's
/// [`name_prefix`](crate::ClientOptions::name_prefix) only, and gives them without it: what it finds
/// can be handed to [`Client::lock`](crate::Client::lock).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let client = lockkeeper::Client::memory();
/// let _guard = client.lock("orders:42").lock().await?;
///
/// let inspector = client.inspector();
/// let mut pages = inspector.list("orders:*");
/// while let Some(page) = pages.next().await? {
///     for lock in page {
///         println!("{} is held by {:?}", lock.name, lock.holders);
///     }
/// }
/// assert!(pages.is_complete());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Inspector {
    core: Arc<Core>,
}

/// What is known of one lock, semaphore or latch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its name.
    pub name: LockName,
    /// What it is. A plain and a fair lock look alike in Redis unless somebody waits or its client
    /// says so; a free name is shown as a lock; a read/write lock by how it is held.
    pub kind: Kind,
    /// Who holds it; of a semaphore with ids the first hundred or so.
    pub holders: Vec<Holder>,
    /// For how long it stands unless it is renewed.
    pub remaining: Remaining,
    /// How many wait, if that is known: of a fair lock single waiters, of others clients that listen.
    pub waiting: Option<u64>,
    /// Who waits for a fair lock, the next one first. Only [`inspect`](Inspector::inspect) tells.
    pub queue: Vec<Holder>,
    /// The free permits of a semaphore, or what a latch still counts down.
    pub count: Option<i64>,
    /// How many permits of a permit semaphore are taken.
    pub taken: u64,
    /// The last token that was issued. Only [`inspect`](Inspector::inspect) tells.
    pub token: Option<u64>,
    /// The last forced unlocks, the newest first. Only [`inspect`](Inspector::inspect) tells.
    pub forced: Vec<Forced>,
}

impl LockInfo {
    /// Since when it is held, if a holder says so: the longest.
    pub fn since(&self) -> Option<SystemTime> {
        self.holders.iter().filter_map(|holder| holder.since).min()
    }

    /// Whether nobody holds it and it counts nothing.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.count.is_none()
    }
}

impl Inspector {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core) }
    }

    /// The locks whose names match a pattern (`*` any bytes, `?` one, `[a-z]` one of some, `\` takes
    /// the next as it is), page by page.
    ///
    /// Locks and permit semaphores are found by their form, whoever made them; mutexes and
    /// semaphores, which are plain strings in Redis, only while a lockkeeper client says that it
    /// holds them. The store is never kept busy: a lock that is there all the time is found, one that
    /// comes or goes meanwhile may be missed, and on a store that grows one may come twice.
    pub fn list(&self, pattern: impl Into<Vec<u8>>) -> Listing {
        Listing {
            inspector: self.clone(),
            pattern: Pattern::new(pattern.into()).behind(&self.core.options.name_prefix),
            stage: Stage::Clients(0),
            clients: Clients::default(),
            complete: true,
        }
    }

    /// Everything that is known of a name, as what it seems to be.
    ///
    /// # Errors
    /// [`WrongKind`](Error::WrongKind) if something else stands there; as any request.
    pub async fn inspect(&self, name: impl AsRef<[u8]>) -> Result<LockInfo> {
        self.named(name.as_ref(), None).await
    }

    /// Everything that is known of a name as a kind.
    ///
    /// # Errors
    /// As [`inspect`](Inspector::inspect).
    pub async fn inspect_as(&self, name: impl AsRef<[u8]>, kind: Kind) -> Result<LockInfo> {
        self.named(name.as_ref(), Some(kind)).await
    }

    /// Takes a lock away from whoever holds it, tells them at once, and remembers who did it and
    /// why. Answers whether there was anything to take away.
    ///
    /// # Errors
    /// [`Invalid`](Error::Invalid) for a counter: its permits have no holder to be told. As any
    /// request.
    pub async fn force_unlock(
        &self,
        name: impl AsRef<[u8]>,
        kind: Kind,
        reason: impl Into<String>,
    ) -> Result<bool> {
        let resource = self.resource(name.as_ref(), kind)?;
        let (reason, by) = (reason.into(), self.core.info.clone());
        let change = Change::ForceUnlock { resource: resource.clone(), reason, by };
        let changed = self.core.unbroken(self.core.backend.adjust(change)).await;
        let changed = changed.map_err(|f| self.core.error(f, &resource, Phase::ForceUnlock))?;
        Ok(changed == Changed::Done)
    }

    /// What comes, changes and goes among the locks whose names match a pattern.
    pub fn watch(&self, pattern: impl Into<Vec<u8>>) -> Watch {
        Watch {
            inspector: self.clone(),
            pattern: pattern.into(),
            every: WATCH_EVERY,
            looked: None,
            known: HashMap::new(),
            events: VecDeque::new(),
            complete: true,
        }
    }

    fn resource(&self, name: &[u8], kind: Kind) -> Result<Resource> {
        let name = LockName::new(&self.core.options.name_prefix, name);
        let resource = Resource { kind, name };
        self.core.ensure_open(&resource)?;
        if resource.name.as_bytes().is_empty() {
            return Err(Error::invalid(None, "the name of a lock must not be empty"));
        }
        Ok(resource)
    }

    async fn named(&self, name: &[u8], kind: Option<Kind>) -> Result<LockInfo> {
        let resource = self.resource(name, kind.unwrap_or(Kind::Lock))?;
        let failed = |fault| self.core.error(fault, &resource, Phase::Inspect);
        let mut found = self.find(&resource.name, kind).await.map_err(failed)?;
        let mut clients = Clients::default();
        clients.ask_about(&self.core, &found).await.map_err(failed)?;
        // A plain number or string may be more than it looks like, if a client says so.
        let told = clients.kind_of(&resource.name);
        if let (None, Some(told)) = (kind, told)
            && told != found.resource.kind
            && matches!(found.resource.kind, Kind::Lock | Kind::Semaphore | Kind::Mutex)
            && let Ok(as_told) = self.find(&resource.name, Some(told)).await
        {
            found = as_told;
        }
        Ok(self.info(found, &clients))
    }

    async fn find(&self, name: &LockName, kind: Option<Kind>) -> Result<Listed, Fault> {
        let select = Select::Named(name.clone(), kind);
        let page = self.page(select, 0).await?;
        let found = page.locks.into_iter().next();
        found.ok_or_else(|| Fault::Server { detail: "the store says nothing of it".to_owned() })
    }

    async fn page(&self, select: Select, cursor: u64) -> Result<Page, Fault> {
        let request = List { select, cursor, limit: PAGE };
        self.core.unbroken(self.core.backend.list(request)).await
    }

    /// For people: with who the holders are.
    fn info(&self, listed: Listed, clients: &Clients) -> LockInfo {
        let Listed { resource, snapshot } = listed;
        let prefix = &self.core.options.name_prefix;
        let bare = resource.name.as_bytes().strip_prefix(&prefix[..]).unwrap_or_default();
        let known = |entry| Holder::from(clients.complete(entry));
        let waiter =
            |id| known(HolderEntry { id, count: 0, shared: false, client: None, since: None });
        let told = clients.kind_of(&resource.name);
        LockInfo {
            name: LockName::from(bare),
            // Nothing in Redis tells a fair lock that nobody waits for from a plain one.
            kind: if told == Some(Kind::Fair) && resource.kind == Kind::Lock {
                Kind::Fair
            } else {
                resource.kind
            },
            holders: snapshot.holders.into_iter().map(known).collect(),
            remaining: snapshot.ttl.into(),
            waiting: snapshot.waiting,
            queue: snapshot.queue.into_iter().map(waiter).collect(),
            count: snapshot.count,
            taken: snapshot.taken,
            token: snapshot.token,
            forced: snapshot.forced,
        }
    }

    fn error(&self, fault: Fault) -> Error {
        Error::from_fault(fault, None, Phase::Inspect, None)
    }
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspector").field("store", &self.core.backend).finish()
    }
}

/// The clients that said who they are, and what they hold.
#[derive(Debug, Default)]
struct Clients {
    entries: HashMap<Uuid, ClientEntry>,
    /// The first half of their ids, which is in those of their permits.
    halves: HashMap<[u8; 8], Uuid>,
    holds: HashMap<OwnerId, SystemTime>,
    kinds: HashMap<LockName, Kind>,
}

impl Clients {
    fn add(&mut self, entry: ClientEntry) {
        let mut half = [0; 8];
        half.copy_from_slice(&entry.id.as_bytes()[..8]);
        self.halves.insert(half, entry.id);
        for hold in &entry.holds {
            self.holds.insert(hold.owner, hold.since);
            self.kinds.insert(hold.resource.name.clone(), hold.resource.kind);
        }
        self.entries.insert(entry.id, entry);
    }

    /// Learns of everybody, because only some of those who hold it can be told from its ids.
    async fn ask_about(&mut self, core: &Arc<Core>, found: &Listed) -> Result<(), Fault> {
        let nameless = found.snapshot.holders.iter().all(|holder| holder.client.is_some());
        let plain = matches!(found.resource.kind, Kind::Mutex | Kind::Semaphore | Kind::Latch);
        if nameless && found.snapshot.queue.is_empty() && !plain && found.snapshot.ttl.is_none() {
            return Ok(());
        }
        let mut cursor = 0;
        loop {
            let request = List { select: Select::Clients, cursor, limit: PAGE };
            let page = core.unbroken(core.backend.list(request)).await?;
            page.clients.into_iter().for_each(|client| self.add(client));
            match page.next {
                Some(next) => cursor = next,
                None => return Ok(()),
            }
        }
    }

    fn kind_of(&self, name: &LockName) -> Option<Kind> {
        self.kinds.get(name).copied()
    }

    /// Adds who it is and since when.
    fn complete(&self, mut entry: HolderEntry) -> HolderEntry {
        let text = std::str::from_utf8(&entry.id).unwrap_or_default();
        if let Ok(owner) = text.parse::<OwnerId>() {
            let client = self.entries.get(&owner.client());
            entry.client = entry.client.or_else(|| client.map(|client| client.info.clone()));
            entry.since = entry.since.or_else(|| self.holds.get(&owner).copied());
        } else if let Ok(permit) = text.parse::<PermitId>() {
            let half: Option<[u8; 8]> = permit.as_bytes()[..8].try_into().ok();
            let id = half.and_then(|half| self.halves.get(&half));
            let client = id.and_then(|id| self.entries.get(id));
            entry.client = entry.client.or_else(|| client.map(|client| client.info.clone()));
            let mut holds = client.into_iter().flat_map(|client| &client.holds);
            let hold = holds.find(|hold| holds_permit(hold, permit));
            entry.since = entry.since.or_else(|| hold.map(|hold| hold.since));
        }
        entry
    }
}

fn holds_permit(hold: &Holding, permit: PermitId) -> bool {
    PermitId::of(hold.owner, hold.count).any(|own| own == permit)
}

/// A list under way: see [`Inspector::list`].
#[derive(Debug)]
pub struct Listing {
    inspector: Inspector,
    pattern: Pattern,
    stage: Stage,
    clients: Clients,
    complete: bool,
}

#[derive(Debug)]
enum Stage {
    /// Who the clients are, to be read first.
    Clients(u64),
    /// What they say they hold and nobody could tell otherwise.
    Told(Vec<Holding>),
    Locks(u64),
    Done,
}

/// How many of what clients say is asked about at once.
const TOLD_AT_ONCE: usize = 64;

impl Listing {
    /// The next locks, never none of them; nothing at the end.
    ///
    /// # Errors
    /// As any request. The list can be taken up again by asking once more.
    pub async fn next(&mut self) -> Result<Option<Vec<LockInfo>>> {
        loop {
            let found = match &mut self.stage {
                Stage::Clients(cursor) => {
                    let cursor = *cursor;
                    self.read_clients(cursor).await?;
                    continue;
                }
                Stage::Told(holds) => {
                    let at = holds.len().saturating_sub(TOLD_AT_ONCE);
                    let some = holds[at..].to_vec();
                    let found = self.look_up(some).await?;
                    if let Stage::Told(holds) = &mut self.stage {
                        holds.truncate(at);
                        if at == 0 {
                            self.stage = Stage::Locks(0);
                        }
                    }
                    found
                }
                Stage::Locks(cursor) => {
                    let select = Select::Matching(self.pattern.clone());
                    let page = self.inspector.page(select, *cursor).await;
                    let page = page.map_err(|fault| self.inspector.error(fault))?;
                    self.complete &= !page.incomplete;
                    self.stage = page.next.map_or(Stage::Done, Stage::Locks);
                    page.locks
                }
                Stage::Done => return Ok(None),
            };
            if !found.is_empty() {
                let info = |listed| self.inspector.info(listed, &self.clients);
                return Ok(Some(found.into_iter().map(info).collect()));
            }
        }
    }

    /// Whether all was seen that there is to see, as far as the list has come. It is not if a client
    /// holds more than it tells, of which some may be plain strings, or if the store kept something
    /// back.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    async fn read_clients(&mut self, cursor: u64) -> Result<()> {
        let page = self.inspector.page(Select::Clients, cursor).await;
        let page = page.map_err(|fault| self.inspector.error(fault))?;
        self.complete &= !page.incomplete;
        for client in page.clients {
            self.complete &= !client.more;
            self.clients.add(client);
        }
        self.stage = page.next.map_or_else(|| Stage::Told(self.told()), Stage::Clients);
        Ok(())
    }

    /// What would not be found by its form.
    fn told(&self) -> Vec<Holding> {
        let all = self.clients.entries.values().flat_map(|client| &client.holds);
        let hidden = all.filter(|hold| {
            matches!(hold.resource.kind, Kind::Mutex | Kind::Semaphore | Kind::Latch)
                && self.pattern.matches(hold.resource.name.as_bytes())
        });
        let mut hidden: Vec<_> = hidden.cloned().collect();
        hidden.sort_by(|a, b| a.resource.name.cmp(&b.resource.name));
        hidden.dedup_by(|a, b| a.resource == b.resource);
        hidden
    }

    async fn look_up(&self, holds: Vec<Holding>) -> Result<Vec<Listed>> {
        let core = &self.inspector.core;
        // All are sent before the first is waited for.
        let asked: Vec<_> = holds
            .into_iter()
            .map(|Holding { resource, .. }| {
                let select = Select::Named(resource.name, Some(resource.kind));
                core.unbroken(core.backend.list(List { select, cursor: 0, limit: PAGE }))
            })
            .collect();
        let mut found = Vec::new();
        for answer in asked {
            match answer.await {
                Ok(page) => {
                    found.extend(page.locks.into_iter().filter(|l| l.snapshot.ttl.is_some()))
                }
                // It is something else by now.
                Err(Fault::WrongKind { .. }) => {}
                Err(fault) => return Err(self.inspector.error(fault)),
            }
        }
        Ok(found)
    }
}

/// Something that happened to a lock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// It is there, and was not at the last look.
    Appeared(LockInfo),
    /// Other holders, other waiters, another count.
    Changed(LockInfo),
    /// It is there no longer; this is what it was.
    Gone(LockInfo),
}

/// A watch: see [`Inspector::watch`].
///
/// It looks again and again: what comes and goes between two looks is not seen.
#[derive(Debug)]
pub struct Watch {
    inspector: Inspector,
    pattern: Vec<u8>,
    every: Duration,
    looked: Option<tokio::time::Instant>,
    known: HashMap<LockName, LockInfo>,
    events: VecDeque<Event>,
    complete: bool,
}

impl Watch {
    /// How often to look; once a second unless told otherwise.
    pub fn every(mut self, span: Duration) -> Self {
        self.every = span;
        self
    }

    /// What happens next. It may be dropped and called again: nothing is lost.
    ///
    /// # Errors
    /// As any request; ask again to go on.
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            self.look().await?;
        }
    }

    /// Waits until it is time and looks once; what happened is in [`locks`](Watch::locks), and comes
    /// out of [`next`](Watch::next).
    ///
    /// # Errors
    /// As any request; ask again to go on.
    pub async fn look(&mut self) -> Result<()> {
        if let Some(looked) = self.looked {
            tokio::time::sleep_until(looked + self.every).await;
        }
        self.looked = Some(tokio::time::Instant::now());
        let mut listing = self.inspector.list(&self.pattern[..]);
        let mut seen = HashMap::new();
        let mut whole = true;
        while let Some(page) = listing.next().await? {
            seen.extend(page.into_iter().map(|lock| (lock.name.clone(), lock)));
            if seen.len() >= WATCHED_MAX {
                whole = false;
                break;
            }
        }
        self.complete = whole && listing.is_complete();
        for (name, lock) in &seen {
            match self.known.get(name) {
                None => self.events.push_back(Event::Appeared(lock.clone())),
                Some(old) if differs(old, lock) => {
                    self.events.push_back(Event::Changed(lock.clone()));
                }
                Some(_) => {}
            }
        }
        for (name, lock) in &self.known {
            if whole && !seen.contains_key(name) {
                self.events.push_back(Event::Gone(lock.clone()));
            }
        }
        self.known = seen;
        Ok(())
    }

    /// What there was at the last look.
    pub fn locks(&self) -> impl Iterator<Item = &LockInfo> {
        self.known.values()
    }

    /// Whether the last look saw everything: see [`Listing::is_complete`].
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

/// Whether something happened, beside that time passed.
fn differs(old: &LockInfo, new: &LockInfo) -> bool {
    let who = |lock: &LockInfo| {
        let ids = lock.holders.iter().map(|holder| (holder.id.clone(), holder.hold_count));
        let mut ids: Vec<_> = ids.collect();
        ids.sort();
        ids
    };
    (old.kind, old.waiting, old.count, old.taken) != (new.kind, new.waiting, new.count, new.taken)
        || who(old) != who(new)
}
