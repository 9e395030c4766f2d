//! The primary that sentinels know.
//!
//! The client listens to all sentinels it knows of. An announcement that the current primary is
//! replaced takes effect in the task that receives it, before any sentinel is asked. Then all sentinels are
//! asked at once for the address and its config epoch:
//!
//! | the sentinels say | the client |
//! |---|---|
//! | different epochs | follows the highest |
//! | one epoch, different addresses | follows the majority of those that answered |
//! | an epoch below the known one, or the same one after an announcement | asks again; believes it after five seconds if a majority answers and all agree, with a warning: they were reset |
//! | nothing | keeps the primary that it knows, and asks again |
//!
//! Announcements may be missed, so the sentinels are also asked when a connection breaks or is refused as
//! read-only, for a while after that, and every now and then. Sentinels that others know of are listened
//! to as well.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use super::connection::asker::{self, Asker};
use super::connection::follower::Follower;
use super::connection::subscriber::{Event, Mode, Subscriber};
use super::error_reply::ErrorReply;
use super::locked;
use super::primary::Primary;
use super::sentinel_view::{Answers, SentinelView, distinct, questions, understand};
use super::server::Server;
use super::url::Sentinels;
use crate::backend::{Fault, Finding};
use crate::options::ClientOptions;

/// What sentinels announce about a failover: the replacement as the others learn of it, as the leader
/// promotes it, and as the leader goes on.
const ANNOUNCEMENTS: [&str; 3] =
    ["+switch-master", "+promoted-slave", "+failover-state-reconf-slaves"];

/// How long further answers are waited for once one has arrived.
const ANSWER: Duration = Duration::from_millis(500);

/// The shortest pause between two questions.
const AGAIN: Duration = Duration::from_millis(50);

/// The pause between two questions while all sentinels report an older epoch.
const DOUBT: Duration = Duration::from_secs(1);

/// How long sentinels must agree on an older epoch, and how often they are asked if none answers.
const UNANIMOUS: Duration = Duration::from_secs(5);

/// How often they are asked without a reason, to learn of new sentinels.
const REFRESH: Duration = Duration::from_secs(30);

/// The interval of pings on a connection to a sentinel.
const PING: Duration = Duration::from_millis(2500);

pub(super) struct Sentinel {
    of: Sentinels,
    options: ClientOptions,
    /// By address: those of the URL, and those that others know of.
    known: Mutex<BTreeMap<String, Arc<Asker>>>,
    followed: Mutex<Followed>,
    /// Shared with each sentinel that is listened to.
    listening: Arc<()>,
}

#[derive(Default)]
struct Followed {
    /// The address of the last primary that was followed, and its config epoch.
    address: Option<String>,
    epoch: u64,
    /// Answers below this epoch are not believed.
    least_epoch: u64,
    /// Since when all answers name this address with an older epoch.
    outdated: Option<(String, Instant)>,
}

impl Sentinel {
    pub(super) fn new(of: Sentinels, options: &ClientOptions) -> Self {
        let known = of.sentinels.iter().cloned().map(named).collect();
        Self {
            of,
            options: options.clone(),
            known: Mutex::new(known),
            followed: Mutex::default(),
            listening: Arc::default(),
        }
    }

    pub(super) fn identity(&self) -> String {
        format!("{}/{}", self.of.master, self.of.login.database)
    }

    /// Finds the primary for the first time, within the connect timeout.
    pub(super) async fn find_first(&self, primary: &Primary) -> Result<(), Fault> {
        let attempt = || async {
            let answers = self.ask_all(false).await;
            if self.find(&answers, primary) { Ok(()) } else { Err(self.why_not(&answers)) }
        };
        asker::until_found(&self.options, AGAIN, attempt).await
    }

