//! The parser of replies, RESP3 and RESP2.
//!
//! **An own parser.** That of the `redis` crate rejects an error message that quotes a key which is not UTF-8,
//! with which the connection would be lost, and has no limit for a reply. The tests below compare the two.
//!
//! **Few forms.** What means the same in both versions is the same value: the fields of a map are a list, as
//! in RESP2, a number with a fraction is text, and a set is a list. Types of which no reply to a request of ours
//! consists (truth values, big numbers, attributes) are refused.
//!
//! **Input arrives in pieces.** What is complete is consumed at once, also the elements of a list that
//! is not, so that no byte is parsed twice, however a reply is split. A length that the server announces
//! reserves no memory before the bytes arrive.
//!
//! **No repair.** Anything that is not a reply is an error, and after an error the position in the
//! stream is unknown: the connection must be given up.

use super::error_reply::ErrorReply;
use crate::backend::Fault;

/// The longest line: of a status, an error or a number. An error costs many times its length: it is copied.
const LINE_MAX: usize = 64 * 1024;

/// The deepest nesting. Our replies have at most three levels.
const DEPTH_MAX: usize = 32;

/// The largest reply, in bytes of memory, beside the input: a value of another program stands twice while it is
/// copied. The server may send a whole value of another program, of up to
/// 512 MiB. A smaller limit would end the connection again and again for a key that is merely not a lock.
pub(super) const REPLY_MAX: usize = 640 * 1024 * 1024;

/// The same until the server is known.
pub(super) const HANDSHAKE_MAX: usize = 1024 * 1024;

/// What an element costs in memory beside its bytes: three bytes may be a value. Its list may have grown to
/// twice its length, and the value allocates a little of its own.
const ELEMENT: usize = 4 * size_of::<Value>();

/// The room that is reserved for the elements of a list of unknown honesty.
const RESERVED_MAX: usize = 256;

/// A reply, or a part of one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Value {
    Nil,
    Int(i64),
    /// A short text of the server, as `OK`.
    Status(String),
    Bulk(Vec<u8>),
    Array(Vec<Value>),
    /// Fields and their values in turn.
    Map(Vec<Value>),
    /// A message, which is no reply. It begins with its kind.
    Push(Vec<Value>),
    Error(Box<ErrorReply>),
}

impl Value {
    /// Converts an error to a fault.
    pub(super) fn checked(self) -> Result<Self, Fault> {
        if let Value::Error(error) = self { Err(error.fault()) } else { Ok(self) }
    }

    pub(super) fn is_of_replica(&self) -> bool {
        matches!(self, Value::Error(error) if error.is_of_replica())
    }
}

/// The bytes are not a reply: where they stopped to be one is unknown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Malformed(pub(super) &'static str);

pub(super) struct Parser {
    /// Lists whose elements have not all arrived, the outermost first.
    open: Vec<Open>,
    /// What the current reply costs in memory so far, and may cost.
    size: usize,
    pub(super) limit: usize,
}

struct Open {
    form: Aggregate,
    missing: usize,
    items: Vec<Value>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Aggregate {
    Array,
    Map,
    Push,
}

enum Token {
    Value(Value),
    /// A list of this many elements follows.
    List(Aggregate, usize),
}

impl Parser {
    pub(super) fn new(limit: usize) -> Self {
        Self { open: Vec::new(), size: 0, limit }
    }

    /// Parses one reply at the beginning of `input`. Returns the number of bytes that are consumed,
    /// and the reply if it is complete.
    pub(super) fn parse(&mut self, input: &[u8]) -> Result<(usize, Option<Value>), Malformed> {
        let mut at = 0;
        loop {
            let Some((length, token)) = token(&input[at..])? else {
                if self.size + (input.len() - at) > self.limit {
                    return Err(Malformed("a reply is too large"));
                }
                return Ok((at, None));
            };
            at += length;
            // Each byte of an error that is not UTF-8 becomes three.
            let is_error = matches!(token, Token::Value(Value::Error(_)));
            self.size += if is_error { 3 * length } else { length } + ELEMENT;
            if self.size > self.limit {
                return Err(Malformed("a reply is too large"));
            }
            let value = match token {
                Token::Value(value) => Some(value),
                Token::List(form, count) => self.open(form, count)?,
            };
            let Some(value) = value else { continue };
            // Most replies are no lists.
            let reply = if self.open.is_empty() { Some(value) } else { self.close(value)? };
            if reply.is_some() {
                self.size = 0;
                return Ok((at, reply));
            }
        }
    }

