//! `ls`: the locks of a store.
//!
//! A list may not fit into memory, so it is printed page by page. A list of up to [`FIRST`] locks is
//! sorted by name; a longer one is printed in the order of the store, unless `--sort` is given.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

use lockkeeper::{Listing, LockInfo, LockName};

use crate::args::{Global, KindArg, LsArgs, Sort};
use crate::exit::{self, Code, Failure};
use crate::open::open;
use crate::output::{Output, Stop};
use crate::row::{COLUMNS, Row, starts_descending};
use crate::table::Table;
use crate::{display, json};

/// The number of locks that are read before the first is printed.
const FIRST: usize = 1000;

pub(crate) async fn run(global: &Global, args: &LsArgs) -> Result<Code, Failure> {
    let client = open(global).await?;
    let pattern = args.pattern.as_ref().map_or(&b"*"[..], |pattern| pattern.as_bytes());
    let locks = Locks { listing: client.inspector().list(pattern), kinds: &args.kind };
    let order = args.sort.map(|sort| (sort, args.reverse));
    let listed = match args.json {
        true => list(locks, order, Document::new(Output::new(global))).await,
        false => list(locks, order, Rows::new(Output::new(global), pattern, &args.kind)).await,
    };
    match listed {
        Ok(()) => Ok(Code::OK),
        Err(stop) => stop.or(Code::OK),
    }
}

/// A form of output.
trait Print {
    /// Called first, with the locks that follow; `more` may come after them.
    fn begin(&mut self, first: &[LockInfo], more: bool) -> Result<(), Stop>;
    fn lock(&mut self, lock: &LockInfo) -> Result<(), Stop>;
    /// Called after each page.
    fn pause(&mut self) -> Result<(), Stop>;
    fn end(&mut self, complete: bool) -> Result<(), Stop>;
}

/// The locks of the requested kinds, page by page.
struct Locks<'a> {
    listing: Listing,
    /// Empty for all kinds.
    kinds: &'a [KindArg],
}

impl Locks<'_> {
    async fn next(&mut self) -> lockkeeper::Result<Option<Vec<LockInfo>>> {
        let mut page = self.listing.next().await?;
        if let Some(page) = page.as_mut().filter(|_| !self.kinds.is_empty()) {
            page.retain(|lock| self.kinds.iter().any(|kind| kind.is(lock.kind)));
        }
        Ok(page)
    }
}

async fn list(
    mut locks: Locks<'_>,
    order: Option<(Sort, bool)>,
    mut print: impl Print,
) -> Result<(), Stop> {
    let mut first = Vec::new();
    // Sorting needs the whole list.
    let enough = if order.is_some() { usize::MAX } else { FIRST };
    let more = gather(&mut locks, &mut first, enough).await;
    if let (Err(error), true) = (&more, first.is_empty()) {
        return Err(error.clone().into());
    }
    if let Ok(false) = more {
        first.sort_by(|a, b| a.name.cmp(&b.name));
        // A store that grows may return a lock twice.
        first.dedup_by(|a, b| a.name == b.name && a.kind == b.kind);
        if let Some((column, reverse)) = order {
            sort(&mut first, column, reverse);
        }
    }
    print.begin(&first, !matches!(more, Ok(false)))?;
    first.iter().try_for_each(|lock| print.lock(lock))?;
    drop(first);
    let rest = match more {
        Ok(true) => rest(&mut locks, &mut print).await,
        Ok(false) => Ok(()),
        Err(error) => Err(error.into()),
    };
    // Even after an error, the printed document is well-formed.
    let complete = rest.is_ok() && locks.listing.is_complete();
    print.end(complete)?;
    rest?;
    if let [first, ..] = locks.listing.errors() {
        let said: Vec<_> = locks.listing.errors().iter().map(ToString::to_string).collect();
        let message = format!("the list is incomplete: {}", said.join("; "));
        return Err(Failure::new(Code::of(first), message).into());
    }
    if !complete {
        exit::say(
            "the list may be incomplete: a client holds more locks than it announces, or the store omitted some",
        );
    }
    Ok(())
}

/// Sorts by a column. The locks are sorted by name, which stays the order within equal values.
fn sort(locks: &mut [LockInfo], column: Sort, reverse: bool) {
    let now = SystemTime::now();
    let age = |since| now.duration_since(since).unwrap_or_default();
    let key = |lock: &LockInfo| Row::of(lock).key(column, lock.since().map(age));
    match starts_descending(column) != reverse {
        true if column == Sort::Name => locks.reverse(),
        true => locks.sort_by_cached_key(|lock| Reverse(key(lock))),
        false => locks.sort_by_cached_key(key),
    }
}

