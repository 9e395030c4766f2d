//! What becomes of requests without a reply: their deadline passes, or their connection is lost.

use std::time::Duration;

use tokio::time::Instant;

use super::{MIDDLE, Outcome, Requests, Slot, SlotState};
use crate::backend::Fault;
use crate::redis::connection::live::Live;
use crate::redis::resp::Value;

/// The shortest time between two looks at all deadlines: what is due in between is answered together.
const APART: Duration = Duration::from_millis(10);

impl Requests {
    /// Answers the requests whose deadlines have passed, and sets the alarm for the others. Returns
    /// whether a request without an answer shows that the connection is broken.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        not_sent: impl Fn() -> Fault,
        no_answer: impl Fn() -> Fault,
    ) -> bool {
        let mut broken = false;
        let mut alarm = None;
        let mut soonest = |due| alarm = Some(alarm.map_or(due, |alarm: Instant| alarm.min(due)));
        let mut late = Vec::new();
        for (n, slot) in self.live.iter().flat_map(|live| &live.sent).enumerate() {
            match &self.slots[*slot] {
                Slot { due, .. } if *due > now => soonest(*due),
                Slot { late: true, has_caller: true, .. } => late.push(n),
                Slot { late: true, .. } => {}
                Slot { .. } => broken = true,
            }
        }
        for n in late {
            self.answer_early(n, Err(no_answer()));
        }
        let mut overdue = Vec::new();
        let slots = &self.slots;
        self.waiting.retain(|_, slot| {
            let is_due = slots[*slot].due <= now;
            if is_due {
                overdue.push(*slot);
            } else {
                soonest(slots[*slot].due);
            }
            !is_due
        });
        self.alarm = alarm.map(|alarm| alarm.max(now + APART));
        for slot in overdue {
            // A ping that could not be sent in time: the server does not read.
            broken |= self.live.is_some() && !self.slots[slot].has_caller;
            self.answer(slot, Err(not_sent()));
        }
        broken
    }

    /// Whether a caller waits for a reply.
    pub(crate) fn has_callers(&self) -> bool {
        let sent = self.live.iter().flat_map(|live| &live.sent);
        sent.into_iter().any(|slot| self.slots[*slot].has_caller)
    }

    /// Answers the `n`th request that was sent before its reply arrives. The reply gets a slot without
    /// a caller.
    fn answer_early(&mut self, n: usize, outcome: Outcome) {
        let Some(slot) = self.live.as_ref().and_then(|live| live.sent.get(n)).copied() else {
            return;
        };
        let Slot { form, due, end, .. } = self.slots[slot];
        let next_front = self.occupy(form, due);
        let request = &mut self.slots[next_front];
        (request.state, request.command) = (SlotState::Sent, None);
        (request.late, request.end) = (true, end);
        if let Some(sent) = self.live.as_mut().and_then(|live| live.sent.get_mut(n)) {
            *sent = next_front;
        }
        self.answer(slot, outcome);
    }

    /// Gives up the connection of this generation. Requests of which a byte may have been written get
    /// the fault; the others wait for the next connection, before those that wait already.
    pub(crate) fn give_up(&mut self, generation: u64, fault: &Fault) -> Option<Live> {
        let live = self.live.take_if(|live| live.generation == generation)?;
        for slot in live.sent.iter().rev().copied() {
            let request = &mut self.slots[slot];
            if request.end > live.taken && request.has_caller {
                let first = self.waiting.first_key_value();
                self.wait(slot, first.map_or(MIDDLE, |(at, _)| at - 1));
            } else {
                self.answer(slot, Err(fault.clone()));
            }
        }
        Some(live)
    }

    /// Replaces the answers that no caller has taken. An error reply to a request that did not run stays.
    pub(crate) fn void(&mut self, fault: &Fault) {
        for slot in &mut self.slots {
            if let SlotState::Answered(answer @ Ok(_)) = &mut slot.state
                && !matches!(answer, Ok(Value::Error(_)))
            {
                *answer = Err(fault.clone());
            }
        }
    }

    /// Fails the requests that are not sent.
    pub(crate) fn fail_waiting(&mut self, fault: &Fault) {
        while let Some((_, slot)) = self.waiting.pop_first() {
            self.answer(slot, Err(fault.clone()));
        }
    }
}