    /// Begins a list. Returns it if it is empty.
    fn open(&mut self, form: Aggregate, count: usize) -> Result<Option<Value>, Malformed> {
        if self.open.len() >= DEPTH_MAX {
            return Err(Malformed("a reply is nested too deeply"));
        }
        if form == Aggregate::Push && !self.open.is_empty() {
            return Err(Malformed("a push message inside of a reply"));
        }
        if count == 0 {
            return finish(form, Vec::new()).map(Some);
        }
        let items = Vec::with_capacity(count.min(RESERVED_MAX));
        self.open.push(Open { form, missing: count, items });
        Ok(None)
    }

    /// Adds a value to the innermost list. Returns the outermost one when it is complete.
    fn close(&mut self, mut value: Value) -> Result<Option<Value>, Malformed> {
        while let Some(list) = self.open.last_mut() {
            list.items.push(value);
            list.missing -= 1;
            if list.missing > 0 {
                return Ok(None);
            }
            let Some(Open { form, items, .. }) = self.open.pop() else { return Ok(None) };
            value = finish(form, items)?;
        }
        Ok(Some(value))
    }
}

fn finish(form: Aggregate, items: Vec<Value>) -> Result<Value, Malformed> {
    match (form, items.first()) {
        (Aggregate::Array, _) => Ok(Value::Array(items)),
        (Aggregate::Map, _) => Ok(Value::Map(items)),
        (Aggregate::Push, Some(Value::Bulk(_) | Value::Status(_))) => Ok(Value::Push(items)),
        (Aggregate::Push, _) => Err(Malformed("a push message without a kind")),
    }
}

/// Parses one scalar, or the head of one list. Returns `None` if it is not complete.
fn token(input: &[u8]) -> Result<Option<(usize, Token)>, Malformed> {
    let Some((&kind, rest)) = input.split_first() else { return Ok(None) };
    // Compiled to one test of a bit.
    if !matches!(kind, b':' | b'$' | b'*' | b'+' | b'-' | b'_' | b',')
        && !matches!(kind, b'=' | b'!' | b'%' | b'~' | b'>')
    {
        return Err(Malformed("a reply of an unknown type"));
    }
    let Some(line) = line(rest)? else { return Ok(None) };
    // The type, the line, and its end.
    let head = 1 + line.len() + 2;
    let value = match kind {
        b':' => Value::Int(integer(line)?),
        b'+' => Value::Status(text(line)?),
        b'-' => error(line),
        b'_' if line.is_empty() => Value::Nil,
        b',' if is_number(line) => Value::Bulk(line.to_vec()),
        b'_' | b',' => return Err(Malformed("not of its type")),
        b'$' | b'=' | b'!' => {
            let length = integer(line)?;
            if length == -1 && kind == b'$' {
                return Ok(Some((head, Token::Value(Value::Nil))));
            }
            let length = size(length)?;
            if kind == b'!' && length > LINE_MAX {
                return Err(Malformed("an error is too long"));
            }
            let Some(bytes) = input.get(head..head + length + 2) else { return Ok(None) };
            let Some(bytes) = bytes.strip_suffix(b"\r\n") else {
                return Err(Malformed("a string does not end where it should"));
            };
            let value = match kind {
                b'$' => Value::Bulk(bytes.to_vec()),
                b'=' => verbatim(bytes)?,
                _ => error(bytes),
            };
            return Ok(Some((head + length + 2, Token::Value(value))));
        }
        _ => {
            let count = integer(line)?;
            let form = match kind {
                b'*' if count == -1 => return Ok(Some((head, Token::Value(Value::Nil)))),
                b'*' | b'~' => Aggregate::Array,
                b'%' => Aggregate::Map,
                _ => Aggregate::Push,
            };
            let factor = if form == Aggregate::Map { 2 } else { 1 };
            return Ok(Some((head, Token::List(form, size(count)? * factor))));
        }
    };
    Ok(Some((head, Token::Value(value))))
}

/// Returns the bytes before the end of the line; `None` if the end has not arrived.
fn line(input: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let window = &input[..input.len().min(LINE_MAX)];
    match window.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        Some(end) if window[end] == b'\r' => match input.get(end + 1) {
            Some(b'\n') => Ok(Some(&window[..end])),
            Some(_) => Err(Malformed("a line does not end where it should")),
            None => Ok(None),
        },
        Some(_) => Err(Malformed("a line does not end where it should")),
        None if window.len() == LINE_MAX => Err(Malformed("a line is too long")),
        None => Ok(None),
    }
}

