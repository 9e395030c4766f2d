//! The requests of a connection: which slot waits for which reply.
//!
//! All of it is plain data behind the connection's mutex; no method waits or makes a system call.
//!
//! | state of a slot | the request | ends |
//! |---|---|---|
//! | `Waiting` | in `waiting`: not encoded, there is no connection or no room | sent, withdrawn, or answered at its deadline: never sent |
//! | `Sent` | in `sent`: encoded into `out`, perhaps written | answered, or waiting again if no byte was written |
//! | `Answered` | has an outcome that its caller has not taken | free |
//! | `Free` | none | |
//!
//! A caller that is gone leaves its slot to the connection: a waiting request is not sent, the reply to
//! a sent one is dropped.

use std::collections::BTreeMap;
use std::task::Waker;

use tokio::time::Instant;

use super::live::{Live, OUT_MAX};
use crate::backend::Fault;
use crate::redis::command::Command;
use crate::redis::reply::ReplyForm;
use crate::redis::resp::Value;

mod unanswered;

/// The number of slots that are kept, with their buffers, when none is in use.
const SLOTS_KEPT: usize = 64;

/// The number of the first request that waits: others come after it and before it.
const MIDDLE: u64 = 1 << 63;

/// The outcome of a request; an error reply of the server is a value.
pub(super) type Outcome = Result<Value, Fault>;

/// A request and its reply.
struct Slot {
    state: SlotState,
    form: ReplyForm,
    /// Kept for a repetition; a free slot keeps it until it is used again, and its buffer with it.
    command: Option<Command>,
    due: Instant,
    /// It was sent late: that it gets no answer in time says nothing about the connection.
    late: bool,
    /// While it waits, its place in `waiting`; then the position in the stream of requests at which it ends.
    end: u64,
    waker: Option<Waker>,
    has_caller: bool,
}

enum SlotState {
    Free,
    Waiting,
    Sent,
    Answered(Outcome),
}

/// All requests of one client to one server, over all of its connections.
#[derive(Default)]
pub(super) struct Requests {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Requests that are not sent, in the order of their arrival, by a number that each keeps.
    waiting: BTreeMap<u64, usize>,
    /// The time at which the task must look at deadlines: not long after the first of them.
    pub(super) alarm: Option<Instant>,
    /// The connection in use.
    pub(super) live: Option<Live>,
    /// Callers to wake up once the mutex is released.
    pub(super) wakers: Vec<Waker>,
    /// The number of replies so far. It does not change while a connection is idle.
    pub(super) answered: u64,
}

/// The reply does not belong to the request: one reply too many or too few shifts all later ones.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Misfit;

impl Requests {
    /// Adds a request. It is encoded at once if there is a connection with room, and no other request
    /// waits. If it is `late`, a missing answer says nothing about the connection. Returns its slot.
    pub(super) fn add(
        &mut self,
        command: Command,
        due: Instant,
        late: bool,
        waker: Option<Waker>,
    ) -> usize {
        let slot = self.occupy(command.form, due);
        let request = &mut self.slots[slot];
        (request.has_caller, request.waker) = (waker.is_some(), waker);
        (request.command, request.late) = (Some(command), late);
        if self.alarm.is_none_or(|alarm| due < alarm) {
            self.alarm = Some(due);
        }
        self.encode_or_wait(slot);
        slot
    }

    fn encode_or_wait(&mut self, slot: usize) {
        if !self.waiting.is_empty() || !self.encode(slot) {
            let last = self.waiting.last_key_value();
            self.wait(slot, last.map_or(MIDDLE, |(at, _)| at + 1));
        }
    }

    fn wait(&mut self, slot: usize, at: u64) {
        (self.slots[slot].state, self.slots[slot].end) = (SlotState::Waiting, at);
        self.waiting.insert(at, slot);
    }

    /// Takes a slot, for a request without a caller. In place: a slot is large, and a copy of it costs
    /// more than all of its fields that change (250 instructions per acquire and release).
    fn occupy(&mut self, form: ReplyForm, due: Instant) -> usize {
        let (state, late, end) = (SlotState::Waiting, false, 0);
        let Some(slot) = self.free.pop() else {
            let (command, waker, has_caller) = (None, None, false);
            self.slots.push(Slot { state, form, command, due, late, end, waker, has_caller });
            return self.slots.len() - 1;
        };
        let request = &mut self.slots[slot];
        request.state = state;
        (request.form, request.due, request.late, request.end) = (form, due, late, end);
        slot
    }

