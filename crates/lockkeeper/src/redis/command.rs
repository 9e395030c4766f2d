//! Requests in the form in which they are sent.
//!
//! A command is encoded once, while it is built: its arguments are bytes in the protocol's form from
//! the start. The head of a script call (`EVALSHA` and the hash, or `EVAL` and the text) is encoded
//! once per script and not part of the command, so that a call that has to be repeated with the text is
//! the same command with another head. Buffers of arguments are reused by the next command of the same
//! thread.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::LazyLock;

use uuid::Uuid;

use super::reply::{Reply, ReplyForm};
use super::resp::Value;
use crate::LockName;
use crate::OwnerId;
use crate::backend::Fenced;

/// A script, and the type of its reply.
pub(super) struct Script<T> {
    pub(super) text: Text,
    reply: PhantomData<fn() -> T>,
}

/// The text of a script and the hash by which it is called.
pub(super) struct Text {
    pub(super) source: &'static str,
    /// `EVALSHA` and the hash, encoded.
    head: LazyLock<Vec<u8>>,
}

impl<T: Reply> Script<T> {
    /// `head` must encode the head of `source`: see [`by_hash`].
    pub(super) const fn new(source: &'static str, head: fn() -> Vec<u8>) -> Self {
        Self { text: Text { source, head: LazyLock::new(head) }, reply: PhantomData }
    }

    /// Creates a call with `keys` keys: append them, then the arguments.
    #[inline(always)]
    pub(super) fn call(&'static self, keys: usize) -> Command<T> {
        let mut call = Command::new(Head::Hash(&self.text));
        call.push(keys);
        call
    }
}

/// Encodes the head of a call by the hash of the script's text.
pub(super) fn by_hash(source: &str) -> Vec<u8> {
    let mut head = Vec::new();
    write_argument(&mut head, b"EVALSHA");
    let hash = sha1_smol::Sha1::from(source).digest().to_string();
    write_argument(&mut head, hash.as_bytes());
    head
}

