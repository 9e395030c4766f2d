//! Passwords: out of a file, into a URL, and never onto a screen.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

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

/// Whether a Redis URL has a password, of a server or of the sentinels.
pub(crate) fn has_password(url: &str) -> bool {
    has_server_password(url) || has_parameter(url, SENTINEL_PASSWORD)
}

/// Splits a quorum into the URLs of its members, where one begins: a comma may be part of a password.
fn members(url: &str) -> Option<Vec<&str>> {
    let list = url.strip_prefix(QUORUM)?;
    let begins = |at: usize| {
        let rest = list[at..].trim_start();
        ["redis://", "rediss://", "redis+unix:"].iter().any(|one| rest.starts_with(one))
    };
    let commas = list.match_indices(',').map(|(at, _)| at).filter(|at| begins(at + 1));
    let mut from = 0;
    let mut members = Vec::new();
    for end in commas.chain([list.len()]) {
        members.push(list[from..end].trim());
        from = end + 1;
    }
    Some(members)
}

const QUORUM: &str = "quorum:";

/// Whether independent servers are the store.
pub(crate) fn is_quorum(url: &str) -> bool {
    url.starts_with(QUORUM)
}

/// Whether a password may be put into a URL.
pub(crate) fn takes_password(url: &str) -> bool {
    url.starts_with("redis") || is_quorum(url)
}

/// Does the same to each member of a quorum.
fn to_each(members: &[&str], change: impl Fn(&str) -> String) -> String {
    let changed: Vec<_> = members.iter().map(|url| change(url)).collect();
    format!("{QUORUM}{}", changed.join(","))
}

fn has_server_password(url: &str) -> bool {
    if let Some(members) = members(url) {
        return members.into_iter().any(has_server_password);
    }
    if url.starts_with("redis+unix:") {
        return has_parameter(url, "pass=");
    }
    let Some((_, authority, _)) = parts(url) else { return false };
    authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

const SENTINEL_PASSWORD: &str = "sentinel_password=";

fn has_parameter(url: &str, name: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    url.starts_with("redis") && query.split('&').any(|pair| pair.starts_with(name))
}

/// Splits a Redis URL with hosts into its scheme, what is between `//` and the next `/`, and the rest.
fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let kind = scheme.strip_prefix("rediss").or_else(|| scheme.strip_prefix("redis"))?;
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    matches!(kind, "" | "+sentinel" | "+replicated" | "+cluster")
        .then_some((scheme, authority, tail))
}

/// Whether sentinels lead to the server.
pub(crate) fn has_sentinels(url: &str) -> bool {
    parts(url).is_some_and(|(scheme, ..)| scheme.ends_with("+sentinel"))
}

/// Adds a parameter to a URL.
fn add_parameter(url: &str, name: &str, value: &str) -> String {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let separator = if query.is_empty() { "" } else { "&" };
    format!("{path}?{query}{separator}{name}{}", utf8_percent_encode(value, NON_ALPHANUMERIC))
}

/// Puts the password of the sentinels into their URL if it has none; any other URL stays as it is.
pub(crate) fn add_for_sentinels(url: &str, password: &str) -> String {
    match has_sentinels(url) && !has_parameter(url, SENTINEL_PASSWORD) {
        true => add_parameter(url, SENTINEL_PASSWORD, password),
        false => url.to_owned(),
    }
}

/// Puts the password of the server into a Redis URL that has none, or into each such member of a quorum;
/// any other URL stays as it is.
pub(crate) fn add(url: &str, password: &str) -> String {
    if let Some(members) = members(url) {
        return to_each(&members, |url| add(url, password));
    }
    if has_server_password(url) {
        return url.to_owned();
    }
    if url.starts_with("redis+unix:") {
        return add_parameter(url, "pass=", password);
    }
    let Some((scheme, authority, tail)) = parts(url) else { return url.to_owned() };
    let password = utf8_percent_encode(password, NON_ALPHANUMERIC);
    match authority.rsplit_once('@') {
        Some((user, host)) => format!("{scheme}://{user}:{password}@{host}{tail}"),
        None => format!("{scheme}://:{password}@{authority}{tail}"),
    }
}

