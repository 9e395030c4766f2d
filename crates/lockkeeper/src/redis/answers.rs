//! The meaning of replies that several requests share.

use super::resp::Value;

use super::error_reply::ErrorReply;
use crate::backend::{Attempt, Fault, Kind, Renewed, Ttl};
use crate::name::Brief;

/// Returns the TTL of a held lock and the remaining values; `None` if it is free.
pub(super) fn standing(answer: Value) -> Result<Option<(Ttl, std::vec::IntoIter<Value>)>, Fault> {
    let Value::Array(values) = answer else {
        return Err(unexpected(&answer));
    };
    let mut values = values.into_iter();
    match values.next() {
        Some(Value::Int(-2)) | None => Ok(None),
        Some(Value::Int(left)) => Ok(Some((ttl(left), values))),
        Some(other) => Err(unexpected(&other)),
    }
}

pub(super) fn attempt(value: Value) -> Result<Attempt, Fault> {
    match value {
        Value::Nil => Ok(Attempt::GRANTED),
        Value::Bulk(token) => {
            let number = String::from_utf8_lossy(&token).parse();
            let not_one =
                |_| Fault::Server { detail: format!("not a token: {}", Brief(&token)).into() };
            number.map(|token| Attempt::Granted { token: Some(token) }).map_err(not_one)
        }
        Value::Int(-3) => Ok(Attempt::Gone),
        Value::Int(left) => Ok(Attempt::busy(Some(ttl(left)))),
        // The time for which permits are busy may be unknown.
        Value::Status(word) if word == "BUSY" => Ok(Attempt::busy(None)),
        Value::Array(parts) => {
            let ttl = match parts.first() {
                Some(Value::Int(left)) => Some(ttl(*left)),
                Some(Value::Status(word)) if word == "BUSY" => None,
                _ => return Err(unexpected(&Value::Array(parts))),
            };
            Ok(Attempt::Busy { ttl, listeners: listeners(&parts) })
        }
        other => Err(unexpected(&other)),
    }
}

/// Returns the number of listeners, the second part of a busy answer.
pub(super) fn listeners(parts: &[Value]) -> u64 {
    parts.get(1).map_or(0, number)
}

/// Whether the answer to one entry of a batch says that the server is a replica.
pub(super) fn is_of_replica(value: &Value) -> bool {
    let Value::Bulk(error) = value else { return false };
    ErrorReply::parse(&String::from_utf8_lossy(error)).is_of_replica()
}

pub(super) fn renewed(value: Value) -> Result<Renewed, Fault> {
    match value {
        Value::Int(-2) => Ok(Renewed::Gone),
        Value::Int(-3) => Ok(Renewed::Taken),
        Value::Int(-4) => Ok(Renewed::Waiting),
        Value::Int(-5) => Ok(Renewed::Due),
        Value::Int(left) => Ok(Renewed::Held(ttl(left))),
        Value::Bulk(error) => Err(ErrorReply::parse(&String::from_utf8_lossy(&error)).meaning()),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn ttl(left: i64) -> Ttl {
    u64::try_from(left).map_or(Ttl::Forever, Ttl::millis)
}

pub(super) fn number(value: &Value) -> u64 {
    match value {
        Value::Int(number) => number.unsigned_abs(),
        Value::Bulk(text) => String::from_utf8_lossy(text).parse().unwrap_or(0),
        _ => 0,
    }
}

pub(super) fn bulk(value: Value) -> Result<Vec<u8>, Fault> {
    match value {
        Value::Bulk(bytes) => Ok(bytes),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn strings(value: Value) -> Result<Vec<Vec<u8>>, Fault> {
    match value {
        Value::Array(values) | Value::Map(values) => values.into_iter().map(bulk).collect(),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn unfit(kind: Kind) -> Fault {
    Fault::Invalid { detail: format!("a {kind} has no such request").into() }
}

pub(super) fn unexpected(value: &Value) -> Fault {
    let shown = format!("{value:?}");
    Fault::Server { detail: format!("unexpected answer: {}", Brief(shown.as_bytes())).into() }
}