/// What precedes the arguments of a command.
#[derive(Clone, Copy)]
enum Head {
    /// Nothing: the name of the command is the first argument.
    Plain,
    /// A call of a script by its hash.
    Hash(&'static Text),
    /// A call of a script by its text.
    Text(&'static Text),
}

/// An encoded request, and the type of its reply.
#[derive(Clone)]
pub(super) struct Command<T = Value> {
    head: Head,
    /// The number of arguments in `body`.
    count: usize,
    body: Body,
    pub(super) form: ReplyForm,
    pub(super) in_order: bool,
    /// It follows `ASKING`: a node serves it that is about to get its slot.
    pub(super) asks: bool,
    reply: PhantomData<fn() -> T>,
}

impl<T: Reply> Command<T> {
    #[inline(always)]
    fn new(head: Head) -> Self {
        let (form, reply) = (ReplyForm::of::<T>(), PhantomData);
        Self { head, count: 0, body: Body::reused(), form, in_order: false, asks: false, reply }
    }

    #[inline(always)]
    pub(super) fn plain(name: &str) -> Self {
        let mut command = Self::new(Head::Plain);
        command.push(name);
        command
    }
}

impl<T> Command<T> {
    /// The same without the type of its reply, which keeps its form.
    #[inline(always)]
    pub(super) fn raw(self) -> Command {
        let Self { head, count, body, form, in_order, asks, .. } = self;
        Command { head, count, body, form, in_order, asks, reply: PhantomData }
    }

    /// Declares that the reply is a list of exactly `count` values.
    pub(super) fn answering_each(mut self, count: usize) -> Self {
        self.form.each = Some(count);
        self
    }

    /// Appends an argument. In place: [`arg`](Command::arg) moves the command, which counts where every
    /// acquire or release does it.
    #[inline(always)]
    pub(super) fn push(&mut self, argument: impl Argument) {
        self.count += 1;
        argument.write(&mut self.body.0);
    }

    #[inline(always)]
    pub(super) fn arg(mut self, argument: impl Argument) -> Self {
        self.push(argument);
        self
    }

    /// Appends a TTL, or an empty argument for none.
    #[inline(always)]
    pub(super) fn ttl_or_empty(mut self, ttl: Option<u64>) -> Self {
        match ttl {
            Some(ttl) => self.push(ttl),
            None => self.push(""),
        }
        self
    }

    /// Appends the TTL of a fencing token, if one is requested.
    #[inline(always)]
    pub(super) fn token_ttl(self, fenced: Option<Fenced>) -> Self {
        match fenced {
            Some(fenced) => self.ttl_or_empty(fenced.ttl),
            None => self,
        }
    }

    /// Appends the TTL of a token, and the channel that a waiter would listen on if its listeners can
    /// be counted.
    #[inline(always)]
    pub(super) fn waiting_on(
        self,
        fenced: Option<Fenced>,
        channel: Option<impl Argument>,
        wakes: Wakes,
    ) -> Self {
        let Some((channel, counting)) = channel.zip(wakes.counting()) else {
            return self.token_ttl(fenced);
        };
        let call = self.ttl_or_empty(fenced.and_then(|fenced| fenced.ttl)).arg(channel);
        match wakes {
            // The default of the scripts, and the most frequent request.
            Wakes::Plain => call,
            _ => call.arg(counting),
        }
    }

    /// Whether its buffer is too large to be kept for other commands.
    pub(super) fn is_large(&self) -> bool {
        self.body.0.capacity() > KEPT_BYTES
    }

    /// Declares that it must not run after requests that follow it: if the server does not know its script, the
    /// caller gets the error, and may repeat it while nothing follows.
    pub(super) fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    /// The same as a call by text.
    pub(super) fn by_text(mut self) -> Self {
        self.call_by_text();
        self
    }

    /// Turns a call by hash into a call by text. Returns false for any other command.
    pub(super) fn call_by_text(&mut self) -> bool {
        match self.head {
            Head::Hash(script) => {
                self.head = Head::Text(script);
                true
            }
            Head::Plain | Head::Text(_) => false,
        }
    }

    /// The same for the first call of each script that must run in order, so that the server knows it. `called`
    /// are the scripts that were called before.
    pub(super) fn call_first_by_text(&mut self, called: &mut Vec<&'static Text>) {
        if self.in_order
            && let Head::Hash(script) = self.head
            && !called.iter().any(|one| std::ptr::eq(*one, script))
        {
            called.push(script);
            self.head = Head::Text(script);
        }
    }

    /// Appends the whole request to a write buffer.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let heads = if matches!(self.head, Head::Plain) { 0 } else { 2 };
        write_number(out, b'*', (self.count + heads) as u64);
        match self.head {
            Head::Plain => {}
            Head::Hash(script) => out.extend_from_slice(&script.head),
            Head::Text(script) => {
                write_argument(out, b"EVAL");
                write_argument(out, script.source.as_bytes());
            }
        }
        out.extend_from_slice(&self.body.0);
    }
}

/// The buffers that a thread keeps for its next commands, and the largest one that it keeps.
const KEPT_BUFFERS: usize = 64;
const KEPT_BYTES: usize = 512;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The arguments of a command, in a buffer that is used again.
#[derive(Clone)]
struct Body(Vec<u8>);

impl Body {
    fn reused() -> Self {
        let buffer = KEPT.try_with(|kept| kept.borrow_mut().pop());
        Self(buffer.ok().flatten().unwrap_or_else(|| Vec::with_capacity(256)))
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.0.capacity() > KEPT_BYTES {
            return;
        }
        let mut body = std::mem::take(&mut self.0);
        // Fails while the thread ends.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_BUFFERS {
                body.clear();
                kept.push(body);
            }
        });
    }
}

/// A value that can be an argument of a command.
pub(super) trait Argument {
    /// Appends the encoded argument.
    fn write(&self, body: &mut Vec<u8>);
}