    /// Says why no primary was found.
    fn why_not(&self, answers: &Answers) -> Fault {
        let master = &self.of.master;
        if answers.iter().any(|(_, view)| view.is_ok()) {
            return Fault::invalid(format!(
                "the sentinels know no master named {master:?}: check the URL"
            ));
        }
        let mut said = Vec::new();
        for (address, view) in answers {
            match view {
                Err(Fault::Denied { detail }) => {
                    let said = detail.split(':').next().unwrap_or_default();
                    let detail = format!(
                        "{address}: {said}: a sentinel is logged in to with ?sentinel_password=P in \
                         the URL; a server with locks has the URL redis://:password@{address}"
                    );
                    return Fault::Denied { detail: detail.into() };
                }
                Err(fault @ Fault::Invalid { .. }) => return fault.clone(),
                Err(Fault::Unreachable { detail, .. } | Fault::Refused { detail }) => {
                    said.push(format!("{address}: {detail}"));
                }
                Err(fault)
                    if ErrorReply::behind(fault).is_some_and(ErrorReply::is_unknown_command) =>
                {
                    said.push(format!("{address} is not a sentinel: use redis://{address}"));
                }
                Err(Fault::Server { detail }) => {
                    said.push(format!("{address} is not a sentinel: {detail}"));
                }
                _ => {}
            }
        }
        let detail = format!("no sentinel of {master:?} answered ({})", said.join("; "));
        Fault::silent(detail)
    }

    /// Asks all sentinels at once. Waits for the first answer, then a while for others: until the
    /// majority has answered, or for `all` of them.
    async fn ask_all(&self, all: bool) -> Answers {
        let known = locked(&self.known).clone();
        let mut asked = JoinSet::new();
        for (address, asker) in known.clone() {
            let (options, questions) = (self.options.clone(), questions(&self.of.master));
            asked.spawn(async move {
                (address, asker.ask(&questions, &options).await.and_then(understand))
            });
        }
        let mut until = Instant::now() + self.options.connect_timeout;
        let is_view = |(_, view): &&(_, Result<_, _>)| view.is_ok();
        let collecting = asker::collect(asked, |answers| {
            match answers.iter().filter(is_view).count() {
                0 => {}
                count if count * 2 > known.len() && !all => until = Instant::now(),
                _ => until = until.min(Instant::now() + ANSWER),
            }
            until
        });
        let mut answers = collecting.await;
        for address in known.into_keys() {
            if !answers.iter().any(|(answered, _)| *answered == address) {
                let late = Fault::silent("no answer");
                answers.push((address, Err(late)));
            }
        }
        answers
    }

    /// Follows what the sentinels say. Returns whether there is a primary.
    fn find(&self, answers: &Answers, primary: &Primary) -> bool {
        let views = distinct(answers);
        self.note_others(&views);
        let mut votes: HashMap<(u64, &(String, u16)), usize> = HashMap::new();
        for view in &views {
            if let Some(primary) = &view.primary {
                *votes.entry((view.epoch, primary)).or_default() += 1;
            }
        }
        // Held until the end: an announcement comes before or after, not in between.
        let mut state = locked(&self.followed);
        let address =
            |(host, port): &(String, u16)| self.of.login.at(host, *port).address.to_string();
        let best = votes.iter().max_by_key(|((epoch, named), votes)| {
            (*epoch, **votes, state.address == Some(address(named)))
        });
        let Some((&(epoch, named), _)) = best else {
            state.outdated = None;
            return false;
        };
        // One may be known by two addresses. The others count it once.
        let count = views.iter().map(|view| view.others.len() + 1).max();
        let is_majority = views.len() * 2 > count.unwrap_or(answers.len());
        if epoch < state.least_epoch {
            let agree = is_majority && votes.keys().all(|(_, other)| *other == named);
            let since = match state.outdated.take() {
                Some((before, since)) if before == address(named) => since,
                _ => Instant::now(),
            };
            if agree {
                state.outdated = Some((address(named), since));
            }
            if !agree || since.elapsed() < UNANIMOUS {
                return false;
            }
            tracing::warn!(
                epoch,
                known = state.least_epoch,
                "all sentinels report an older epoch: \
                they were reset, or a failover was undone"
            );
        }
        // The old primary is one of them.
        let is_old = |(at, _): &(_, bool)| state.address == Some(address(at));
        let mut replicas = views.iter().flat_map(|view| &view.replicas);
        let has_replicas = replicas.any(|one| !one.1 && !is_old(one));
        let address = Some(address(named));
        *state = Followed { address, epoch, least_epoch: epoch, outdated: None };
        primary.lead_to(&self.of.login.at(&named.0, named.1), has_replicas);
        true
    }

