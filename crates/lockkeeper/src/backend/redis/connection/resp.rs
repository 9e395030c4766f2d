//! The parser of replies, RESP3 and RESP2.
//!
//! **An own parser** for the driver's type of values. The driver's rejects an error message that quotes a
//! key which is not UTF-8, with which the connection would be lost, and has no limit for a reply. The
//! tests below compare the two.
//!
//! **Input arrives in pieces.** What is complete is consumed at once, also the elements of a list that
//! is not, so that no byte is parsed twice, however a reply is split. A length that the server announces
//! reserves no memory before the bytes arrive.
//!
//! **No repair.** Anything that is not a reply is an error, and after an error the position in the
//! stream is unknown: the connection must be given up.

use redis::{PushKind, Value, VerbatimFormat};

/// The longest line: of a status, an error or a number.
const LINE_MAX: usize = 64 * 1024;

/// The deepest nesting. Our replies have at most three levels.
const DEPTH_MAX: usize = 32;

/// The largest reply, in bytes of memory. The server may send a whole value of another program, of up to
/// 512 MiB. A smaller limit would end the connection again and again for a key that is merely not a lock.
pub(super) const REPLY_MAX: usize = 640 * 1024 * 1024;

/// The same until the server is known.
pub(super) const HANDSHAKE_MAX: usize = 1024 * 1024;

/// What an element costs in memory beside its bytes: three bytes may be a value. Its list may have grown to
/// twice its length, and be copied once it is complete, or the value allocates a little of its own.
const ELEMENT: usize = 3 * size_of::<Value>();

/// The room that is reserved for the elements of a list of unknown honesty.
const RESERVED_MAX: usize = 256;

/// The bytes are not a reply: where they stopped to be one is unknown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Malformed(pub(super) &'static str);

/// Parses a stream of replies.
#[derive(Debug)]
pub(super) struct Parser {
    /// Lists whose elements have not all arrived, the outermost first.
    open: Vec<Open>,
    /// What the current reply costs in memory so far, and may cost.
    size: usize,
    pub(super) limit: usize,
}

#[derive(Debug)]
struct Open {
    form: Form,
    missing: usize,
    items: Vec<Value>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Form {
    Array,
    Map,
    Set,
    Push,
    /// Data about the value that follows. It is dropped.
    Attribute,
}

enum Token {
    Value(Value),
    /// A list of this many elements follows.
    List(Form, usize),
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
            self.size += length + ELEMENT;
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
    fn open(&mut self, form: Form, count: usize) -> Result<Option<Value>, Malformed> {
        if self.open.len() >= DEPTH_MAX {
            return Err(Malformed("a reply is nested too deeply"));
        }
        if form == Form::Push && !self.open.is_empty() {
            return Err(Malformed("a push message inside of a reply"));
        }
        match (form, count) {
            (Form::Attribute, 0) => Ok(None),
            (form, 0) => finish(form, Vec::new()).map(Some),
            (form, missing) => {
                let items = Vec::with_capacity(missing.min(RESERVED_MAX));
                self.open.push(Open { form, missing, items });
                Ok(None)
            }
        }
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
            if form == Form::Attribute {
                return Ok(None);
            }
            value = finish(form, items)?;
        }
        Ok(Some(value))
    }
}

fn finish(form: Form, items: Vec<Value>) -> Result<Value, Malformed> {
    Ok(match form {
        Form::Array | Form::Attribute => Value::Array(items),
        Form::Set => Value::Set(items),
        Form::Map => {
            let mut pairs = Vec::with_capacity(items.len() / 2);
            let mut items = items.into_iter();
            while let (Some(key), Some(value)) = (items.next(), items.next()) {
                pairs.push((key, value));
            }
            Value::Map(pairs)
        }
        Form::Push => {
            let mut items = items.into_iter();
            let kind = match items.next() {
                Some(Value::BulkString(kind)) => push_kind(&kind),
                Some(Value::SimpleString(kind)) => push_kind(kind.as_bytes()),
                _ => return Err(Malformed("a push message without a kind")),
            };
            Value::Push { kind, data: items.collect() }
        }
    })
}