fn integer(line: &[u8]) -> Result<i64, Malformed> {
    const NOT_ONE: Malformed = Malformed("not an integer");
    let (negative, digits) = match line {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() {
        return Err(NOT_ONE);
    }
    let mut number: i64 = 0;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return Err(NOT_ONE);
        }
        // Counted downwards: the smallest number has no positive counterpart.
        number = number.checked_mul(10).ok_or(NOT_ONE)?;
        number = number.checked_sub(i64::from(digit)).ok_or(NOT_ONE)?;
    }
    if negative { Ok(number) } else { number.checked_neg().ok_or(NOT_ONE) }
}

fn size(number: i64) -> Result<usize, Malformed> {
    match usize::try_from(number) {
        Ok(size) if size <= REPLY_MAX => Ok(size),
        Ok(_) => Err(Malformed("a reply is too large")),
        Err(_) => Err(Malformed("a negative length")),
    }
}

fn is_number(line: &[u8]) -> bool {
    std::str::from_utf8(line).is_ok_and(|text| text.parse::<f64>().is_ok())
}

fn text(line: &[u8]) -> Result<String, Malformed> {
    let text = std::str::from_utf8(line).map_err(|_| Malformed("a status is not UTF-8"))?;
    Ok(text.to_owned())
}

/// An error may quote the name of a key, which need not be UTF-8.
fn error(text: &[u8]) -> Value {
    let text = String::from_utf8_lossy(text).replace(['\r', '\n'], " ");
    Value::Error(Box::new(ErrorReply::parse(&text)))
}

