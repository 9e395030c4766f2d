//! Accepting connections and joining two sockets.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr};

use tokio::net::{TcpListener, TcpStream};

use super::lane::{Direction, Lane};
use super::{ConnId, Shared};

/// Accepts until it is dropped.
pub(super) async fn accept(listener: std::net::TcpListener, state: Shared) {
    let listener = TcpListener::from_std(listener).expect("the listener is non-blocking");
    loop {
        // What fails here is the one connection (reset before it was accepted), not the listener.
        let Ok((client, source)) = listener.accept().await else {
            continue;
        };
        if let Some((id, upstream_port)) = admit(&state, source.ip()) {
            let connection = Connection { id, state: state.clone() };
            tokio::spawn(connection.serve(client, upstream_port));
        } else {
            reset(client);
        }
    }
}

/// In one step with looking at `refuse` and at the upstream port: after the control has returned, no
/// connection slips through.
fn admit(state: &Shared, source: IpAddr) -> Option<(ConnId, u16)> {
    let mut admitted = None;
    state.send_modify(|state| {
        if state.refuse {
            state.refused += 1;
        } else {
            admitted = Some((state.open(source), state.upstream_port));
        }
    });
    admitted
}

struct Connection {
    id: ConnId,
    state: Shared,
}

impl Connection {
    async fn serve(self, mut client: TcpStream, upstream_port: u16) {
        match self.join(&mut client, upstream_port).await {
            Ok(()) => drop(client),
            Err(_) => reset(client),
        }
        // `self` goes last: whoever waits for the end finds both sockets closed.
    }

    /// Carries bytes until both sides are done; an error when the connection is broken or to be cut.
    /// The server's side is never reset on purpose: that could overtake what was delivered.
    async fn join(&self, client: &mut TcpStream, upstream_port: u16) -> io::Result<()> {
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream_port)).await?;
        // Nagle's algorithm would add delays nobody asked for.
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        // Borrowed halves: owned ones would send an orderly end when dropped, before any reset.
        let (client_reader, client_writer) = client.split();
        let (server_reader, server_writer) = server.split();
        let requests = self.lane(Direction::Requests).run(client_reader, server_writer);
        let replies = self.lane(Direction::Replies).run(server_reader, client_writer);
        tokio::select! {
            biased;
            () = self.cut() => Err(ErrorKind::ConnectionAborted.into()),
            ended = async { tokio::try_join!(requests, replies) } => ended.map(|_| ()),
        }
    }

    fn lane(&self, direction: Direction) -> Lane<'_> {
        Lane { direction, id: self.id, state: &self.state }
    }

    async fn cut(&self) {
        let mut news = self.state.subscribe();
        // The sender is in our hands: the channel cannot have closed.
        let _ = news.wait_for(|state| state.is_cut(self.id)).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.state.send_modify(|state| state.close(self.id));
    }
}

fn reset(client: TcpStream) {
    // Best effort: a client that has gone already sees neither.
    let _ = client.set_zero_linger();
    drop(client);
}
