//! Checks of a quorum: those of each member, and what endangers votes.

use std::time::Duration;

use futures_util::future::join_all;

use super::QuorumInner;
use crate::backend::{Backend, Fault, Finding};
use crate::redis::member::Trust;

/// Clocks that are further apart end leases at different times, and change the order of tokens.
const CLOCKS_APART: i64 = 1000;

/// How long the resolution of a host name may take.
const RESOLVED_WITHIN: Duration = Duration::from_secs(1);

impl QuorumInner {
    pub(super) async fn check(&self) -> Result<Vec<Finding>, Fault> {
        let mut findings = self.trust();
        findings.extend(self.hosts().await);
        findings.push(self.clocks().await);
        let checks = self.members.iter().map(Backend::check);
        for (member, checked) in self.members.iter().zip(join_all(checks).await) {
            let address = member.membership().address();
            // A member that is down is among the findings above.
            let found = checked.unwrap_or_default().into_iter();
            findings.extend(found.map(|finding| Finding {
                detail: format!("{address}: {}", finding.detail),
                ..finding
            }));
        }
        Ok(findings)
    }

    /// Which members vote.
    fn trust(&self) -> Vec<Finding> {
        let (mut voters, mut findings) = (0_usize, Vec::new());
        let mut remedy = "wait until enough members vote";
        for member in &self.members {
            let address = member.membership().address();
            let trust = member.membership().trust();
            if !matches!(trust, Trust::Trusted | Trust::Quarantined(_)) {
                remedy = "restore the others";
            }
            match trust {
                Trust::Trusted => voters += 1,
                Trust::Quarantined(left) => {
                    let left = left.as_secs_f64();
                    let detail = format!(
                        "{address} may have lost data (restarted, flushed or new), and grants nothing for \
                         another {left:.1} s"
                    );
                    findings.push(Finding::note("members", detail, "wait; do not restart it"));
                }
                Trust::Down(fault) => findings.push(Finding::danger(
                    "members",
                    self.said(member.membership().index, &fault),
                    "restore it",
                )),
                Trust::Unknown => {
                    let detail = format!("{address} has not answered yet");
                    findings.push(Finding::danger("members", detail, "restore it"));
                }
                Trust::Refused(fault) => findings.push(Finding::danger(
                    "members",
                    self.said(member.membership().index, &fault),
                    "give all clients the same list of members and the same longest lease",
                )),
            }
        }
        let (all, majority) = (self.members.len(), self.majority);
        let detail = format!("{voters} of {all} members vote, and {majority} must agree");
        findings.insert(
            0,
            match voters.checked_sub(majority) {
                None => Finding::danger("quorum", detail + ": no lock is granted", remedy),
                Some(0) => {
                    let means = ": one more that fails stops all locks";
                    Finding::note("quorum", detail + means, remedy)
                }
                Some(spare) => Finding::fine("quorum", format!("{detail}: {spare} may fail")),
            },
        );
        findings
    }

    /// Members that fail together.
    async fn hosts(&self) -> Vec<Finding> {
        let addresses = self.members.iter().map(async |member| {
            // A Unix socket is on this host.
            let host = member.host().unwrap_or_else(|| "localhost".to_owned());
            let found = tokio::net::lookup_host((host.as_str(), 0));
            let found = tokio::time::timeout(RESOLVED_WITHIN, found).await.ok()?.ok()?;
            Some(found.map(|address| address.ip()).collect::<Vec<_>>())
        });
        let addresses = join_all(addresses).await;
        let mut findings = Vec::new();
        for (index, one) in addresses.iter().enumerate() {
            let is_same = |other: &&Option<Vec<_>>| match (one, other) {
                (Some(one), Some(other)) => one.iter().any(|address| other.contains(address)),
                _ => false,
            };
            if let Some(other) = addresses[..index].iter().position(|other| is_same(&other)) {
                let address = |index: usize| self.members[index].membership().address();
                let detail = format!(
                    "{} and {} are on one host, and fail together: the quorum is no safer than with one \
                     of them",
                    address(other),
                    address(index)
                );
                findings.push(Finding::danger(
                    "hosts",
                    detail,
                    "put each member on a host of its own",
                ));
            }
        }
        findings
    }

    async fn clocks(&self) -> Finding {
        let clocks = join_all(self.members.iter().map(|member| member.clock_ahead())).await;
        let ahead: Vec<_> = clocks.into_iter().filter_map(Result::ok).collect();
        let apart = ahead.iter().max().zip(ahead.iter().min()).map_or(0, |(max, min)| max - min);
        let detail = format!("those of the members are {apart} ms apart");
        match apart > CLOCKS_APART {
            true => Finding::danger(
                "clocks",
                detail
                    + ": a clock that is set right ends the leases of its member early, and tokens of \
                          another majority may be smaller",
                "let all machines keep time by NTP, slewed rather than stepped",
            ),
            false => Finding::fine("clocks", detail),
        }
    }
}