/// Reads the first rows; returns whether there may be more.
async fn gather(
    locks: &mut Locks<'_>,
    rows: &mut Vec<LockInfo>,
    enough: usize,
) -> lockkeeper::Result<bool> {
    while rows.len() < enough {
        match locks.next().await? {
            Some(page) => rows.extend(page),
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// Prints all further pages.
async fn rest(locks: &mut Locks<'_>, print: &mut impl Print) -> Result<(), Stop> {
    loop {
        print.pause()?;
        match locks.next().await? {
            Some(page) => page.iter().try_for_each(|lock| print.lock(lock))?,
            None => return Ok(()),
        }
    }
}

/// Prints a table.
struct Rows<'a> {
    output: Output,
    pattern: &'a [u8],
    kinds: &'a [KindArg],
    table: Option<Table>,
    now: SystemTime,
    /// The members of a quorum that have not answered, and why.
    silent: BTreeMap<String, String>,
}

impl<'a> Rows<'a> {
    fn new(output: Output, pattern: &'a [u8], kinds: &'a [KindArg]) -> Self {
        let (table, now, silent) = (None, SystemTime::now(), BTreeMap::new());
        Self { output, pattern, kinds, table, now, silent }
    }
}

impl Print for Rows<'_> {
    fn begin(&mut self, first: &[LockInfo], more: bool) -> Result<(), Stop> {
        if first.is_empty() {
            // In a pipe not even a heading: the number of lines tells the number of locks.
            if self.output.terminal {
                let pattern = display::name(&LockName::from(self.pattern));
                let of = if self.kinds.is_empty() { "" } else { " of the given kind" };
                exit::say(format_args!("no lock{of} matches {pattern}"));
            }
            return Ok(());
        }
        self.now = SystemTime::now();
        let rows = first.iter().flat_map(Row::all_of);
        let rows: Vec<_> = rows.map(|row| row.cells(self.now)).collect();
        let table = Table::fit(COLUMNS, rows.iter(), self.output.width, more);
        let heading = table.heading(|style, text| self.output.styled(style, text));
        self.output.line(&heading)?;
        self.table = Some(table);
        Ok(())
    }

    fn lock(&mut self, lock: &LockInfo) -> Result<(), Stop> {
        let Some(table) = &self.table else { return Ok(()) };
        for member in &lock.members {
            if let Some(error) = &member.error {
                self.silent.entry(member.address.clone()).or_insert_with(|| error.clone());
            }
        }
        for row in Row::all_of(lock) {
            let line =
                table.line(&row.cells(self.now), |style, text| self.output.styled(style, text));
            self.output.line(&line)?;
        }
        Ok(())
    }

    fn pause(&mut self) -> Result<(), Stop> {
        self.now = SystemTime::now();
        if self.output.terminal {
            self.output.flush()?;
        }
        Ok(())
    }

    fn end(&mut self, _complete: bool) -> Result<(), Stop> {
        for (address, error) in &self.silent {
            exit::say(format_args!("member {address} of the quorum has not answered: {error}"));
        }
        Ok(self.output.flush()?)
    }
}

/// Prints one JSON document, with a line per lock.
struct Document {
    output: Output,
    now: SystemTime,
    any: bool,
}

impl Document {
    fn new(output: Output) -> Self {
        Self { output, now: SystemTime::now(), any: false }
    }
}

impl Print for Document {
    fn begin(&mut self, _first: &[LockInfo], _more: bool) -> Result<(), Stop> {
        self.now = SystemTime::now();
        Ok(self.output.write_all(b"{\"locks\":[")?)
    }

    fn lock(&mut self, lock: &LockInfo) -> Result<(), Stop> {
        self.output.write_all(if self.any { b",\n" } else { b"\n" })?;
        self.any = true;
        Ok(json::write(&mut self.output, &json::Lock::of(lock, self.now))?)
    }

    fn pause(&mut self) -> Result<(), Stop> {
        self.now = SystemTime::now();
        Ok(())
    }

    fn end(&mut self, complete: bool) -> Result<(), Stop> {
        let newline = if self.any { "\n" } else { "" };
        writeln!(self.output, "{newline}],\"complete\":{complete}}}")?;
        Ok(self.output.flush()?)
    }
}