    /// Adds sentinels that others know of, and forgets those that were added and that no sentinel
    /// names any more.
    fn note_others(&self, views: &[&SentinelView]) {
        let mut known = locked(&self.known);
        let mut others = HashMap::new();
        for (id, host, port) in views.iter().flat_map(|view| &view.others) {
            if !views.iter().any(|view| view.id.as_ref() == Some(id)) {
                others.extend([named(self.of.sentinels[0].at(host, *port))]);
            }
        }
        if views.is_empty() {
            return;
        }
        let is_named = |address: &String| {
            let mut others = views.iter().flat_map(|view| &view.others);
            others.any(|(_, host, port)| {
                self.of.sentinels[0].at(host, *port).address.to_string() == *address
            })
        };
        let is_given =
            |one: &Asker| self.of.sentinels.iter().any(|given| given.is_same(&one.server));
        known.retain(|address, one| is_given(one) || is_named(address));
        for (address, asker) in others {
            known.entry(address).or_insert(asker);
        }
    }

    /// Acts on an announcement, if it is about the current primary.
    fn announced(&self, channel: &[u8], payload: &[u8], primary: &Primary) {
        let payload = String::from_utf8_lossy(payload);
        let words: Vec<_> = payload.split_whitespace().collect();
        // The name of the replaced master, and its address so far.
        let gone = match (channel, &words[..]) {
            (b"+switch-master", [name, host, port, ..])
            | (b"+promoted-slave", [_, _, _, _, "@", name, host, port, ..])
            | (b"+failover-state-reconf-slaves", ["master", name, host, port, ..]) => {
                (*name, *host, *port)
            }
            _ => return,
        };
        if gone.0 != self.of.master {
            return;
        }
        let Ok(port) = gone.2.parse() else { return };
        let mut state = locked(&self.followed);
        if state.address == Some(self.of.login.at(gone.1, port).address.to_string()) {
            if state.least_epoch == state.epoch {
                tracing::warn!(announcement = %payload, "the primary was replaced");
            }
            state.least_epoch = state.epoch + 1;
            primary.leave(primary.epoch());
        }
        drop(state);
        primary.suspect();
    }

    /// Listens to one sentinel until it is dropped.
    async fn listen(&self, server: &Server, primary: &Primary) {
        let mut follower = Follower::new(&Primary::fixed(server.clone()), &self.options);
        loop {
            let opening = follower.open(async |server, _| {
                Subscriber::open(&server, &self.options, Mode::Plain).await
            });
            if let Ok(subscriber) = opening.await {
                let fault = self.follow(subscriber, primary).await;
                tracing::debug!(sentinel = %server.address, %fault, "not listening to a sentinel");
            }
        }
    }

    async fn follow(&self, mut subscriber: Subscriber, primary: &Primary) -> Fault {
        let _listening = Arc::clone(&self.listening);
        subscriber.subscribe(ANNOUNCEMENTS.map(|name| name.as_bytes().to_vec()).into());
        loop {
            tokio::select! {
                event = subscriber.event() => match event {
                    Ok(Event::Message { channel, payload }) => {
                        self.announced(&channel, &payload, primary);
                    }
                    // It may have announced something before.
                    Ok(Event::Subscribed(_)) => primary.suspect(),
                    Ok(Event::Rejected(_, fault)) | Err(fault) => return fault,
                },
                () = sleep(PING) => subscriber.ping(),
            }
        }
    }

    /// What endangers locks about the sentinels, and how many replicas they know.
    pub(super) async fn check(&self) -> (Vec<Finding>, Option<usize>) {
        let answers = self.ask_all(true).await;
        let views = distinct(&answers);
        let silent: Vec<_> = answers
            .iter()
            .filter(|(_, view)| view.is_err())
            .map(|(address, _)| address.as_str())
            .collect();
        let silent = silent.join(", ");
        // One that is silent may be known by two addresses. The others count it once.
        let known = views.iter().map(|view| view.others.len() + 1).max();
        let (answering, count) = (views.len(), known.unwrap_or(answers.len()).max(views.len()));
        let remedy = "start the sentinels that are down; a failover needs the majority of them";
        let mut findings = Vec::new();
        findings.push(match answering {
            0 => {
                let detail = format!("none answers: a failover is not noticed (silent: {silent})");
                Finding::danger("sentinels", detail, remedy)
            }
            _ if answering * 2 <= count => {
                let detail = format!(
                    "{answering} of {count} answer, which is no majority: nothing can take over \
                     for a primary that fails (silent: {silent})"
                );
                Finding::danger("sentinels", detail, remedy)
            }
            _ if !silent.is_empty() => {
                let detail = format!(
                    "{answering} of {count} answer: with more of them down, nothing can take over \
                     for a primary that fails (silent: {silent})"
                );
                Finding::note("sentinels", detail, "start them, or take them off the URL")
            }
            _ if count < 3 => {
                let detail = format!(
                    "{answering} of {count} answer; with fewer than three, one that fails leaves no \
                     majority"
                );
                Finding::note("sentinels", detail, "run three sentinels on three machines")
            }
            _ => Finding::fine("sentinels", format!("{answering} answer")),
        });
        let mut named: Vec<_> = views.iter().filter_map(|view| view.primary.as_ref()).collect();
        named.sort();
        named.dedup();
        if named.len() > 1 {
            let named: Vec<_> = named.iter().map(|(host, port)| format!("{host}:{port}")).collect();
            let detail = format!("they name different primaries: {}", named.join(", "));
            let remedy = "wait for a failover to end; then look for a partition between them";
            findings.push(Finding::danger("sentinels", detail, remedy));
        }
        (findings, views.iter().map(|view| view.replicas.len()).max())
    }
}

