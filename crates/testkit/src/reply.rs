//! Replies of the Redis protocol (RESP2).

/// What the server answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reply {
    /// The null bulk string or the null array.
    Nil,
    /// An integer.
    Int(i64),
    /// A simple string such as `OK`.
    Status(String),
    /// A bulk string.
    Bulk(Vec<u8>),
    /// An array.
    Array(Vec<Reply>),
    /// An error, with its code word.
    Error(String),
}

impl Reply {
    /// The integer, also where the server gave it as text.
    ///
    /// # Panics
    ///
    /// If it is not one.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(value) => *value,
            Self::Bulk(_) | Self::Status(_) => {
                self.text().parse().unwrap_or_else(|_| panic!("expected an integer, got {self:?}"))
            }
            _ => panic!("expected an integer, got {self:?}"),
        }
    }

    /// The string.
    ///
    /// # Panics
    ///
    /// If it is not a string, or not UTF-8.
    #[track_caller]
    pub fn text(&self) -> &str {
        match self {
            Self::Status(text) => text,
            Self::Bulk(bytes) => std::str::from_utf8(bytes)
                .unwrap_or_else(|_| panic!("expected UTF-8, got {bytes:?}")),
            _ => panic!("expected a string, got {self:?}"),
        }
    }

    /// The elements.
    ///
    /// # Panics
    ///
    /// If it is not an array.
    #[track_caller]
    pub fn array(&self) -> &[Reply] {
        match self {
            Self::Array(items) => items,
            _ => panic!("expected an array, got {self:?}"),
        }
    }

    /// The error's text.
    ///
    /// # Panics
    ///
    /// If it is not an error.
    #[track_caller]
    pub fn error(&self) -> &str {
        match self {
            Self::Error(text) => text,
            _ => panic!("expected an error, got {self:?}"),
        }
    }

    /// Whether there was nothing.
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// Itself, unless it is an error.
    ///
    /// # Panics
    ///
    /// If it is an error.
    #[track_caller]
    pub fn ok(self) -> Self {
        match self {
            Self::Error(text) => panic!("the server answered {text}"),
            reply => reply,
        }
    }

    /// The first reply in `bytes` and its length; `None` while it is incomplete.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let line = std::str::from_utf8(&bytes[1..end]).expect("a header line is text");
        let body = end + 2;
        match bytes[0] {
            b'+' => Some((Self::Status(line.to_owned()), body)),
            b'-' => Some((Self::Error(line.to_owned()), body)),
            b':' => Some((Self::Int(number(line)), body)),
            b'$' => parse_bulk(bytes, body, number(line)),
            b'*' => parse_array(bytes, body, number(line)),
            kind => panic!("not a RESP2 reply: starts with {:?}", char::from(kind)),
        }
    }
}

fn parse_bulk(bytes: &[u8], body: usize, length: i64) -> Option<(Reply, usize)> {
    let Ok(length) = usize::try_from(length) else {
        return Some((Reply::Nil, body));
    };
    let end = body + length;
    (bytes.len() >= end + 2).then(|| (Reply::Bulk(bytes[body..end].to_vec()), end + 2))
}

fn parse_array(bytes: &[u8], body: usize, count: i64) -> Option<(Reply, usize)> {
    let Ok(count) = usize::try_from(count) else {
        return Some((Reply::Nil, body));
    };
    let mut items = Vec::with_capacity(count);
    let mut position = body;
    for _ in 0..count {
        let (item, length) = Reply::parse(&bytes[position..])?;
        items.push(item);
        position += length;
    }
    Some((Reply::Array(items), position))
}

fn number(line: &str) -> i64 {
    line.parse().unwrap_or_else(|_| panic!("not a number in a RESP2 header: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::Reply;

    #[test]
    fn every_kind_is_parsed_and_no_prefix_is_mistaken_for_a_reply() {
        let wire = b"*6\r\n:-7\r\n+OK\r\n$4\r\na\r\nb\r\n$-1\r\n-ERR no\r\n*0\r\n";
        let expected = Reply::Array(vec![
            Reply::Int(-7),
            Reply::Status("OK".to_owned()),
            Reply::Bulk(b"a\r\nb".to_vec()),
            Reply::Nil,
            Reply::Error("ERR no".to_owned()),
            Reply::Array(vec![]),
        ]);
        assert_eq!(Reply::parse(wire), Some((expected, wire.len())));
        for end in 0..wire.len() {
            assert_eq!(Reply::parse(&wire[..end]), None, "{end} bytes");
        }
    }
}
