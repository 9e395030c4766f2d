//! Requests of many tasks in one write: one task collects the pending requests, yields once so that
//! more can arrive, and sends them. Only waiting for the replies is left to other tasks, so requests
//! reach the server in the order in which they were handed in.
//!
//! One wave is half of the pending requests. A wave of all of them would leave client and server idle
//! in turn; with 64 tasks the halves are worth about a fifth of the throughput.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, error::Elapsed, timeout_at};

use super::super::script::Script;
use super::{Answer, Call, Command, Live, Shape, Shared, fault, in_full, is_unknown_script};
use crate::backend::Fault;

/// The maximum number of requests in one write.
const WAVE: usize = 256;

/// The minimum: the cost of a write exceeds that of fewer requests.
const WAVE_MIN: usize = 16;

/// Collects requests into waves. Only this task writes them.
pub(super) async fn send(link: Arc<Shared>, mut inbox: mpsc::UnboundedReceiver<Call>) {
    let mut wave = Vec::with_capacity(WAVE);
    while inbox.recv_many(&mut wave, 1).await > 0 {
        tokio::task::yield_now().await;
        let size = link.wave_size();
        while wave.len() < size
            && let Ok(call) = inbox.try_recv()
        {
            wave.push(call);
        }
        let live = link.connected(&mut wave, &mut inbox).await;
        link.expire(&mut wave);
        if wave.is_empty() {
            continue;
        }
        link.queued.fetch_sub(wave.len(), Ordering::AcqRel);
        match live {
            Ok(live) => {
                // More than one wave only after an outage.
                while wave.len() > WAVE {
                    let rest = wave.split_off(WAVE);
                    hand_over(&link, live.clone(), std::mem::replace(&mut wave, rest));
                }
                hand_over(&link, live, std::mem::take(&mut wave));
            }
            Err(fault) => fail(wave.drain(..), &fault),
        }
        wave.reserve(WAVE);
    }
}

fn fail(calls: impl Iterator<Item = Call>, fault: &Fault) {
    for call in calls {
        let _ = call.reply.send(Err(fault.clone()));
    }
}

impl Shared {
    /// Returns half of the pending requests: while the server executes one half, the callers of the
    /// other half receive answers and send again. One wave of all requests would leave each side
    /// idle in turn.
    fn wave_size(&self) -> usize {
        let all = self.queued.load(Ordering::Relaxed) + self.under_way.load(Ordering::Relaxed);
        all.div_ceil(2).clamp(WAVE_MIN, WAVE)
    }

    /// Records that connecting failed, with a fault that waiting does not resolve. Fails pending
    /// requests.
    pub(super) fn refuse(&self, fault: Fault) {
        self.lock().failed = Some(fault);
        self.changed.notify_waiters();
    }

    /// Waits for a connection; meanwhile requests fail at their deadlines.
    async fn connected(
        &self,
        wave: &mut Vec<Call>,
        inbox: &mut mpsc::UnboundedReceiver<Call>,
    ) -> Result<Live, Fault> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.lock();
                if state.closed {
                    return Err(Fault::Closed);
                }
                if let Some(fault) = state.failed.as_ref().filter(|fault| !fault.may_pass()) {
                    return Err(fault.clone());
                }
                if let Some(live) = &state.live {
                    return Ok(live.clone());
                }
            }
            let Some(first) = wave.iter().map(|call| call.due).min() else {
                // No request is left.
                return Err(Fault::Closed);
            };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(first) => self.expire(wave),
                _ = inbox.recv_many(wave, WAVE) => {}
            }
        }
    }

    /// Fails unsent requests whose deadlines have passed.
    fn expire(&self, wave: &mut Vec<Call>) {
        let now = Instant::now();
        let overdue: Vec<_> = wave.extract_if(.., |call| call.due <= now).collect();
        if overdue.is_empty() {
            return;
        }
        let address = self.client.get_connection_info().addr();
        let detail = match &self.lock().failed {
            Some(Fault::Unreachable { detail, .. } | Fault::Refused { detail }) => {
                format!("no connection to {address}: {detail}")
            }
            _ => format!("no connection to {address}"),
        };
        self.queued.fetch_sub(overdue.len(), Ordering::AcqRel);
        fail(overdue.into_iter(), &Fault::Unreachable { maybe_ran: false, detail });
    }
}

/// Hands a wave to the driver synchronously; only waiting for the replies is left to a task.
fn hand_over(link: &Arc<Shared>, live: Live, wave: Vec<Call>) {
    let mut replies = Box::pin(wait_for_replies(Arc::clone(link), live, wave));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    if replies.as_mut().poll(&mut context).is_pending() {
        tokio::spawn(replies);
    }
}

async fn wait_for_replies(link: Arc<Shared>, mut live: Live, wave: Vec<Call>) {
    let count = wave.len();
    link.under_way.fetch_add(count, Ordering::Relaxed);
    let mut pipeline = redis::Pipeline::with_capacity(count);
    let mut sent = Vec::with_capacity(count);
    for Call { command, reply, due } in wave {
        let (script, shape) = (command.script(), command.shape());
        pipeline.add_command(command.cmd);
        sent.push(Sent { script, shape, reply: Some(reply), due });
    }
    let sending = live.connection.send_packed_commands(&pipeline, 0, count);
    let answer = link.answers(&mut sent, sending).await;
    let fit = |replies: &Vec<Value>| Shape::fit(sent.iter().map(|sent| sent.shape), replies);
    let replies = link.judge(live.generation, answer, fit);
    link.under_way.fetch_sub(count, Ordering::Relaxed);
    let replies = match replies {
        Ok(replies) => replies,
        Err(fault) => {
            let waiting = sent.into_iter().filter_map(|sent| sent.reply);
            return waiting.for_each(|reply| drop(reply.send(Err(fault.clone()))));
        }
    };
    for ((cmd, sent), answer) in pipeline.cmd_iter().zip(sent).zip(replies) {
        let Some(reply) = sent.reply else { continue };
        match sent.script {
            // The script did not run: sent again with its text, unnoticed by the caller.
            Some(script) if is_unknown_script(&answer) => {
                let command = Command::whole(in_full(script, cmd), sent.shape);
                link.queued.fetch_add(1, Ordering::AcqRel);
                let _ = link.queue.send(Call { command, reply, due: sent.due });
            }
            _ => drop(reply.send(fault::check(answer))),
        }
    }
}

/// A request that was sent.
struct Sent {
    script: Option<&'static Script>,
    shape: Shape,
    /// `None` after its deadline.
    reply: Option<oneshot::Sender<Answer>>,
    due: Instant,
}

impl Shared {
    /// Waits for all replies to a wave. Requests that waited for a connection and were late when
    /// sent fail one by one at their deadlines, which says nothing about the connection. An error
    /// means that a request that was not late got no answer.
    async fn answers<T>(
        &self,
        sent: &mut [Sent],
        sending: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        let in_time = self.in_time();
        tokio::pin!(sending);
        loop {
            let waiting = sent.iter().filter(|sent| sent.reply.is_some());
            let due = waiting.map(|sent| sent.due).min().unwrap_or(in_time);
            match timeout_at(due, &mut sending).await {
                Err(_) if due < in_time => {
                    for late in sent.iter_mut().filter(|sent| sent.due <= due) {
                        let reply = late.reply.take();
                        reply.map(|reply| reply.send(Err(self.no_answer())));
                    }
                }
                answer => return answer,
            }
        }
    }
}
