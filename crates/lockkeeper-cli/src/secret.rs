//! Passwords: out of a file, into a URL, and never onto a screen.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::exit::{Code, Failure, say};

/// No password is longer; a file that is no password file is not read to its end.
const MAX: u64 = 64 * 1024;

/// The first line of the file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    if file.metadata().is_ok_and(|data| data.is_file() && data.mode() & 0o004 != 0) {
        say(format_args!(
            "every user of this host can read the password file {shown}: take that right away \
             (chmod o-r)"
        ));
    }
    let mut line = Vec::new();
    let read = BufReader::new(file).take(MAX).read_until(b'\n', &mut line);
    read.map_err(|error| unreadable(path, &error))?;
    while line.last().is_some_and(|last| b"\r\n".contains(last)) {
        line.pop();
    }
    if line.is_empty() {
        return Err(Failure::usage(format!("the password file {shown} begins with an empty line")));
    }
    String::from_utf8(line)
        .map_err(|_| Failure::usage(format!("the password in {shown} is not UTF-8")))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let message = format!("the password file {} cannot be read: {error}", path.display());
    Failure::new(Code::of_io(error), message)
}

/// Whether a Redis URL has a password.
pub(crate) fn has_password(url: &str) -> bool {
    if let Some(rest) = url.strip_prefix("redis+unix:") {
        let query = rest.split_once('?').map_or("", |(_, query)| query);
        return query.split('&').any(|pair| pair.starts_with("pass="));
    }
    let Some(("redis" | "rediss", rest)) = url.split_once("://") else { return false };
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

/// Puts a password into a Redis URL that has none; any other URL stays as it is.
pub(crate) fn add(url: &str, password: &str) -> String {
    if has_password(url) {
        return url.to_owned();
    }
    let password = encoded(password);
    if let Some(rest) = url.strip_prefix("redis+unix:") {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let separator = if query.is_empty() { "" } else { "&" };
        return format!("redis+unix:{path}?{query}{separator}pass={password}");
    }
    let Some((scheme @ ("redis" | "rediss"), rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((user, host)) => format!("{scheme}://{user}:{password}@{host}{tail}"),
        None => format!("{scheme}://:{password}@{authority}{tail}"),
    }
}

/// The URL as it may be shown: without user, password and query. Only what is known to hold none is
/// shown as it is; a scheme that is none of ours may be a mistyped one.
pub(crate) fn shown(url: &str) -> String {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if scheme.is_empty() || !scheme.bytes().all(is_plain) {
        return "what is no URL".to_owned();
    }
    if matches!(scheme, "file" | "memory") {
        return url.to_owned();
    }
    let rest = &url[scheme.len() + 1..];
    let (slashes, rest) = match rest.strip_prefix("//") {
        Some(rest) => ("//", rest),
        None => ("", rest),
    };
    // A password may have anything in it: everything up to the last @ may be part of one. Where none
    // is before the query, there it may be.
    let (before, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let place = match (before.rsplit_once('@'), query.contains('@')) {
        (_, true) => "…",
        (Some((_, place)), false) => place,
        (None, false) => before,
    };
    format!("{scheme}:{slashes}{place}")
}

/// Everything but unreserved characters percent-encoded.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_goes_where_none_is() {
        for (url, with) in [
            ("redis://host", "redis://:p%40s@host"),
            ("redis://host:6380/2", "redis://:p%40s@host:6380/2"),
            ("rediss://ann@host/", "rediss://ann:p%40s@host/"),
            ("redis://ann:own@host", "redis://ann:own@host"),
            ("redis://:own@host", "redis://:own@host"),
            ("redis+unix:///run/r.sock", "redis+unix:///run/r.sock?pass=p%40s"),
            ("redis+unix:///run/r.sock?db=1", "redis+unix:///run/r.sock?db=1&pass=p%40s"),
            ("redis+unix:///run/r.sock?pass=own", "redis+unix:///run/r.sock?pass=own"),
            ("file:/tmp/a@b", "file:/tmp/a@b"),
        ] {
            assert_eq!(add(url, "p@s"), with, "{url}");
        }
    }

    #[test]
    fn no_password_is_shown() {
        for (url, seen) in [
            ("redis://ann:secret@host:1/2?x=secret", "redis://host:1/2"),
            ("redis://:se/cr@et@host", "redis://host"),
            ("redis+unix:///run/r.sock?pass=secret", "redis+unix:///run/r.sock"),
            ("redis+unix:/run/r.sock?pass=secret", "redis+unix:/run/r.sock"),
            ("redis://:se?cr#et@host", "redis://…"),
            ("redis+unix:///run/r.sock?pass=se@cret", "redis+unix://…"),
            ("secret@host:6379", "what is no URL"),
            ("valkey://:secret@host", "valkey://host"),
            ("secret", "what is no URL"),
            ("file:/tmp/a@b?c", "file:/tmp/a@b?c"),
        ] {
            assert_eq!(shown(url), seen, "{url}");
        }
    }
}
