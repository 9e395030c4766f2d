//! Any text as one word: percent-encoding of everything but unreserved characters.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// `None` if it is not the encoding of a text.
pub(crate) fn decoded(word: &str) -> Option<String> {
    Some(percent_decode_str(word).decode_utf8().ok()?.into_owned())
}
