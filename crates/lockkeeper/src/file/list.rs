//! What there is in the file: a page of names in their order, read at one moment.

use super::db::{Db, Hitch, Result};
use super::rows::read_record;
use super::time::Moment;
use super::waiters::Who;
use super::wakes::written;
use crate::LockName;
use crate::backend::{Fault, List, LockInfo, Page, Pattern, Select, Topic};
use crate::model::State;

impl Db {
    pub(super) fn list(&mut self, request: &List) -> Result<Page, Fault> {
        self.read(|db, moment| {
            let mut state = State::behind(moment.epoch);
            let clients = db.load_clients(moment.now)?;
            let mut page = Page::default();
            for client in clients.iter().cloned() {
                state.put_client(client, moment.now);
            }
            match &request.select {
                Select::Clients => page.clients = clients,
                Select::Named(name, _) => {
                    state.put(name, db.load(name, Who::All, moment)?);
                    page = state.list(request, moment.now)?;
                }
                Select::Matching(pattern) => {
                    db.list_names(request, pattern, &mut state, moment, &mut page)?;
                }
            }
            for lock in &mut page.locks {
                db.count_waiters(lock, moment)?;
            }
            Ok(page)
        })
    }

    fn list_names(
        &self,
        request: &List,
        pattern: &Pattern,
        state: &mut State,
        moment: Moment,
        page: &mut Page,
    ) -> Result<()> {
        let sql = "SELECT name, boot = ?1, record, permits FROM names
            WHERE name > ?2 ORDER BY name LIMIT ?3";
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query((&self.boot, &request.cursor, request.limit))?;
        let (mut last, mut seen) = (None, 0);
        while let Some(row) = rows.next()? {
            let bytes = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
            (last, seen) = (Some(bytes.to_vec()), seen + 1);
            if !pattern.matches(bytes) {
                continue;
            }
            let name = LockName::from(bytes);
            match read_record(row, moment) {
                Ok(mut record) => {
                    if record.waiters().is_some() {
                        record.put_waiters(&self.load_waiters(&name, Who::All, moment.now)?);
                    }
                    state.put(&name, record);
                    page.locks.extend(state.listed(&name, moment.now));
                    state.take(&name);
                }
                Err(Hitch::Fault(_)) => page.incomplete = true,
                Err(hitch) => return Err(hitch),
            }
        }
        page.next = last.filter(|_| seen == request.limit);
        Ok(())
    }

    /// Counts the listening processes.
    fn count_waiters(&self, lock: &mut LockInfo, moment: Moment) -> Result<()> {
        let topic = Topic::shared_by(&lock.resource()).and_then(|topic| written(&topic));
        if let (Some(topic), None) = (topic, lock.waiting) {
            lock.waiting = Some(self.listeners(&topic, moment.now)?);
        }
        Ok(())
    }
}