/// Listens to all sentinels, and asks them when there is a reason.
pub(super) async fn watch(sentinel: Arc<Sentinel>, primary: Arc<Primary>) {
    let (mut listeners, mut listened) = (JoinSet::new(), HashMap::new());
    let (mut asked, mut lost, mut has_warned) = (Instant::now(), 0, false);
    // The sentinels may notice later than this client, without an announcement that it gets: after a
    // suspicion they are asked again and again, less and less often.
    let mut refresh = REFRESH;
    loop {
        let known = locked(&sentinel.known).clone();
        listened.retain(|address, listener: &mut AbortHandle| {
            let is_known = known.contains_key(address);
            if !is_known {
                listener.abort();
            }
            is_known
        });
        for (address, asker) in known {
            listened.entry(address).or_insert_with(|| {
                let (sentinel, primary) = (Arc::clone(&sentinel), Arc::clone(&primary));
                listeners.spawn(async move { sentinel.listen(&asker.server, &primary).await })
            });
        }
        let is_lost = primary.server().is_none();
        let is_listening = Arc::strong_count(&sentinel.listening) > 1;
        has_warned &= !is_listening;
        lost = if is_lost { lost + 1 } else { 0 };
        let pause = match (is_lost, is_listening) {
            _ if locked(&sentinel.followed).outdated.is_some() => DOUBT,
            (true, _) => sentinel.options.backoff(lost).max(AGAIN),
            (_, true) => refresh,
            (_, false) => refresh.min(UNANIMOUS),
        };
        tokio::select! {
            // Reasons come in bursts.
            () = primary.suspected() => {
                refresh = AGAIN;
                sleep_until(asked + AGAIN).await;
            }
            () = sleep(pause) => {
                refresh = REFRESH.min(refresh * 2);
                if !is_listening && pause == UNANIMOUS && !std::mem::replace(&mut has_warned, true) {
                    tracing::warn!("no sentinel can be listened to: they are asked every {UNANIMOUS:?}");
                }
            }
        }
        asked = Instant::now();
        let answers = sentinel.ask_all(false).await;
        sentinel.find(&answers, &primary);
        while listeners.try_join_next().is_some() {}
    }
}

