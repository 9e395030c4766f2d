//! The view from outside: lists locks, holders and changes, and force-releases locks.
//!
//! A force-release may name the holders that it is meant for. Their ids go along with the request, and
//! the store compares them in the same step, so that a tool removes only the holders that it has shown.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::backend::{
    Changed, ClientEntry, Fault, Holder, Holding, Kind, List, LockInfo, Page, Pattern, Resource,
    Select,
};
use crate::carrier::{self, Carrier};
use crate::engine::Core;
use crate::error::{Error, Phase, Result};
use crate::handle::Handle;
use crate::{LockName, OwnerId, PermitId};

/// About how many keys of the store one page covers.
const PAGE: u32 = 1000;

/// Lists and inspects the locks of a store, Redisson's included: for tools, consoles and operators.
///
/// Made by [`Client::inspector`](crate::Client::inspector). It sees only names with the client's
/// [`name_prefix`](crate::ClientOptions::name_prefix), and returns them without it, so they can be
/// passed to [`Client::lock`](crate::Client::lock).
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
    _carrier: Option<Arc<Carrier>>,
}

impl Inspector {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core), _carrier: core.carrier() }
    }

    /// Lists the locks whose names match a pattern (`*` any bytes, `?` one, `[a-z]` one of some,
    /// `\` takes the next literally), page by page.
    ///
    /// Locks and permit semaphores are found by their form, also those of other libraries. Mutexes
    /// and semaphores are plain strings in Redis, and are found only while a lockkeeper client
    /// announces that it holds them. A list never keeps the store busy: a lock that exists all the
    /// time is found, one that appears or disappears meanwhile may be missed, and on a growing
    /// store one may be listed twice.
    pub fn list(&self, pattern: impl Into<Vec<u8>>) -> Listing {
        Listing {
            inspector: self.clone(),
            pattern: Pattern::new(pattern.into()).behind(&self.core.options.name_prefix),
            stage: ListingStage::Clients(Vec::new()),
            clients: Clients::default(),
            announced: HashSet::new(),
            walked: true,
            all_announced: true,
            errors: Vec::new(),
        }
    }

    /// Returns all information about a name, as the kind that it seems to be.
    ///
    /// # Errors
    /// [`WrongKind`](Error::WrongKind) if the name is in use for something else; as any request.
    pub async fn inspect(&self, name: impl AsRef<[u8]>) -> Result<LockInfo> {
        self.named(name.as_ref(), None).await
    }

    /// Returns all information about a name as this kind.
    ///
    /// # Errors
    /// As [`inspect`](Inspector::inspect).
    pub async fn inspect_as(&self, name: impl AsRef<[u8]>, kind: Kind) -> Result<LockInfo> {
        self.named(name.as_ref(), Some(kind)).await
    }

    /// Force-releases a lock, notifies its holders at once, and records the operator and the reason.
    /// With `from`, only from these holders, for tools that ask a person first. Returns whether there
    /// was anything to release.
    ///
    /// A client that queues again for a fair lock within a second may still be the same owner.
    ///
    /// # Errors
    /// [`NotHeld`](Error::NotHeld) if another owner than `from` holds it.
    /// [`Invalid`](Error::Invalid) if `from` is empty, and for a counter: its permits have no holder
    /// to notify. As any request.
    pub async fn force_unlock(
        &self,
        name: impl AsRef<[u8]>,
        kind: Kind,
        from: Option<&[Holder]>,
        reason: impl Into<String>,
    ) -> Result<bool> {
        let handle = Handle::new(&self.core, kind, name.as_ref());
        let lock = handle.resource.name.clone();
        if from.is_some_and(<[_]>::is_empty) {
            return Err(Error::invalid(Some(&lock), "name at least one holder to force-release"));
        }
        let from = from.map(|from| from.iter().map(|holder| holder.stored.clone()).collect());
        match handle.force_unlock_from(from, reason.into()).await? {
            Changed::Other => {
                let now = self.inspect_as(name, kind).await.ok();
                let holder = now.and_then(|lock| lock.holders.into_iter().next().map(Box::new));
                Err(Error::NotHeld { lock, phase: Phase::ForceUnlock, holder })
            }
            changed => Ok(changed == Changed::Done),
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn ensure_open(&self) -> Result<()> {
        carrier::ensure_may_wait(None)?;
        if self.core.is_closed() {
            return Err(Error::Closed { lock: None });
        }
        Ok(())
    }

    async fn named(&self, name: &[u8], kind: Option<Kind>) -> Result<LockInfo> {
        let handle = Handle::new(&self.core, kind.unwrap_or(Kind::Lock), name);
        handle.ensure_usable()?;
        let resource = handle.resource;
        let failed = |fault| self.core.error(fault, &resource, Phase::Inspect);
        let clients = Clients::ask(self).await.map_err(failed)?;
        // A plain string in Redis does not show its kind; its client announces it.
        let announced = clients.kind_of(&resource.name).filter(|announced| is_hidden(*announced));
        let mut found = self.find(&resource.name, kind.or(announced)).await;
        if kind.is_none() && matches!(found, Err(Fault::WrongKind { .. })) {
            found = self.find(&resource.name, None).await;
        }
        Ok(self.described(found.map_err(failed)?, &clients))
    }

    async fn find(&self, name: &LockName, kind: Option<Kind>) -> Result<LockInfo, Fault> {
        let select = Select::Named(name.clone(), kind);
        let page = self.page(select, Vec::new()).await?;
        let found = page.locks.into_iter().next();
        found.ok_or_else(|| Fault::Server { detail: "the store says nothing of it".into() })
    }

    async fn page(&self, select: Select, cursor: Vec<u8>) -> Result<Page, Fault> {
        let request = List { select, cursor, limit: PAGE };
        self.core.run_to_completion(self.core.backend.list(request)).await
    }

    /// Completes what the store says: with the processes of the holders, for people.
    fn described(&self, mut lock: LockInfo, clients: &Clients) -> LockInfo {
        // In Redis, a fair lock without waiters looks like a plain lock.
        if lock.kind == Kind::Lock && clients.kind_of(&lock.name) == Some(Kind::Fair) {
            lock.kind = Kind::Fair;
        }
        lock.name = lock.name.without(&self.core.options.name_prefix);
        let of_members = lock.members.iter_mut().flat_map(|member| &mut member.holders);
        let holders = lock.holders.iter_mut().chain(&mut lock.queue).chain(of_members);
        holders.for_each(|holder| clients.describe(holder));
        lock
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

/// The announced clients and their holds.
#[derive(Debug, Default)]
struct Clients {
    entries: HashMap<Uuid, ClientEntry>,
    /// The first half of their ids, which their permits contain.
    halves: HashMap<[u8; 8], Uuid>,
    holds: HashMap<OwnerId, Holding>,
    kinds: HashMap<LockName, Kind>,
}

impl Clients {
    fn add(&mut self, entry: ClientEntry) {
        let mut half = [0; 8];
        half.copy_from_slice(&entry.id.as_bytes()[..8]);
        self.halves.insert(half, entry.id);
        for hold in &entry.holds {
            self.holds.insert(hold.owner, hold.clone());
            self.kinds.insert(hold.resource.name.clone(), hold.resource.kind);
        }
        self.entries.insert(entry.id, entry);
    }

    /// Reads all announcements.
    async fn ask(inspector: &Inspector) -> Result<Self, Fault> {
        let (mut clients, mut cursor) = (Self::default(), Vec::new());
        loop {
            let page = inspector.page(Select::Clients, cursor).await?;
            page.clients.into_iter().for_each(|client| clients.add(client));
            match page.next {
                Some(next) => cursor = next,
                None => return Ok(clients),
            }
        }
    }

    fn kind_of(&self, name: &LockName) -> Option<Kind> {
        self.kinds.get(name).copied()
    }

    /// Adds the process and the start of a hold.
    fn describe(&self, holder: &mut Holder) {
        let (client, hold) = if let Ok(owner) = holder.id.parse::<OwnerId>() {
            (self.entries.get(&owner.client), self.holds.get(&owner))
        } else if let Ok(permit) = holder.id.parse::<PermitId>() {
            let half: Option<[u8; 8]> = permit.as_bytes()[..8].try_into().ok();
            let id = half.and_then(|half| self.halves.get(&half));
            let client = id.and_then(|id| self.entries.get(id));
            let mut holds = client.into_iter().flat_map(|client| &client.holds);
            (client, holds.find(|hold| holds_permit(hold, permit)))
        } else {
            (None, None)
        };
        if let Some(client) = client {
            holder.describe(client, hold);
        }
    }
}

/// Whether its form does not distinguish it from other data.
pub(crate) fn is_hidden(kind: Kind) -> bool {
    matches!(kind, Kind::Mutex | Kind::Semaphore | Kind::Latch)
}

fn holds_permit(hold: &Holding, permit: PermitId) -> bool {
    PermitId::of(hold.owner, hold.count).any(|own| own == permit)
}

/// A list in progress: see [`Inspector::list`].
#[derive(Debug)]
pub struct Listing {
    inspector: Inspector,
    pattern: Pattern,
    stage: ListingStage,
    clients: Clients,
    /// Locks that were listed because a client announced them: a store that has them lists them
    /// again.
    announced: HashSet<Resource>,
    /// Whether the store has withheld nothing.
    walked: bool,
    /// Whether all clients announce all their holds.
    all_announced: bool,
    errors: Vec<Error>,
}

#[derive(Debug)]
enum ListingStage {
    /// Reading the clients, first.
    Clients(Vec<u8>),
    /// Checking announced holds that cannot be found otherwise.
    Announced(Vec<Resource>),
    Locks(Vec<u8>),
    Done,
}

/// How many announced holds are checked at once.
const ANNOUNCED_AT_ONCE: usize = 64;

impl Listing {
    /// Returns the next page, never an empty one; `None` at the end.
    ///
    /// # Errors
    /// As any request. Call it again to continue the list.
    pub async fn next(&mut self) -> Result<Option<Vec<LockInfo>>> {
        loop {
            self.inspector.ensure_open()?;
            let found = match &mut self.stage {
                ListingStage::Clients(cursor) => {
                    let cursor = cursor.clone();
                    self.read_clients(cursor).await?;
                    continue;
                }
                ListingStage::Announced(announced) => {
                    let at = announced.len().saturating_sub(ANNOUNCED_AT_ONCE);
                    let some = announced[at..].to_vec();
                    let found = self.look_up(some).await?;
                    self.announced.extend(found.iter().map(LockInfo::resource));
                    if let ListingStage::Announced(announced) = &mut self.stage {
                        announced.truncate(at);
                        if at == 0 {
                            self.stage = ListingStage::Locks(Vec::new());
                        }
                    }
                    found
                }
                ListingStage::Locks(cursor) => {
                    let select = Select::Matching(self.pattern.clone());
                    let page = self.inspector.page(select, cursor.clone()).await;
                    let page = page.map_err(|fault| self.inspector.error(fault))?;
                    self.walked &= !page.incomplete && page.faults.is_empty();
                    for error in page.faults.into_iter().map(|fault| self.inspector.error(fault)) {
                        let said = error.to_string();
                        if !self.errors.iter().any(|known| known.to_string() == said) {
                            self.errors.push(error);
                        }
                    }
                    self.stage = page.next.map_or(ListingStage::Done, ListingStage::Locks);
                    let mut locks = page.locks;
                    locks.retain(|lock| !self.announced.contains(&lock.resource()));
                    locks
                }
                ListingStage::Done => return Ok(None),
            };
            if !found.is_empty() {
                return Ok(Some(self.described(found)));
            }
        }
    }

    /// Whether the list is complete so far. It is not if a client holds more than it announces, of
    /// which some may be plain strings, or if the store withheld something.
    pub fn is_complete(&self) -> bool {
        self.walked && self.all_announced
    }

    /// The parts of the store that have not answered so far, as nodes of a cluster: their locks are not
    /// listed.
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }

    /// Whether a lock that was not listed does not exist, except those that only a client can
    /// announce.
    pub(crate) fn is_walked(&self) -> bool {
        self.walked
    }

    /// Returns the hidden locks that are still held: a client announced them once, and may hold too
    /// many by now to announce them again.
    pub(crate) async fn still_held(&mut self, locks: &[LockInfo]) -> Result<Vec<LockInfo>> {
        let mut held = Vec::new();
        if self.all_announced {
            return Ok(held);
        }
        for some in locks.chunks(ANNOUNCED_AT_ONCE) {
            let prefix = &self.inspector.core.options.name_prefix;
            let resource = |lock: &LockInfo| {
                let name = LockName::new(prefix, lock.name.as_bytes());
                Resource { kind: lock.kind, name }
            };
            let found = self.look_up(some.iter().map(resource).collect()).await?;
            held.extend(self.described(found));
        }
        Ok(held)
    }

    fn described(&self, found: Vec<LockInfo>) -> Vec<LockInfo> {
        found.into_iter().map(|lock| self.inspector.described(lock, &self.clients)).collect()
    }

    async fn read_clients(&mut self, cursor: Vec<u8>) -> Result<()> {
        let page = self.inspector.page(Select::Clients, cursor).await;
        let page = page.map_err(|fault| self.inspector.error(fault))?;
        self.walked &= !page.incomplete;
        for client in page.clients {
            self.all_announced &= !client.more;
            self.clients.add(client);
        }
        self.stage =
            page.next.map_or_else(|| ListingStage::Announced(self.hidden()), ListingStage::Clients);
        Ok(())
    }

    /// The holds that would not be found by their form.
    fn hidden(&self) -> Vec<Resource> {
        let all = self.clients.entries.values().flat_map(|client| &client.holds);
        let hidden = all.map(|hold| &hold.resource).filter(|resource| {
            is_hidden(resource.kind) && self.pattern.matches(resource.name.as_bytes())
        });
        let mut hidden: Vec<_> = hidden.cloned().collect();
        hidden.sort_by(|a, b| a.name.cmp(&b.name));
        hidden.dedup();
        hidden
    }

    /// Returns the locks that are held.
    async fn look_up(&mut self, some: Vec<Resource>) -> Result<Vec<LockInfo>> {
        let core = &self.inspector.core;
        // All requests are sent before the first answer is awaited.
        let asked: Vec<_> = some
            .into_iter()
            .map(|resource| {
                let select = Select::Named(resource.name, Some(resource.kind));
                core.run_to_completion(core.backend.list(List {
                    select,
                    cursor: Vec::new(),
                    limit: PAGE,
                }))
            })
            .collect();
        let mut found = Vec::new();
        for answer in asked {
            match answer.await {
                Ok(page) => found.extend(page.locks.into_iter().filter(|lock| lock.ttl.is_some())),
                // The name is in use for something else by now.
                Err(Fault::WrongKind { .. }) => {}
                Err(fault) if fault.may_pass() || fault == Fault::Closed => {
                    return Err(self.inspector.error(fault));
                }
                // The user may not read it.
                Err(_) => self.walked = false,
            }
        }
        Ok(found)
    }
}