/// The text behind its format.
fn verbatim(bytes: &[u8]) -> Result<Value, Malformed> {
    match bytes.split_at_checked(3) {
        Some((_, [b':', text @ ..])) => Ok(Value::Bulk(text.to_vec())),
        _ => Err(Malformed("not a verbatim string")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parses a stream that arrives in these pieces, as a connection does.
    fn parse_pieces(stream: &[u8], cuts: &[usize]) -> Result<Vec<Value>, Malformed> {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
        cuts.push(stream.len());
        cuts.sort_unstable();
        let (mut parser, mut buffer, mut replies) =
            (Parser::new(REPLY_MAX), Vec::new(), Vec::new());
        let mut from = 0;
        for to in cuts {
            buffer.extend_from_slice(&stream[from..to]);
            from = to;
            loop {
                let (consumed, reply) = parser.parse(&buffer)?;
                buffer.drain(..consumed);
                match reply {
                    Some(reply) => replies.push(reply),
                    None => break,
                }
            }
        }
        Ok(replies)
    }

    /// Encodes a value as one of the two versions does.
    fn encode(value: &Value, is_resp3: bool, out: &mut Vec<u8>) {
        let line = |out: &mut Vec<u8>, kind: char, text: &str| {
            out.extend_from_slice(format!("{kind}{text}\r\n").as_bytes());
        };
        match value {
            Value::Nil if is_resp3 => line(out, '_', ""),
            Value::Nil => line(out, '$', "-1"),
            Value::Int(number) => line(out, ':', &number.to_string()),
            Value::Status(text) => line(out, '+', text),
            Value::Error(error) => line(out, '-', &error.to_string()),
            Value::Bulk(bytes) => {
                line(out, '$', &bytes.len().to_string());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Value::Array(items) | Value::Map(items) | Value::Push(items) => {
                match value {
                    Value::Map(_) => line(out, '%', &(items.len() / 2).to_string()),
                    Value::Push(_) => line(out, '>', &items.len().to_string()),
                    _ => line(out, '*', &items.len().to_string()),
                }
                items.iter().for_each(|item| encode(item, is_resp3, out));
            }
        }
    }

    /// A value of the driver as one of ours.
    fn of_driver(theirs: redis::Value) -> Value {
        use redis::Value as Theirs;
        let all = |items: Vec<Theirs>| items.into_iter().map(of_driver).collect();
        match theirs {
            Theirs::Nil => Value::Nil,
            Theirs::Int(number) => Value::Int(number),
            Theirs::Okay => Value::Status("OK".to_owned()),
            Theirs::SimpleString(text) => Value::Status(text),
            Theirs::BulkString(bytes) => Value::Bulk(bytes),
            Theirs::VerbatimString { text, .. } => Value::Bulk(text.into_bytes()),
            Theirs::Double(number) => Value::Bulk(number.to_string().into_bytes()),
            Theirs::Array(items) | Theirs::Set(items) => Value::Array(all(items)),
            Theirs::Map(pairs) => {
                Value::Map(all(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect()))
            }
            Theirs::Push { kind, data } => {
                let mut items = vec![Value::Bulk(kind.to_string().into_bytes())];
                items.extend(data.into_iter().map(of_driver));
                Value::Push(items)
            }
            Theirs::ServerError(error) => {
                let (code, detail) = (error.code().to_owned(), error.details().unwrap_or_default());
                Value::Error(Box::new(ErrorReply { code, detail: detail.to_owned() }))
            }
            other => panic!("not generated: {other:?}"),
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Nil),
            any::<i64>().prop_map(Value::Int),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bulk),
            prop_oneof!["[A-Za-z0-9 :{}]{0,12}", "OK"].prop_map(Value::Status),
            "[A-Z]{1,8} [a-z ]{1,20}".prop_map(|line| error(line.as_bytes())),
        ];
        let nested = scalar.prop_recursive(4, 40, 6, |item| {
            let pairs = prop::collection::vec((item.clone(), item.clone()), 0..4);
            prop_oneof![
                prop::collection::vec(item, 0..6).prop_map(Value::Array),
                pairs.prop_map(|pairs| {
                    Value::Map(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())
                }),
            ]
        });
        let data = prop::collection::vec(nested.clone(), 0..3);
        let push = data
            .prop_map(|data| Value::Push([vec![Value::Bulk(b"message".to_vec())], data].concat()));
        prop_oneof![8 => nested, 1 => push]
    }

    proptest! {
        #[test]
        fn any_split_of_a_stream_gives_the_same_replies(
            sent in prop::collection::vec(values(), 0..8),
            cuts in prop::collection::vec(any::<usize>(), 0..12),
            is_resp3 in any::<bool>(),
        ) {
            let mut stream = Vec::new();
            sent.iter().for_each(|value| encode(value, is_resp3, &mut stream));
            prop_assert_eq!(parse_pieces(&stream, &cuts).unwrap(), sent.clone());
            let each: Vec<_> = (0..stream.len()).collect();
            prop_assert_eq!(parse_pieces(&stream, &each).unwrap(), sent);
        }

        #[test]
        fn a_reply_means_what_it_means_to_the_driver(
            value in values(),
            is_resp3 in any::<bool>(),
            number in -1e9..1e9,
            text in "[a-z \r\n]{0,12}",
        ) {
            let mut stream = Vec::new();
            encode(&value, is_resp3, &mut stream);
            let others = format!("~2\r\n,{number}\r\n=12\r\ntxt:{text:8.8}\r\n");
            for stream in [&stream[..], others.as_bytes()] {
                let theirs = of_driver(redis::parse_redis_value(stream).unwrap());
                prop_assert_eq!(parse_pieces(stream, &[]).unwrap(), vec![theirs]);
            }
        }

        #[test]
        fn garbage_gives_an_error_or_waits_and_never_panics(
            stream in prop::collection::vec(any::<u8>(), 0..200),
            cuts in prop::collection::vec(any::<usize>(), 0..6),
        ) {
            let whole = parse_pieces(&stream, &[]);
            let split = parse_pieces(&stream, &cuts);
            // Replies before the garbage may have been read; the verdict is the same.
            prop_assert_eq!(whole.is_err(), split.is_err());
        }
    }

    fn rejected(stream: &[u8]) -> &'static str {
        parse_pieces(stream, &[]).expect_err("it is not a reply").0
    }

    #[test]
    fn forms_that_no_server_sends_are_rejected() {
        for stream in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b":\r\n",
            b":12a\r\n",
            b":99999999999999999999\r\n",
            b":1\n",
            b":1\rx",
            b"$-2\r\n",
            b"$3\r\nabcde",
            b"$?\r\n",
            b"*-2\r\n",
            b"%-1\r\n",
            b"*1\r\n>1\r\n",
            b">0\r\n",
            b">1\r\n:1\r\n",
            b"#t\r\n",
            b"_x\r\n",
            b",x\r\n",
            b"(1\r\n",
            b"|1\r\n+ttl\r\n:3\r\n:1\r\n",
            b"=2\r\nab\r\n",
        ] {
            rejected(stream);
        }
        assert_eq!(rejected(&b"*1\r\n".repeat(DEPTH_MAX + 1)), "a reply is nested too deeply");
        assert_eq!(rejected(&[&b"+"[..], &[b'x'; LINE_MAX]].concat()), "a line is too long");
        assert_eq!(rejected(b"$9999999999\r\n"), "a reply is too large");
        let long = format!("!{}\r\n", LINE_MAX + 1);
        assert_eq!(rejected(long.as_bytes()), "an error is too long");
    }

    #[test]
    fn old_forms_of_nothing_are_nothing() {
        assert_eq!(parse_pieces(b"$-1\r\n*-1\r\n", &[]).unwrap(), [Value::Nil, Value::Nil]);
        assert_eq!(parse_pieces(b":+5\r\n", &[]).unwrap(), [Value::Int(5)]);
        let least = format!(":{}\r\n", i64::MIN);
        assert_eq!(parse_pieces(least.as_bytes(), &[]).unwrap(), [Value::Int(i64::MIN)]);
    }

    #[test]
    fn an_error_may_quote_any_bytes() {
        let replies = parse_pieces(b"-ERR no key \xff\r\n!7\r\nERR a\r\n\r\n", &[]).unwrap();
        let [Value::Error(line), Value::Error(blob)] = &replies[..] else {
            panic!("{replies:?}");
        };
        assert_eq!((&line.code[..], &line.detail[..]), ("ERR", "no key \u{fffd}"));
        assert_eq!((&blob.code[..], &blob.detail[..]), ("ERR", "a  "));
    }

    /// A list of a length that was announced and not sent uses no memory for it.
    #[test]
    fn an_announced_length_reserves_little() {
        let mut parser = Parser::new(REPLY_MAX);
        assert_eq!(parser.parse(b"*100000000\r\n:1\r\n"), Ok((16, None)));
        assert!(parser.open[0].items.capacity() <= RESERVED_MAX);
    }

    /// Whatever it consists of: three bytes of a reply may be a value.
    #[test]
    fn a_reply_uses_no_more_memory_than_the_limit() {
        fn memory(value: &Value) -> usize {
            let of = |items: &Vec<Value>| {
                items.capacity() * size_of::<Value>() + items.iter().map(memory).sum::<usize>()
            };
            match value {
                Value::Array(items) | Value::Map(items) => of(items),
                Value::Bulk(bytes) => bytes.capacity(),
                Value::Error(error) => {
                    size_of::<ErrorReply>() + error.code.capacity() + error.detail.capacity()
                }
                _ => 0,
            }
        }
        let error = [b"-", &[b'\xff'; 1000][..], b"\r\n"].concat();
        for element in
            [&b"_\r\n"[..], b"*0\r\n", b"*1\r\n_\r\n", b"$1\r\na\r\n", b"-E x\r\n", &error]
        {
            for head in ["*9999999\r\n", "%9999999\r\n", ">9999999\r\n"] {
                let mut parser = Parser::new(HANDSHAKE_MAX);
                parser.parse(head.as_bytes()).unwrap();
                let many = HANDSHAKE_MAX / element.len();
                let parsed = (0..many).try_for_each(|_| parser.parse(element).map(drop));
                assert_eq!(parsed, Err(Malformed("a reply is too large")), "{head}{element:?}");
                let items = std::mem::take(&mut parser.open[0].items);
                assert!(memory(&Value::Array(items)) <= HANDSHAKE_MAX, "{head}{element:?}");
            }
        }
    }
}