    /// Encodes a request, if there is a connection with room.
    fn encode(&mut self, slot: usize) -> bool {
        if self.live.as_ref().is_none_or(|live| live.out.len() >= OUT_MAX) {
            return false;
        }
        let Slot { command, due, late, .. } = &self.slots[slot];
        if command.as_ref().is_some_and(|command| command.asks) {
            // Both or none, and nothing in between: it would allow another request.
            let (due, late) = (*due, *late);
            let command = Command::plain("ASKING");
            let asking = self.occupy(command.form, due);
            self.slots[asking].late = late;
            self.slots[asking].command = Some(command);
            self.encode(asking);
        }
        let (Some(live), request) = (&mut self.live, &mut self.slots[slot]) else { return false };
        let Some(command) = &mut request.command else { return false };
        command.call_first_by_text(&mut live.called);
        let before = live.out.len();
        command.encode(&mut live.out);
        live.encoded += (live.out.len() - before) as u64;
        request.end = live.encoded;
        request.state = SlotState::Sent;
        live.sent.push_back(slot);
        live.fresh += 1;
        true
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Encodes waiting requests while there is room. A request has to be sent by `in_time`, or its
    /// missing answer says nothing about the connection.
    pub(super) fn encode_waiting(&mut self, in_time: Instant) {
        while let Some(first) = self.waiting.first_entry() {
            let slot = *first.get();
            self.slots[slot].late = self.slots[slot].due < in_time;
            if !self.encode(slot) {
                return;
            }
            self.waiting.pop_first();
        }
    }

    /// Returns the outcome of a request and frees its slot.
    pub(super) fn outcome(&mut self, slot: usize, waker: &Waker) -> Option<Outcome> {
        let request = &mut self.slots[slot];
        if !matches!(request.state, SlotState::Answered(_)) {
            if !request.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
                request.waker = Some(waker.clone());
            }
            return None;
        }
        match self.release(slot) {
            SlotState::Answered(outcome) => Some(outcome),
            SlotState::Free | SlotState::Waiting | SlotState::Sent => None,
        }
    }

    fn release(&mut self, slot: usize) -> SlotState {
        let request = &mut self.slots[slot];
        request.waker = None;
        request.has_caller = false;
        request.command.take_if(|command| command.is_large());
        let state = std::mem::replace(&mut request.state, SlotState::Free);
        self.free.push(slot);
        if self.free.len() == self.slots.len() && self.slots.len() > SLOTS_KEPT {
            self.slots.truncate(SLOTS_KEPT);
            self.slots.shrink_to_fit();
            self.free = (0..SLOTS_KEPT).collect();
        }
        state
    }

    /// The caller is gone.
    pub(super) fn abandon(&mut self, slot: usize) {
        match self.slots[slot].state {
            SlotState::Waiting => {
                self.waiting.remove(&self.slots[slot].end);
                self.release(slot);
            }
            SlotState::Sent => {
                let request = &mut self.slots[slot];
                (request.has_caller, request.waker) = (false, None);
            }
            SlotState::Answered(_) => drop(self.release(slot)),
            SlotState::Free => {}
        }
    }

    /// Takes a request back. Returns false if it may have been sent, or has an outcome.
    pub(super) fn withdraw(&mut self, slot: usize) -> bool {
        let is_waiting = matches!(self.slots[slot].state, SlotState::Waiting);
        if is_waiting {
            self.abandon(slot);
        }
        is_waiting
    }

    /// Gives a request its outcome. Its slot is free if there is no caller.
    fn answer(&mut self, slot: usize, outcome: Outcome) {
        let request = &mut self.slots[slot];
        if !request.has_caller {
            self.release(slot);
            return;
        }
        request.state = SlotState::Answered(outcome);
        if let Some(waker) = request.waker.take() {
            self.wakers.push(waker);
        }
    }