/// Returns the kind of a push message, or of a message in RESP2.
pub(super) fn push_kind(kind: &[u8]) -> PushKind {
    match kind {
        b"message" => PushKind::Message,
        b"smessage" => PushKind::SMessage,
        b"pmessage" => PushKind::PMessage,
        b"subscribe" => PushKind::Subscribe,
        b"ssubscribe" => PushKind::SSubscribe,
        b"psubscribe" => PushKind::PSubscribe,
        b"unsubscribe" => PushKind::Unsubscribe,
        b"sunsubscribe" => PushKind::SUnsubscribe,
        b"punsubscribe" => PushKind::PUnsubscribe,
        b"invalidate" => PushKind::Invalidate,
        other => PushKind::Other(String::from_utf8_lossy(other).into_owned()),
    }
}

/// Parses one scalar, or the head of one list. Returns `None` if it is not complete.
fn token(input: &[u8]) -> Result<Option<(usize, Token)>, Malformed> {
    let Some((&kind, rest)) = input.split_first() else { return Ok(None) };
    // Compiled to one test of a bit.
    if !matches!(kind, b':' | b'$' | b'*' | b'+' | b'-' | b'_' | b',' | b'#' | b'(')
        && !matches!(kind, b'=' | b'!' | b'%' | b'~' | b'>' | b'|')
    {
        return Err(Malformed("a reply of an unknown type"));
    }
    let Some(line) = line(rest)? else { return Ok(None) };
    // The type, the line, and its end.
    let head = 1 + line.len() + 2;
    let value = match kind {
        b':' => Value::Int(integer(line)?),
        b'+' if line == b"OK" => Value::Okay,
        b'+' => Value::SimpleString(text(line)?),
        b'-' => error(line)?,
        b'_' if line.is_empty() => Value::Nil,
        b'_' => return Err(Malformed("not a null")),
        b',' => {
            let number = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok());
            Value::Double(number.ok_or(Malformed("not a number"))?)
        }
        b'#' => match line {
            b"t" => Value::Boolean(true),
            b"f" => Value::Boolean(false),
            _ => return Err(Malformed("not a boolean")),
        },
        // As text: the driver's type of such a number depends on its features, and another crate of the
        // application may enable them.
        b'(' if is_big_number(line) => Value::SimpleString(text(line)?),
        b'(' => return Err(Malformed("not a number")),
        b'$' | b'=' | b'!' => {
            let length = integer(line)?;
            if length == -1 && kind == b'$' {
                return Ok(Some((head, Token::Value(Value::Nil))));
            }
            let length = size(length)?;
            let Some(bytes) = input.get(head..head + length + 2) else { return Ok(None) };
            let Some(bytes) = bytes.strip_suffix(b"\r\n") else {
                return Err(Malformed("a string does not end where it should"));
            };
            let value = match kind {
                b'$' => Value::BulkString(bytes.to_vec()),
                b'=' => verbatim(bytes)?,
                _ => error(bytes)?,
            };
            return Ok(Some((head + length + 2, Token::Value(value))));
        }
        _ => {
            let count = integer(line)?;
            let form = match kind {
                b'*' if count == -1 => return Ok(Some((head, Token::Value(Value::Nil)))),
                b'*' => Form::Array,
                b'~' => Form::Set,
                b'%' => Form::Map,
                b'>' => Form::Push,
                _ => Form::Attribute,
            };
            let factor = if matches!(form, Form::Map | Form::Attribute) { 2 } else { 1 };
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

fn is_big_number(line: &[u8]) -> bool {
    let digits = line.strip_prefix(b"-").unwrap_or(line);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

fn text(line: &[u8]) -> Result<String, Malformed> {
    let text = std::str::from_utf8(line).map_err(|_| Malformed("a status is not UTF-8"))?;
    Ok(text.to_owned())
}

/// An error may quote the name of a key, which need not be UTF-8.
fn error(text: &[u8]) -> Result<Value, Malformed> {
    let text = String::from_utf8_lossy(text).replace(['\r', '\n'], " ");
    // Only the driver can create its type of errors.
    let line = format!("-{text}\r\n");
    redis::parse_redis_value(line.as_bytes()).map_err(|_| Malformed("not an error"))
}

fn verbatim(bytes: &[u8]) -> Result<Value, Malformed> {
    let Some((format, [b':', text @ ..])) = bytes.split_at_checked(3) else {
        return Err(Malformed("not a verbatim string"));
    };
    let format = match format {
        b"txt" => VerbatimFormat::Text,
        b"mkd" => VerbatimFormat::Markdown,
        other => VerbatimFormat::Unknown(String::from_utf8_lossy(other).into_owned()),
    };
    Ok(Value::VerbatimString { format, text: String::from_utf8_lossy(text).into_owned() })
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

    fn encode(value: &Value, out: &mut Vec<u8>) {
        let line = |out: &mut Vec<u8>, kind: char, text: &str| {
            out.extend_from_slice(format!("{kind}{text}\r\n").as_bytes());
        };
        match value {
            Value::Nil => line(out, '_', ""),
            Value::Int(number) => line(out, ':', &number.to_string()),
            Value::Okay => line(out, '+', "OK"),
            Value::SimpleString(text) => line(out, '+', text),
            Value::Double(number) => line(out, ',', &number.to_string()),
            Value::Boolean(yes) => line(out, '#', if *yes { "t" } else { "f" }),
            Value::ServerError(error) => {
                let detail = error.details().map(|detail| format!(" {detail}"));
                line(out, '-', &format!("{}{}", error.code(), detail.unwrap_or_default()));
            }
            Value::BulkString(bytes) => {
                line(out, '$', &bytes.len().to_string());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Value::VerbatimString { text, .. } => {
                line(out, '=', &(text.len() + 4).to_string());
                out.extend_from_slice(format!("txt:{text}\r\n").as_bytes());
            }
            Value::Array(items) => {
                line(out, '*', &items.len().to_string());
                items.iter().for_each(|item| encode(item, out));
            }
            Value::Set(items) => {
                line(out, '~', &items.len().to_string());
                items.iter().for_each(|item| encode(item, out));
            }
            Value::Map(pairs) => {
                line(out, '%', &pairs.len().to_string());
                pairs.iter().for_each(|(key, value)| {
                    encode(key, out);
                    encode(value, out);
                });
            }
            Value::Push { data, .. } => {
                line(out, '>', &(data.len() + 1).to_string());
                encode(&Value::BulkString(b"message".to_vec()), out);
                data.iter().for_each(|item| encode(item, out));
            }
            other => panic!("not generated: {other:?}"),
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let word = "[A-Za-z0-9 :{}]{0,12}";
        let scalar = prop_oneof![
            Just(Value::Nil),
            Just(Value::Okay),
            any::<i64>().prop_map(Value::Int),
            any::<bool>().prop_map(Value::Boolean),
            (-1e9..1e9).prop_map(Value::Double),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
            word.prop_filter("OK is its own value", |word| word != "OK")
                .prop_map(Value::SimpleString),
            word.prop_map(|text| Value::VerbatimString { format: VerbatimFormat::Text, text }),
            "[A-Z]{1,8} [a-z ]{1,20}".prop_map(|line| error(line.as_bytes()).unwrap()),
        ];
        let nested = scalar.prop_recursive(4, 40, 6, |item| {
            prop_oneof![
                prop::collection::vec(item.clone(), 0..6).prop_map(Value::Array),
                prop::collection::vec(item.clone(), 0..6).prop_map(Value::Set),
                prop::collection::vec((item.clone(), item), 0..4).prop_map(Value::Map),
            ]
        });
        let data = prop::collection::vec(nested.clone(), 0..3);
        prop_oneof![
            8 => nested,
            1 => data.prop_map(|data| Value::Push { kind: PushKind::Message, data }),
        ]
    }

    proptest! {
        #[test]
        fn any_split_of_a_stream_gives_the_same_replies(
            sent in prop::collection::vec(values(), 0..8),
            cuts in prop::collection::vec(any::<usize>(), 0..12),
        ) {
            let mut stream = Vec::new();
            sent.iter().for_each(|value| encode(value, &mut stream));
            prop_assert_eq!(parse_pieces(&stream, &cuts).unwrap(), sent.clone());
            let each: Vec<_> = (0..stream.len()).collect();
            prop_assert_eq!(parse_pieces(&stream, &each).unwrap(), sent);
        }

        #[test]
        fn a_reply_means_what_it_means_to_the_driver(value in values()) {
            let mut stream = Vec::new();
            encode(&value, &mut stream);
            let theirs = redis::parse_redis_value(&stream).unwrap();
            prop_assert_eq!(parse_pieces(&stream, &[]).unwrap(), vec![theirs]);
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

        /// A broken byte is an error, a value of another kind, or a wait for more; the replies that
        /// were complete before it are the same.
        #[test]
        fn a_broken_byte_changes_no_reply_before_it(
            sent in prop::collection::vec(values(), 1..6),
            at in any::<usize>(),
            byte in any::<u8>(),
        ) {
            let (mut stream, mut ends) = (Vec::new(), Vec::new());
            for value in &sent {
                encode(value, &mut stream);
                ends.push(stream.len());
            }
            let at = at % stream.len();
            stream[at] = byte;
            let before = ends.iter().filter(|end| **end <= at).count();
            let (mut parser, mut from) = (Parser::new(REPLY_MAX), 0);
            for value in &sent[..before] {
                let (consumed, reply) = parser.parse(&stream[from..]).unwrap();
                from += consumed;
                prop_assert_eq!(reply.as_ref(), Some(value));
            }
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
            b"#x\r\n",
            b"_x\r\n",
            b",x\r\n",
            b"(1x\r\n",
            b"=2\r\nab\r\n",
        ] {
            rejected(stream);
        }
        assert_eq!(rejected(&b"*1\r\n".repeat(DEPTH_MAX + 1)), "a reply is nested too deeply");
        assert_eq!(rejected(&[&b"+"[..], &[b'x'; LINE_MAX]].concat()), "a line is too long");
        assert_eq!(rejected(b"$9999999999\r\n"), "a reply is too large");
    }

    #[test]
    fn old_forms_of_nothing_are_nothing() {
        assert_eq!(parse_pieces(b"$-1\r\n*-1\r\n", &[]).unwrap(), [Value::Nil, Value::Nil]);
        assert_eq!(parse_pieces(b":+5\r\n", &[]).unwrap(), [Value::Int(5)]);
        let least = format!(":{}\r\n", i64::MIN);
        assert_eq!(parse_pieces(least.as_bytes(), &[]).unwrap(), [Value::Int(i64::MIN)]);
    }

    #[test]
    fn a_big_number_is_its_digits() {
        let digits = "-123456789012345678901234567890";
        let stream = format!("({digits}\r\n");
        let number = Value::SimpleString(digits.to_owned());
        assert_eq!(parse_pieces(stream.as_bytes(), &[]).unwrap(), [number]);
    }

    #[test]
    fn data_about_a_value_is_dropped() {
        let stream = b"|1\r\n+ttl\r\n:3\r\n*2\r\n:1\r\n|0\r\n:2\r\n";
        let list = Value::Array(vec![Value::Int(1), Value::Int(2)]);
        assert_eq!(parse_pieces(stream, &[]).unwrap(), [list]);
    }

    #[test]
    fn an_error_may_quote_any_bytes() {
        let replies = parse_pieces(b"-ERR no key \xff\r\n!7\r\nERR a\r\n\r\n", &[]).unwrap();
        let [Value::ServerError(line), Value::ServerError(blob)] = &replies[..] else {
            panic!("{replies:?}");
        };
        assert_eq!(line.details(), Some("no key \u{fffd}"));
        assert_eq!(blob.details(), Some("a  "));
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
                Value::Array(items) => of(items),
                Value::BulkString(bytes) => bytes.capacity(),
                _ => 0,
            }
        }
        for element in ["_\r\n", "*0\r\n", "*1\r\n_\r\n", "$1\r\na\r\n", "-E x\r\n"] {
            for head in ["*9999999\r\n", "%9999999\r\n", ">9999999\r\n"] {
                let mut parser = Parser::new(HANDSHAKE_MAX);
                parser.parse(head.as_bytes()).unwrap();
                let many = HANDSHAKE_MAX / element.len();
                let parsed = (0..many).try_for_each(|_| parser.parse(element.as_bytes()).map(drop));
                assert_eq!(parsed, Err(Malformed("a reply is too large")), "{head}{element}");
                let items = std::mem::take(&mut parser.open[0].items);
                assert!(memory(&Value::Array(items)) <= HANDSHAKE_MAX, "{head}{element}");
            }
        }
    }
}