/// Appends an argument of known bytes.
#[inline(always)]
pub(super) fn write_argument(out: &mut Vec<u8>, bytes: &[u8]) {
    write_number(out, b'$', bytes.len() as u64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends a line of a type and a number.
#[inline(always)]
pub(super) fn write_number(out: &mut Vec<u8>, kind: u8, number: u64) {
    // Most are lengths of short arguments.
    match number {
        0..10 => out.extend_from_slice(&[kind, b'0' + number as u8, b'\r', b'\n']),
        10..100 => {
            let [tens, ones] = PAIRS[number as usize];
            out.extend_from_slice(&[kind, tens, ones, b'\r', b'\n']);
        }
        _ => write_long_number(out, kind, number),
    }
}

#[inline(never)]
fn write_long_number(out: &mut Vec<u8>, kind: u8, number: u64) {
    let mut digits = [0; 24];
    let count = write_digits(number, &mut digits);
    out.push(kind);
    append(out, &digits, count);
    out.extend_from_slice(b"\r\n");
}

/// Appends the first `length` of these bytes. It copies all of them: a copy of constant size is a few
/// moves, one of variable size is a call that costs more than the rest of a short argument.
#[inline(always)]
fn append<const N: usize>(out: &mut Vec<u8>, bytes: &[u8; N], length: usize) {
    let end = out.len() + length;
    out.extend_from_slice(bytes);
    out.truncate(end);
}

static PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut n = 0;
    while n < 100 {
        pairs[n] = [b'0' + (n / 10) as u8, b'0' + (n % 10) as u8];
        n += 1;
    }
    pairs
};

/// Writes the decimal digits of a number to the beginning of `out`, and returns how many. Without the
/// machinery of formatting, because several numbers are in every request.
fn write_digits(mut number: u64, out: &mut [u8; 24]) -> usize {
    // Followed by zeros, so that a copy of constant size never ends outside.
    let (mut digits, mut first) = ([0; 48], 24);
    loop {
        first -= 2;
        [digits[first], digits[first + 1]] = PAIRS[(number % 100) as usize];
        number /= 100;
        if number == 0 {
            break;
        }
    }
    first += usize::from(digits[first] == b'0');
    out.copy_from_slice(&digits[first..first + 24]);
    24 - first
}

macro_rules! byte_arguments {
    ($($bytes:ty)*) => {
        $(impl Argument for $bytes {
            #[inline(always)]
            fn write(&self, body: &mut Vec<u8>) {
                write_argument(body, self.as_ref());
            }
        })*
    };
}

byte_arguments! { [u8] str Vec<u8> String }

impl<T: Argument + ?Sized> Argument for &T {
    #[inline(always)]
    fn write(&self, body: &mut Vec<u8>) {
        (**self).write(body);
    }
}

macro_rules! number_arguments {
    ($($number:ty)*) => {
        $(impl Argument for $number {
            #[inline(always)]
            fn write(&self, body: &mut Vec<u8>) {
                match *self as u64 {
                    // Counts, most of them constants.
                    number @ 0..10 => {
                        let digit = b'0' + number as u8;
                        body.extend_from_slice(&[b'$', b'1', b'\r', b'\n', digit, b'\r', b'\n']);
                    }
                    number => write_integer(body, number),
                }
            }
        })*
    };
}

number_arguments! { u8 u32 u64 usize }

fn write_integer(body: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 24];
    let count = write_digits(number, &mut digits);
    write_number(body, b'$', count as u64);
    append(body, &digits, count);
    body.extend_from_slice(b"\r\n");
}

impl Argument for i64 {
    fn write(&self, body: &mut Vec<u8>) {
        write_argument(body, self.to_string().as_bytes());
    }
}

/// The length of a client's part of an owner id.
const CLIENT: usize = uuid::fmt::Hyphenated::LENGTH + 1;

/// An encoded owner id: `$57`, the client, and room for the digits and the end of the line.
type EncodedOwner = [u8; ENCODED_OWNER];

const ENCODED_OWNER: usize = 5 + CLIENT + 24;

thread_local! {
    /// The client that this thread encoded last, as the beginning of an owner id. A process seldom has
    /// more than one.
    static ENCODED: Cell<(Uuid, EncodedOwner)> = const { Cell::new((Uuid::nil(), [b':'; ENCODED_OWNER])) };
}

#[inline(always)]
fn encoded_client(client: Uuid) -> EncodedOwner {
    match ENCODED.try_with(Cell::get) {
        Ok((last, encoded)) if last == client && !client.is_nil() => encoded,
        _ => encode_client(client),
    }
}