    /// Gives each reply to its request, or none of them: if one reply does not belong to its request,
    /// none of those that arrived with it is trusted. `in_time` is asked for if a script is sent again.
    pub(super) fn deliver(
        &mut self,
        replies: &mut Vec<Value>,
        in_time: impl Fn() -> Instant,
    ) -> Result<(), Misfit> {
        let Some(live) = &self.live else { return Err(Misfit) };
        for (n, reply) in replies.iter().enumerate() {
            let request = live.sent.get(n).map(|slot| &self.slots[*slot]);
            let fits = |request: &Slot| request.end <= live.taken && request.form.fits(reply);
            if !request.is_some_and(fits) {
                return Err(Misfit);
            }
        }
        self.answered += replies.len() as u64;
        for reply in replies.drain(..) {
            let Some(slot) = self.live.as_mut().and_then(|live| live.sent.pop_front()) else {
                return Err(Misfit);
            };
            let is_unknown = matches!(&reply, Value::Error(error) if error.code == "NOSCRIPT");
            if let Some(live) = self.live.as_mut().filter(|_| is_unknown) {
                // It knows none any more.
                live.called.clear();
            }
            let request = &mut self.slots[slot];
            // The script did not run: sent again with its text, unnoticed by the caller.
            if is_unknown
                && request.has_caller
                && request
                    .command
                    .as_mut()
                    .is_some_and(|call| !call.in_order && call.call_by_text())
            {
                request.late = request.due < in_time();
                self.encode_or_wait(slot);
                continue;
            }
            self.answer(slot, Ok(reply));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::redis::error_reply::ErrorReply;

    const NEVER: fn() -> Fault = || panic!("no such fault is expected");

    fn connected() -> Requests {
        Requests { live: Some(Live::new(1, None, None)), ..Requests::default() }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn pttl(name: &str) -> Command {
        Command::<i64>::plain("PTTL").arg(name).raw()
    }

    fn add(requests: &mut Requests, name: &str) -> usize {
        requests.add(pttl(name), soon(), false, Some(Waker::noop().clone()))
    }

    fn live(requests: &mut Requests) -> &mut Live {
        requests.live.as_mut().expect("it is connected")
    }

    fn write(requests: &mut Requests) -> String {
        let bytes = live(requests).take();
        live(requests).written(Vec::new());
        String::from_utf8(bytes).unwrap()
    }

    fn number(requests: &mut Requests, slot: usize) -> Option<Outcome> {
        requests.outcome(slot, Waker::noop())
    }

    fn fault() -> Fault {
        Fault::unanswered("cut")
    }

    #[test]
    fn a_reply_without_a_written_request_is_a_misfit() {
        let mut requests = connected();
        assert_eq!(requests.deliver(&mut vec![Value::Int(1)], soon), Err(Misfit));
        let slot = add(&mut requests, "a");
        // It is encoded, and the server cannot have seen it.
        assert_eq!(requests.deliver(&mut vec![Value::Int(1)], soon), Err(Misfit));
        write(&mut requests);
        assert_eq!(requests.deliver(&mut vec![Value::Int(1), Value::Int(2)], soon), Err(Misfit));
        assert_eq!(number(&mut requests, slot), None, "none of the two is trusted");
    }

    #[test]
    fn one_reply_that_does_not_fit_spoils_those_that_arrived_with_it() {
        let mut requests = connected();
        let slots = [add(&mut requests, "a"), add(&mut requests, "b")];
        write(&mut requests);
        let mut replies = vec![Value::Int(1), Value::Array(Vec::new())];
        assert_eq!(requests.deliver(&mut replies, soon), Err(Misfit));
        requests.give_up(1, &fault());
        for slot in slots {
            assert_eq!(number(&mut requests, slot), Some(Err(fault())));
        }
    }

    /// One that was redirected shortly before its deadline, say.
    #[test]
    fn a_request_that_was_handed_in_late_does_not_break_the_connection() {
        let no_answer = || Fault::unanswered("no answer");
        for (late, breaks) in [(false, true), (true, false)] {
            let mut requests = connected();
            let (now, waker) = (Instant::now(), Some(Waker::noop().clone()));
            requests.add(Command::plain("ASKING"), now, late, None);
            let slot = requests.add(pttl("a"), now, late, waker);
            write(&mut requests);
            assert_eq!(requests.expire(now, NEVER, no_answer), breaks);
            let outcome = number(&mut requests, slot);
            assert_eq!(outcome.is_some_and(|outcome| outcome == Err(no_answer())), !breaks);
        }
    }

    #[test]
    fn a_full_buffer_leaves_requests_with_their_callers() {
        let mut requests = connected();
        let name = "x".repeat(64 * 1024);
        let slots: Vec<_> = (0..64).map(|_| add(&mut requests, &name)).collect();
        let full = OUT_MAX..OUT_MAX + 2 * name.len();
        assert!(full.contains(&live(&mut requests).out.len()));
        // In order, as room appears, and none is lost.
        let mut written = 0;
        while live(&mut requests).has_output() {
            written += write(&mut requests).matches("PTTL").count();
            requests.encode_waiting(Instant::now());
            assert!(live(&mut requests).out.len() < full.end);
        }
        assert_eq!(written, slots.len());
        assert!(!requests.has_waiting());
        let mut replies: Vec<_> = (0..slots.len() as i64).map(Value::Int).collect();
        requests.deliver(&mut replies, soon).unwrap();
        for (n, slot) in slots.into_iter().enumerate() {
            assert_eq!(number(&mut requests, slot), Some(Ok(Value::Int(n as i64))));
        }
    }

    #[test]
    fn what_was_not_written_waits_for_the_next_connection_in_order() {
        let mut requests = connected();
        let sent = add(&mut requests, "sent");
        write(&mut requests);
        let kept = [add(&mut requests, "first"), add(&mut requests, "second")];
        assert!(requests.give_up(2, &fault()).is_none(), "of another connection");
        assert!(requests.give_up(1, &fault()).is_some());
        let last = add(&mut requests, "third");
        assert_eq!(number(&mut requests, sent), Some(Err(fault())));
        requests.live = Some(Live::new(2, None, None));
        requests.encode_waiting(Instant::now());
        let output = write(&mut requests);
        let at = |name| output.find(name).unwrap();
        assert!(
            at("first") < at("second") && at("second") < at("third") && !output.contains("sent")
        );
        let mut replies = vec![Value::Int(1), Value::Int(2), Value::Int(3)];
        requests.deliver(&mut replies, soon).unwrap();
        for (n, slot) in (1..).zip(kept.into_iter().chain([last])) {
            assert_eq!(number(&mut requests, slot), Some(Ok(Value::Int(n))));
        }
    }

    /// As the time of this thread grows, which the load of the machine does not change.
    #[test]
    fn abandoning_a_request_costs_the_same_however_many_wait() {
        use rustix::time::{ClockId, clock_gettime};
        let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
        let cost = |count: usize| {
            let mut requests = Requests::default();
            let slots: Vec<_> = (0..count).map(|_| add(&mut requests, "a")).collect();
            let begun = now();
            slots.into_iter().rev().for_each(|slot| requests.abandon(slot));
            (now() - begun).as_secs_f64() / count as f64
        };
        let least = |count| (0..3).map(|_| cost(count)).fold(f64::MAX, f64::min);
        let (few, many) = (least(1_000), least(16_000));
        assert!(many < 6.0 * few, "{few} s each, then {many} s");
    }

    #[test]
    fn an_answer_that_no_caller_has_seen_does_not_count_after_the_primary_has_changed() {
        let mut requests = connected();
        let slots = [add(&mut requests, "a"), add(&mut requests, "b")];
        write(&mut requests);
        let refused = || Value::Error(Box::new(ErrorReply::parse("READONLY no")));
        requests.deliver(&mut vec![Value::Int(1), refused()], soon).unwrap();
        requests.void(&fault());
        assert_eq!(number(&mut requests, slots[0]), Some(Err(fault())));
        assert_eq!(number(&mut requests, slots[1]), Some(Ok(refused())), "it did not run");
    }

    #[test]
    fn a_request_that_was_late_when_it_was_sent_fails_alone() {
        let mut requests = Requests::default();
        let late = add(&mut requests, "late");
        requests.live = Some(Live::new(1, None, None));
        requests.encode_waiting(soon() + Duration::from_secs(60));
        let next = add(&mut requests, "next");
        write(&mut requests);
        let passed = requests.slots[late].due;
        requests.slots[next].due = passed + Duration::from_secs(60);
        assert!(!requests.expire(passed, NEVER, fault), "it says nothing about the connection");
        assert_eq!(number(&mut requests, late), Some(Err(fault())));
        assert_eq!(requests.alarm, Some(passed + Duration::from_secs(60)));
        // Its reply is dropped, and the next one gets its own.
        requests.deliver(&mut vec![Value::Int(1), Value::Int(2)], soon).unwrap();
        assert_eq!(number(&mut requests, next), Some(Ok(Value::Int(2))));
        // One that was sent in time and has no answer is another matter.
        let slot = add(&mut requests, "a");
        write(&mut requests);
        assert!(requests.expire(requests.slots[slot].due, NEVER, fault));
    }

    #[test]
    fn what_was_not_sent_in_time_is_never_sent() {
        let mut requests = Requests::default();
        let slot = add(&mut requests, "a");
        let never_sent = || Fault::silent("");
        assert!(!requests.expire(requests.slots[slot].due, never_sent, fault));
        assert_eq!(number(&mut requests, slot), Some(Err(never_sent())));
        requests.live = Some(Live::new(1, None, None));
        requests.encode_waiting(Instant::now());
        assert!(!live(&mut requests).has_output());
    }

    /// Each look visits all requests.
    #[test]
    fn deadlines_that_are_near_each_other_are_looked_at_together() {
        let (mut requests, begun) = (Requests::default(), soon());
        for n in 0..10_000 {
            let due = begun + Duration::from_micros(100 * n);
            requests.add(pttl("a"), due, false, Some(Waker::noop().clone()));
        }
        let mut looks = 0;
        while let Some(alarm) = requests.alarm {
            assert!(!requests.expire(alarm, fault, NEVER));
            looks += 1;
        }
        assert!(!requests.has_waiting() && looks <= 101, "{looks}");
    }

    #[test]
    fn an_unknown_script_is_sent_again_with_its_text_and_only_once() {
        let mut requests = connected();
        let call = || crate::redis::script::LOCK_INSPECT.call(1).arg("a").raw();
        let slot = requests.add(call(), soon(), false, Some(Waker::noop().clone()));
        assert!(write(&mut requests).contains("EVALSHA"));
        let unknown = || Value::Error(Box::new(ErrorReply::parse("NOSCRIPT No matching script")));
        requests.deliver(&mut vec![unknown()], soon).unwrap();
        assert_eq!(number(&mut requests, slot), None);
        let text = write(&mut requests);
        assert!(text.contains("EVAL\r\n") && text.contains("KEYS[1]"), "{text}");
        requests.deliver(&mut vec![unknown()], soon).unwrap();
        assert_eq!(number(&mut requests, slot), Some(Ok(unknown())));
    }

    /// Alone it would let the next request be served where it is not to be.
    #[test]
    fn the_permission_to_ask_is_sent_only_with_its_request() {
        let name = "x".repeat(OUT_MAX);
        let mut asking = pttl("a");
        asking.asks = true;
        let ask = |requests: &mut Requests| {
            add(requests, &name);
            requests.add(asking.clone(), soon(), false, Some(Waker::noop().clone()))
        };
        let mut requests = connected();
        let abandoned = ask(&mut requests);
        requests.abandon(abandoned);
        write(&mut requests);
        add(&mut requests, "b");
        assert!(!write(&mut requests).contains("ASKING"));
        // One that is sent on the next connection is allowed there.
        let slot = ask(&mut requests);
        requests.give_up(1, &fault());
        requests.live = Some(Live::new(2, None, None));
        requests.encode_waiting(Instant::now());
        write(&mut requests);
        requests.encode_waiting(Instant::now());
        assert!(write(&mut requests).contains("ASKING\r\n*2\r\n$4\r\nPTTL\r\n$1\r\na"));
        let mut replies = vec![Value::Int(1), Value::Status("OK".to_owned()), Value::Int(2)];
        requests.deliver(&mut replies, soon).unwrap();
        assert_eq!(number(&mut requests, slot), Some(Ok(Value::Int(2))));
    }
}
