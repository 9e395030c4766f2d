//! One direction of a connection: a reader and a writer with a queue in between.
//!
//! The reader never waits for the writer, so what one side has sent is seen and kept at once, whatever
//! happens to its delivery. Faults that swallow are applied at both ends of the queue: what arrives
//! during a fault is gone, and so is what had arrived before but is due during it.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{self, Instant};

use super::state::State;
use super::{ConnId, Shared};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Direction {
    Requests,
    Replies,
}

#[derive(Clone, Copy)]
pub(super) struct Lane<'a> {
    pub(super) direction: Direction,
    pub(super) id: ConnId,
    pub(super) state: &'a Shared,
}

struct Chunk {
    /// `None`: at once.
    due: Option<Instant>,
    bytes: Vec<u8>,
}

impl Lane<'_> {
    /// Carries bytes until this direction has ended. An error ends the whole connection.
    pub(super) async fn run(self, reader: ReadHalf<'_>, writer: WriteHalf<'_>) -> io::Result<()> {
        let (queue, chunks) = mpsc::unbounded_channel();
        let receive = async {
            self.receive(reader, queue).await;
            Ok(())
        };
        let deliver = async {
            match self.direction {
                Direction::Requests => self.deliver_requests(chunks, writer).await,
                Direction::Replies => self.deliver_replies(chunks, writer).await,
            }
        };
        tokio::try_join!(receive, deliver).map(|_| ())
    }

    /// Until the sender closes, however it does. The end of `queue` tells the writer.
    async fn receive(self, mut reader: ReadHalf<'_>, queue: UnboundedSender<Chunk>) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(length @ 1..) = reader.read(&mut buffer).await {
            let chunk = self.arrive(&buffer[..length]);
            if chunk.is_some_and(|chunk| queue.send(chunk).is_err()) {
                return;
            }
        }
    }

    /// In one step: who has been told of a request may rely on its fate being decided.
    fn arrive(self, bytes: &[u8]) -> Option<Chunk> {
        let mut chunk = None;
        self.state.send_if_modified(|state| {
            let requests = self.direction == Direction::Requests;
            let news = requests && state.arrived(self.id, bytes);
            if self.swallows(state) {
                return news | self.swallow(state);
            }
            let due = (!state.delay.is_zero()).then(|| Instant::now() + state.delay);
            chunk = Some(Chunk { due, bytes: bytes.to_vec() });
            news
        });
        chunk
    }

    async fn deliver_requests(
        self,
        mut chunks: UnboundedReceiver<Chunk>,
        mut writer: WriteHalf<'_>,
    ) -> io::Result<()> {
        while let Some(bytes) = self.next(&mut chunks).await {
            // Doomed before the bytes leave: their reply must not be faster.
            let mut struck = false;
            self.state.send_if_modified(|state| {
                state.go_astray(self.id, &bytes);
                struck = state.strike(self.id, &bytes);
                struck
            });
            writer.write_all(&bytes).await?;
            self.state.send_if_modified(|state| state.delivered(self.id, &bytes));
            if struck {
                // The server executes what it has, then sees the end and closes.
                return writer.shutdown().await;
            }
        }
        self.until(|state| !state.is_black_hole(self.id)).await;
        // A server that has gone cannot be told.
        let _ = writer.shutdown().await;
        Ok(())
    }

    async fn deliver_replies(
        self,
        mut chunks: UnboundedReceiver<Chunk>,
        mut writer: WriteHalf<'_>,
    ) -> io::Result<()> {
        while let Some(mut bytes) = self.next(&mut chunks).await {
            self.state.send_if_modified(|state| {
                bytes = state.with_stray(self.id, std::mem::take(&mut bytes));
                false
            });
            // The client may have gone while its requests are still held: they are to be delivered
            // all the same, so this is no reason to end the connection.
            let _ = writer.write_all(&bytes).await;
        }
        self.until(|state| !state.is_black_hole(self.id)).await;
        if self.state.borrow().is_doomed(self.id) {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let _ = writer.shutdown().await;
        Ok(())
    }

    /// The next bytes that are to be delivered, when they are; `None` at the end.
    async fn next(self, chunks: &mut UnboundedReceiver<Chunk>) -> Option<Vec<u8>> {
        loop {
            let chunk = chunks.recv().await?;
            if let Some(due) = chunk.due {
                time::sleep_until(due).await;
            }
            self.until(|state| !self.holds(state)).await;
            let swallowed =
                self.state.send_if_modified(|state| self.swallows(state) && self.swallow(state));
            if !swallowed {
                return Some(chunk.bytes);
            }
        }
    }

    fn holds(self, state: &State) -> bool {
        self.direction == Direction::Requests && state.holds_requests(self.id)
    }

    fn swallows(self, state: &State) -> bool {
        let dropped = self.direction == Direction::Replies && state.drops_replies(self.id);
        dropped || state.is_black_hole(self.id)
    }

    /// Returns true, for the caller's convenience: it is news.
    fn swallow(self, state: &mut State) -> bool {
        if self.direction == Direction::Replies {
            state.swallowed_replies += 1;
        }
        true
    }

    async fn until(self, condition: impl FnMut(&State) -> bool) {
        let mut news = self.state.subscribe();
        // The sender is in our hands: the channel cannot have closed.
        let _ = news.wait_for(condition).await;
    }
}