fn named(server: Server) -> (String, Arc<Asker>) {
    (server.address.to_string(), Arc::new(Asker::new(server)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::url;

    fn sentinel() -> (Sentinel, Arc<Primary>) {
        let options = ClientOptions::new();
        let url = "redis+sentinel://s1,s2,s3/m";
        let Ok(url::Topology::Sentinel(of)) = url::parse(url, &options) else { panic!("{url}") };
        (Sentinel::new(of, &options), Primary::unknown())
    }

    /// One sentinel per entry: the port of the primary that it names, and the epoch.
    fn answers_of(answers: &[(u16, u64)]) -> Answers {
        let answer = |(n, (port, epoch)): (usize, &(u16, u64))| {
            let primary = (*port != 0).then(|| ("h".to_owned(), *port));
            let others = vec![("x".to_owned(), "h".to_owned(), 1); answers.len() - 1];
            let view = SentinelView {
                id: Some(n.to_string()),
                primary,
                epoch: *epoch,
                replicas: Vec::new(),
                others,
            };
            (format!("s{n}:26379"), Ok(view))
        };
        answers.iter().enumerate().map(answer).collect()
    }

    fn port(primary: &Primary) -> Option<u16> {
        primary.server()?.address.host().map(|(_, port)| port)
    }

    #[tokio::test]
    async fn the_highest_epoch_wins_and_then_the_majority() {
        let (sentinel, primary) = sentinel();
        assert!(!sentinel.find(&answers_of(&[(0, 0)]), &primary), "it knows no such master");
        assert!(sentinel.find(&answers_of(&[(1, 4), (2, 5), (1, 4)]), &primary));
        assert_eq!(port(&primary), Some(2));
        assert!(sentinel.find(&answers_of(&[(3, 6), (4, 6), (4, 6)]), &primary));
        assert_eq!((port(&primary), primary.epoch()), (Some(4), 1));
        // The same answer changes nothing.
        assert!(sentinel.find(&answers_of(&[(4, 6)]), &primary));
        assert_eq!(primary.epoch(), 1);
    }

    /// Those that have no link to it yet count, and the old primary and a dead one do not.
    #[tokio::test]
    async fn a_primary_has_the_replicas_that_sentinels_know() {
        let (sentinel, primary) = sentinel();
        let has_replicas = |port, replicas: &[(u16, bool)]| {
            let mut answers = answers_of(&[(port, u64::from(port)); 3]);
            let replicas =
                replicas.iter().map(|(port, is_dead)| (("h".to_owned(), *port), *is_dead));
            answers[1].1.as_mut().unwrap().replicas = replicas.collect();
            assert!(sentinel.find(&answers, &primary));
            primary.watch().borrow().has_replicas
        };
        assert!(has_replicas(1, &[(2, false)]), "a new client");
        assert!(!has_replicas(2, &[(1, false)]), "the old primary");
        assert!(has_replicas(3, &[(1, false), (2, false)]));
        assert!(!has_replicas(4, &[(1, true), (3, false)]));
        assert!(!has_replicas(5, &[]));
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_epoch_is_believed_only_if_all_agree_for_a_while() {
        let (sentinel, primary) = sentinel();
        assert!(sentinel.find(&answers_of(&[(1, 5), (1, 5)]), &primary));
        assert!(!sentinel.find(&answers_of(&[(2, 1), (2, 1)]), &primary));
        tokio::time::advance(UNANIMOUS / 2).await;
        // One that still knows better, and then another address: the time begins anew.
        assert!(sentinel.find(&answers_of(&[(2, 1), (1, 5)]), &primary));
        assert!(!sentinel.find(&answers_of(&[(2, 1), (2, 1)]), &primary));
        tokio::time::advance(UNANIMOUS / 2).await;
        assert!(!sentinel.find(&answers_of(&[(2, 1), (3, 1)]), &primary));
        assert!(!sentinel.find(&answers_of(&[(2, 1), (2, 1)]), &primary));
        assert_eq!(port(&primary), Some(1), "it stays where it is meanwhile");
        tokio::time::advance(UNANIMOUS).await;
        assert!(sentinel.find(&answers_of(&[(2, 1), (2, 1)]), &primary));
        assert_eq!(port(&primary), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_announcement_ends_the_time_of_the_primary_that_it_names() {
        let announced = |channel: &str, payload: &str| {
            let (sentinel, primary) = sentinel();
            assert!(sentinel.find(&answers_of(&[(1, 5)]), &primary));
            sentinel.announced(channel.as_bytes(), payload.as_bytes(), &primary);
            // Others do not know it yet: the old primary does not return.
            let again = sentinel.find(&answers_of(&[(1, 5), (1, 5)]), &primary);
            assert_eq!(again, primary.epoch() == 0, "{payload}");
            assert!(sentinel.find(&answers_of(&[(1, 5), (2, 6)]), &primary));
            primary.epoch() > 0 && port(&primary) == Some(2)
        };
        assert!(announced("+switch-master", "m h 1 h 2"));
        assert!(announced("+promoted-slave", "slave h:2 h 2 @ m h 1"));
        assert!(announced("+failover-state-reconf-slaves", "master m h 1"));
        let nothing = |channel: &str, payload: &str| {
            let (sentinel, primary) = sentinel();
            assert!(sentinel.find(&answers_of(&[(1, 5)]), &primary));
            sentinel.announced(channel.as_bytes(), payload.as_bytes(), &primary);
            primary.epoch() == 0
        };
        assert!(nothing("+switch-master", "another h 1 h 2"), "of another master");
        assert!(nothing("+switch-master", "m h 9 h 1"), "this client has followed it already");
        assert!(nothing("+switch-master", "m h x"), "garbage");
        assert!(nothing("+promoted-slave", ""));
    }
}
