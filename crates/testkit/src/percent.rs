//! Any text as one word: percent-encoding of everything but unreserved characters.

pub(crate) fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// `None` if it is not the encoding of a text.
pub(crate) fn decoded(word: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first == b'%' {
            let (digits, tail) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = tail;
        } else {
            bytes.push(first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::{decoded, encoded};

    #[test]
    fn what_was_encoded_is_decoded() {
        for text in ["", "plain-1.0_~", "a b\tc\nd", "50%,{x}", "ä€🔒", "\0"] {
            let word = encoded(text);
            assert!(word.bytes().all(|byte| byte.is_ascii_graphic() && byte != b','), "{word}");
            assert_eq!(decoded(&word).as_deref(), Some(text));
        }
    }

    #[test]
    fn what_is_cut_off_or_no_text_is_not_decoded() {
        for word in ["%", "%4", "a%zz", "%ff"] {
            assert_eq!(decoded(word), None, "{word}");
        }
    }
}
