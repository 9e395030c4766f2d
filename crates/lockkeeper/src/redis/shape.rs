//! What the reply to a request can look like. No server sends anything else, so a reply that does not
//! fit belongs to another request.

use super::resp::Value;

/// The form of a reply. An error always fits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Shape {
    /// Of an acquire: nothing or a token if granted; a number or `BUSY` if not, alone or with the
    /// number of listeners.
    Attempt,
    /// Of a release: a number, `KEPT`, nothing, or the holder.
    Released,
    /// Of a force-release: a list, or a word.
    Forced,
    /// One of several words, or a number in digits.
    Word,
    /// A string, or nothing.
    Text,
    Number,
    Status,
    Nothing,
    List,
    /// A list of this length.
    Each(usize),
    /// Fields and values, in either protocol version.
    Pairs,
    /// Any reply: the form is not known well enough.
    Any,
}

impl Shape {
    /// Returns the form for a plain command, only where all servers agree.
    pub(super) fn of_name(name: &[u8]) -> Self {
        match name {
            b"SET" | b"GET" | b"HGET" => Shape::Text,
            b"PTTL" | b"LLEN" | b"EXISTS" | b"DEL" | b"ZREM" => Shape::Number,
            b"PING" | b"TYPE" => Shape::Status,
            b"SCAN" | b"HSCAN" | b"ZRANGE" | b"ZRANGEBYSCORE" | b"TIME" => Shape::List,
            b"HGETALL" => Shape::Pairs,
            _ => Shape::Any,
        }
    }

    /// Whether the reply can belong to such a request.
    pub(super) fn fits(self, reply: &Value) -> bool {
        if matches!(reply, Value::Error(_)) {
            return true;
        }
        match self {
            Shape::Attempt => match reply {
                Value::Nil | Value::Int(_) => true,
                Value::Bulk(token) => token.iter().all(u8::is_ascii_digit),
                Value::Status(word) => word == "BUSY",
                Value::Array(busy) => match busy.as_slice() {
                    [Value::Int(_), Value::Int(_)] => true,
                    [Value::Status(word), Value::Int(_)] => word == "BUSY",
                    _ => false,
                },
                _ => false,
            },
            Shape::Released => match reply {
                Value::Nil | Value::Int(_) | Value::Bulk(_) => true,
                Value::Status(word) => word == "KEPT",
                _ => false,
            },
            Shape::Forced => matches!(reply, Value::Array(_) | Value::Bulk(_)),
            Shape::Word => matches!(reply, Value::Bulk(_)),
            Shape::Text => matches!(reply, Value::Bulk(_) | Value::Nil),
            Shape::Number => matches!(reply, Value::Int(_)),
            Shape::Status => matches!(reply, Value::Status(word) if word != "OK"),
            Shape::Nothing => matches!(reply, Value::Nil),
            Shape::List => matches!(reply, Value::Array(_)),
            Shape::Each(count) => matches!(reply, Value::Array(all) if all.len() == count),
            Shape::Pairs => matches!(reply, Value::Map(_) | Value::Array(_)),
            Shape::Any => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::command::Command;
    use crate::redis::script;

    #[test]
    fn a_reply_fits_the_requests_that_can_have_it() {
        let token = Value::Bulk(b"17".to_vec());
        let owner = Value::Bulk(b"6e0c:17".to_vec());
        let list = Value::Array(vec![Value::Int(-2)]);
        assert!(Shape::Attempt.fits(&token) && !Shape::Attempt.fits(&owner));
        let crowded = Value::Array(vec![Value::Status("BUSY".to_owned()), Value::Int(3)]);
        assert!(Shape::Attempt.fits(&crowded) && !Shape::Attempt.fits(&list));
        assert!(Shape::Released.fits(&owner) && !Shape::Released.fits(&list));
        assert!(Shape::Each(1).fits(&list) && !Shape::Each(2).fits(&list));
        assert!(
            !Shape::Status.fits(&Value::Status("OK".to_owned()))
                && !Shape::Nothing.fits(&Value::Int(0))
        );
        assert_eq!(Command::plain("GET").shape(), Shape::Text);
        assert_eq!(script::LOCK_RENEW.call(1).shape(), Shape::List);
    }
}
