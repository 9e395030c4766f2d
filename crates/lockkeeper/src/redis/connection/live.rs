//! A connection in use, and the requests that are on their way through it.

use std::collections::VecDeque;

use super::handshake::Identity;
use super::socket::Direct;
use crate::redis::command::Text;

/// The bytes that may wait to be written. Beyond them requests stay with their callers, so that a
/// server that stops reading does not use up memory.
pub(super) const OUT_MAX: usize = 1024 * 1024;

/// The largest write buffer that is kept for reuse.
const KEPT_MAX: usize = 64 * 1024;

#[derive(Default)]
pub(super) struct Live {
    pub(super) generation: u64,
    pub(super) identity: Option<Identity>,
    /// The epoch of the primary.
    pub(super) epoch: u64,
    /// For writes by callers.
    pub(super) direct: Option<Direct>,
    /// A caller or the task writes bytes that it took out of `out`.
    pub(super) writing: bool,
    /// Bytes that a caller could not write: the task's duty.
    pub(super) rest: Option<(Vec<u8>, usize)>,
    /// Encoded requests that were not taken for writing.
    pub(super) out: Vec<u8>,
    reused: Vec<u8>,
    /// The number of requests in `out`.
    pub(super) fresh: usize,
    pub(super) sent: VecDeque<usize>,
    /// The length of the stream of requests, and how much of it may have been written.
    pub(super) encoded: u64,
    pub(super) taken: u64,
    /// The scripts that were called by requests that must run [in order](crate::redis::command::Command::in_order).
    pub(super) called: Vec<&'static Text>,
}

impl Live {
    pub(super) fn new(generation: u64, identity: Option<Identity>, direct: Option<Direct>) -> Self {
        Self { generation, identity, direct, ..Self::default() }
    }

    /// The number of requests without a reply.
    pub(super) fn in_flight(&self) -> usize {
        self.sent.len()
    }

    /// Takes all encoded requests, to be written now.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.fresh = 0;
        self.taken = self.encoded;
        self.writing = true;
        std::mem::replace(&mut self.out, std::mem::take(&mut self.reused))
    }

    /// Takes back the buffer of bytes that were written.
    pub(super) fn written(&mut self, mut buffer: Vec<u8>) {
        self.writing = false;
        if buffer.capacity() <= KEPT_MAX {
            buffer.clear();
            self.reused = buffer;
        }
    }

    /// Whether there are bytes that are not being written.
    pub(super) fn has_output(&self) -> bool {
        !self.out.is_empty() || self.rest.is_some()
    }
}
