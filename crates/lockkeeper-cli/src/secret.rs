//! Passwords: out of a file, and never onto a screen.

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

/// Whether the URL of a server, of sentinels or of a quorum's members has a password.
pub(crate) fn has_password(url: &str) -> bool {
    let mut logins = url.split("://").skip(1).filter_map(|rest| rest.rsplit_once('@'));
    let is_redis = url.starts_with("redis") || url.starts_with("quorum:");
    is_redis
        && (logins.any(|(login, _)| login.contains(':'))
            || ["?pass=", "&pass=", "sentinel_password="].iter().any(|name| url.contains(name)))
}

/// The URL as it may be shown: without user, password and query. Only what is known to hold none is
/// shown as it is; a scheme that is none of ours may be a mistyped one.
pub(crate) fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    match scheme {
        "file" | "memory" => return url.to_owned(),
        // Each member may have a login and a query, and a password may look like the next member.
        "quorum" if rest.contains(['@', '?', '#']) => return "quorum:…".to_owned(),
        "" => return "an invalid URL".to_owned(),
        _ if !scheme.bytes().all(is_plain) => return "an invalid URL".to_owned(),
        _ => {}
    }
    let slashes = if rest.starts_with("//") { "//" } else { "" };
    let rest = &rest[slashes.len()..];
    // A password may have anything in it: everything up to the last @ may be part of one. Where none
    // is before the query, there it may be.
    let (before, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let place =
        if query.contains('@') { "…" } else { before.rsplit('@').next().unwrap_or("…") };
    format!("{scheme}:{slashes}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_found() {
        for (url, has) in [
            ("redis://host:1/2", false),
            ("redis://ann@host:1", false),
            ("redis://ann:p@host", true),
            ("redis://:p/w@host", true),
            ("redis+unix:///run/r.sock?db=1", false),
            ("redis+unix:///run/r.sock?db=1&pass=p", true),
            ("redis+sentinel://:own@a,b/m", true),
            ("redis+sentinel://a/m?sentinel_user=ann", false),
            ("redis+sentinel://a/m?sentinel_password=p", true),
            ("rediss+replicated://ann:p@a,b", true),
            ("redis+cluster://a:1,b:2", false),
            ("quorum:redis://a:1,redis://ann@b,redis+unix:/c", false),
            ("quorum:redis://a,redis://b,redis://:p@c", true),
            ("quorum:redis://a,redis+unix:/c?pass=p", true),
            ("quorum:redis://:a,b@c", true),
            ("file:/tmp/a:b@c", false),
        ] {
            assert_eq!(has_password(url), has, "{url}");
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
            (
                "redis+sentinel://ann:secret@a,b:1/m/2?sentinel_password=secret",
                "redis+sentinel://a,b:1/m/2",
            ),
            ("rediss+sentinel://a/m?sentinel_password=sec@ret", "rediss+sentinel://…"),
            ("redis+replicated://:secret@a,ann:secret@b", "redis+replicated://b"),
            ("rediss+cluster://ann:secret@a,b:1/0", "rediss+cluster://a,b:1/0"),
            ("quorum:redis://a:1,redis://b/2", "quorum:redis://a:1,redis://b/2"),
            ("quorum:redis://:se,cret://x@a,redis://b", "quorum:…"),
            ("quorum:redis://a,redis+unix:/c?pass=secret", "quorum:…"),
            ("secret@host:6379", "an invalid URL"),
            ("valkey://:secret@host", "valkey://host"),
            ("secret", "an invalid URL"),
            ("file:/tmp/a@b?c", "file:/tmp/a@b?c"),
        ] {
            assert_eq!(shown(url), seen, "{url}");
        }
    }
}