/// The URL as it may be shown: without user, password and query. Only what is known to hold none is
/// shown as it is; a scheme that is none of ours may be a mistyped one.
pub(crate) fn shown(url: &str) -> String {
    if let Some(members) = members(url) {
        return to_each(&members, shown);
    }
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if scheme.is_empty() || !scheme.bytes().all(is_plain) {
        return "an invalid URL".to_owned();
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
            ("redis+sentinel://a,b:1/m/2?x=1", "redis+sentinel://:p%40s@a,b:1/m/2?x=1"),
            ("rediss+replicated://ann@a,b", "rediss+replicated://ann:p%40s@a,b"),
            ("rediss+sentinel://:own@a/m", "rediss+sentinel://:own@a/m"),
            ("redis+cluster://a,b:1", "redis+cluster://:p%40s@a,b:1"),
            ("rediss+cluster://ann@a", "rediss+cluster://ann:p%40s@a"),
            ("redis+other://a", "redis+other://a"),
            (
                "quorum:redis://a:1,rediss://ann@b/2,redis://:own@c,redis+unix:/d",
                "quorum:redis://:p%40s@a:1,rediss://ann:p%40s@b/2,redis://:own@c,redis+unix:/d?pass=p%40s",
            ),
            ("quorum:redis://:a,b@c", "quorum:redis://:a,b@c"),
            ("file:/tmp/a@b", "file:/tmp/a@b"),
        ] {
            assert_eq!(add(url, "p@s"), with, "{url}");
        }
    }

    #[test]
    fn sentinels_have_a_password_of_their_own() {
        let plain = "redis+sentinel://:own@a,b/m";
        let with = "redis+sentinel://:own@a,b/m?sentinel_password=p%26s";
        assert_eq!(add_for_sentinels(plain, "p&s"), with);
        assert_eq!(add_for_sentinels(with, "other"), with);
        let user = "rediss+sentinel://a/m?sentinel_user=ann";
        assert_eq!(add_for_sentinels(user, "p"), format!("{user}&sentinel_password=p"));
        for other in
            ["redis://a", "redis+replicated://a,b", "redis+cluster://a", "file:/tmp/+sentinel"]
        {
            assert_eq!(add_for_sentinels(other, "p"), other);
        }
        for (url, has) in [(plain, true), ("redis+sentinel://a/m", false), (user, false)] {
            assert_eq!(has_password(url), has, "{url}");
        }
        assert!(has_password("redis+sentinel://a/m?sentinel_password=p"));
        assert!(has_password("rediss+replicated://ann:p@a,b"));
        assert!(has_password("redis+cluster://:p@a,b") && !has_password("redis+cluster://a,b"));
        let quorum = "quorum:redis://a,redis://ann@b,redis+unix:/c";
        assert!(!has_password(quorum) && has_password(&format!("{quorum},redis://:p@d")));
        assert!(has_password(&format!("{quorum}?pass=p")));
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
            (
                "redis+sentinel://ann:secret@a,b:1/m/2?sentinel_password=secret",
                "redis+sentinel://a,b:1/m/2",
            ),
            ("rediss+sentinel://a/m?sentinel_password=sec@ret", "rediss+sentinel://…"),
            ("redis+replicated://:secret@a,ann:secret@b", "redis+replicated://b"),
            ("rediss+cluster://ann:secret@a,b:1/0", "rediss+cluster://a,b:1/0"),
            (
                "quorum:redis://:sec,ret@a:1,rediss://ann:secret@b/2,redis+unix:/c?pass=secret",
                "quorum:redis://a:1,rediss://b/2,redis+unix:/c",
            ),
            ("quorum:redis://:secret@a, redis://:secret@b", "quorum:redis://a,redis://b"),
            ("quorum:redis://:se,cret://x@a,redis://b", "quorum:redis://a,redis://b"),
            ("quorum:secret", "quorum:an invalid URL"),
            ("secret@host:6379", "an invalid URL"),
            ("valkey://:secret@host", "valkey://host"),
            ("secret", "an invalid URL"),
            ("file:/tmp/a@b?c", "file:/tmp/a@b?c"),
        ] {
            assert_eq!(shown(url), seen, "{url}");
        }
    }
}