#[inline(never)]
fn encode_client(client: Uuid) -> EncodedOwner {
    let mut encoded = [b':'; ENCODED_OWNER];
    encoded[..5].copy_from_slice(b"$00\r\n");
    client.as_hyphenated().encode_lower(&mut encoded[5..]);
    // Fails while the thread ends.
    let _ = ENCODED.try_with(|last| last.set((client, encoded)));
    encoded
}

impl Argument for OwnerId {
    #[inline(never)]
    fn write(&self, body: &mut Vec<u8>) {
        let mut owner = encoded_client(self.client);
        let (_, digits) = owner.split_last_chunk_mut().expect("there is room for them");
        let count = write_digits(self.number, digits);
        // Always two digits.
        [owner[1], owner[2]] = PAIRS[CLIENT + count];
        let end = 5 + CLIENT + count;
        owner[end..end + 2].copy_from_slice(b"\r\n");
        append(body, &owner, end + 2);
    }
}

/// How a store publishes wake-ups. Notices to clients are plain in every case.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wakes {
    /// Outside of a cluster: one server has all subscribers.
    Plain,
    /// To all nodes of a cluster, as Redisson below 3.28 does.
    Classic,
    /// To the subscribers at the owner of the channel's slot.
    Sharded,
    /// In both ways, for a cluster with clients of either kind.
    Both,
    /// Not at all: of an acquire that is withdrawn and made once more.
    Silent,
}

impl Wakes {
    pub(super) fn is_cluster(self) -> bool {
        !matches!(self, Wakes::Plain | Wakes::Silent)
    }

    /// How wake-ups of a latch travel: plain if its name contains a brace, because the channel is then
    /// in another slot than the latch.
    pub(super) fn of_latch(self, name: &LockName) -> Self {
        match self.is_cluster() && name.as_bytes().contains(&b'{') {
            true => Wakes::Classic,
            false => self,
        }
    }

    /// The publish command for the scripts: see `notify.lua`.
    pub(super) fn publish(self) -> &'static str {
        match self {
            Wakes::Plain | Wakes::Classic => "PUBLISH",
            Wakes::Sharded => "SPUBLISH",
            Wakes::Both => "BOTH",
            Wakes::Silent => "",
        }
    }

    /// The form of `PUBSUB` that counts all listeners of a channel; `None` if no single server knows
    /// them all.
    pub(super) fn counting(self) -> Option<&'static str> {
        match self {
            Wakes::Plain => Some("NUMSUB"),
            Wakes::Sharded => Some("SHARDNUMSUB"),
            Wakes::Classic | Wakes::Both | Wakes::Silent => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The driver encodes the same command to the same bytes.
    #[test]
    fn a_command_is_encoded_as_the_driver_encodes_it() {
        let tens = (0..20).map(|n| 10_u64.pow(n));
        let edges = tens.flat_map(|ten| [ten - 1, ten, ten + 1, ten / 10 * 11]);
        for number in edges.chain([1234, 50_607, 90_090_909, 1 << 63, u64::MAX]) {
            // Two clients, each once more after the other.
            let owners = [Uuid::new_v4(), Uuid::new_v4()].map(|id| OwnerId { client: id, number });
            for owner in owners.iter().chain(&owners) {
                let ours = Command::<Value>::plain("SET").arg("k").arg(owner).arg("PX").arg(number);
                let mut theirs = redis::cmd("SET");
                theirs.arg("k").arg(owner.to_string()).arg("PX").arg(number);
                let mut encoded = Vec::new();
                ours.encode(&mut encoded);
                assert_eq!(encoded, theirs.get_packed_command());
            }
        }
    }

    const ALL: [Wakes; 4] = [Wakes::Plain, Wakes::Classic, Wakes::Sharded, Wakes::Both];

    #[test]
    fn a_latch_whose_channel_is_in_another_slot_is_woken_plainly() {
        let ways = |name: &str| ALL.map(|wakes| wakes.of_latch(&name.into()));
        assert_eq!(ways("a"), ALL);
        let classic = Wakes::Classic;
        assert_eq!(ways("{eu}:a"), [Wakes::Plain, classic, classic, classic]);
    }
}
