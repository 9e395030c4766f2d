//! The public surface of the library, as rustdoc shows it: one line for each item, method and trait.
//! It is checked in, so that it never grows by accident.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::run::{Outcome, Step, target};

/// Where the listing is kept.
const LISTING: &str = "crates/lockkeeper/api.txt";

/// What makes the pages that it is read from.
pub(crate) const DOC: Step<'_> = Step::new(&[
    "cargo",
    "doc",
    "--no-deps",
    "--all-features",
    "-p",
    "lockkeeper",
    "-p",
    "testkit",
])
.environment(&[("RUSTDOCFLAGS", "-Dwarnings")]);

/// Compares the listing with the pages that are there.
pub(crate) fn compare() -> Outcome {
    let found = listing()?;
    let kept = fs::read_to_string(LISTING).map_err(|error| format!("{LISTING}: {error}"))?;
    if found == kept {
        return Ok(());
    }
    let only = |of: &str, other: &str, sign: &str| -> String {
        let lines = of.lines().filter(|line| !other.lines().any(|known| known == *line));
        lines.map(|line| format!("{sign} {}\n", line.trim())).collect()
    };
    let difference = only(&kept, &found, "-") + &only(&found, &kept, "+");
    Err(format!(
        "the public surface is not the one in {LISTING}; if it is meant, run `cargo xtask api`\n{difference}"
    ))
}

/// Makes the pages, and writes the listing anew.
pub(crate) fn write() -> Outcome {
    DOC.run()?;
    fs::write(LISTING, listing()?).map_err(|error| format!("{LISTING}: {error}"))
}

fn listing() -> Result<String, String> {
    let root = target().join("doc/lockkeeper");
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    // Pages of items that are gone may still lie there.
    let all = read(&root.join("all.html"))?;
    let mut items = BTreeMap::new();
    for link in all.split("<a href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        let (module, page) = match link.rsplit_once('/') {
            None => ("lockkeeper", link),
            Some(("blocking", page)) => ("lockkeeper::blocking", page),
            Some(_) => continue,
        };
        if let [_, item, "html"] = page.split('.').collect::<Vec<_>>()[..] {
            items.insert(format!("{module}::{item}"), item_lines(&read(&root.join(link))?));
        }
    }
    if items.len() < 30 {
        return Err(format!("{} is not the documentation of the library", root.display()));
    }
    let line =
        |(name, lines): (&String, &Vec<String>)| format!("{name}\n  {}\n", lines.join("\n  "));
    Ok(items.iter().map(line).collect())
}

/// The declaration, the methods and the traits of an item.
fn item_lines(page: &str) -> Vec<String> {
    // What every type has is left out: blanket and auto traits.
    let own = page.split("id=\"synthetic-implementations\"").next().unwrap_or(page);
    let own = own.split("id=\"blanket-implementations\"").next().unwrap_or(own);
    let (methods, traits) = own.split_once("id=\"trait-implementations\"").unwrap_or((own, ""));
    // Methods of the type that it derefs to are listed there.
    let methods = methods.split("id=\"deref-methods").next().unwrap_or(methods);
    let declared = between(methods, "<pre class=\"rust item-decl\"><code>", "</code></pre>");
    let methods = between(methods, "<h4 class=\"code-header\">", "</h4>");
    let traits = between(traits, "<h3 class=\"code-header\">", "</h3>");
    let mut traits: Vec<_> = traits.collect();
    traits.sort();
    declared.chain(methods).chain(traits).collect()
}

/// The texts between two marks, without tags and in one line each.
fn between<'a>(text: &'a str, from: &'a str, to: &'a str) -> impl Iterator<Item = String> + 'a {
    text.split(from).skip(1).filter_map(move |rest| rest.split(to).next()).map(plain)
}

fn plain(html: &str) -> String {
    let mut text = String::new();
    for part in html.split('<') {
        text.push_str(part.split_once('>').map_or(part, |(_, after)| after));
    }
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    let text = text.replace("&#39;", "'").replace("&nbsp;", " ").replace("&amp;", "&");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_its_signatures() {
        let page = "<pre class=\"rust item-decl\"><code>pub struct A&lt;T&gt; { <i>/* private */</i> }</code></pre>\
            <section id=\"method.f\"><h4 class=\"code-header\">pub fn <a>f</a>(\n    &amp;self,\n) -&gt; u8</h4>\
            <details><h2 id=\"deref-methods-B\"></h2><h4 class=\"code-header\">pub fn g()</h4></details>\
            <h2 id=\"trait-implementations\"></h2><h3 class=\"code-header\">impl Clone for A</h3>\
            <h2 id=\"blanket-implementations\"></h2><h3 class=\"code-header\">impl Any for A</h3>";
        let lines =
            ["pub struct A<T> { /* private */ }", "pub fn f( &self, ) -> u8", "impl Clone for A"];
        assert_eq!(item_lines(page), lines);
    }
}
