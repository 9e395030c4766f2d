//! Each control of the proxy, on a real server.

mod common;

use std::io;
use std::time::{Duration, Instant};

use common::eventually;
use testkit::{FaultProxy, RedisServer};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;
use tokio::time;

/// Long enough for a loopback round trip to have happened if it were going to.
const SILENCE: Duration = Duration::from_millis(50);

struct Client(BufStream<TcpStream>);

impl Client {
    async fn connect(port: u16) -> Self {
        Self(BufStream::new(TcpStream::connect(("127.0.0.1", port)).await.unwrap()))
    }

    async fn send(&mut self, line: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
        self.0.flush().await.unwrap();
    }

    /// A line of the reply; empty at an orderly end.
    async fn receive(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        Ok(line.trim_end().to_owned())
    }

    async fn ask(&mut self, line: &str) -> String {
        self.send(line).await;
        self.receive().await.unwrap()
    }

    async fn assert_silent(&mut self) {
        let received = time::timeout(SILENCE, self.receive()).await;
        assert!(received.is_err(), "expected silence, got {received:?}");
    }

    async fn assert_reset(&mut self) {
        assert_eq!(self.receive().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}

async fn start() -> (RedisServer, FaultProxy) {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port()).await;
    (server, proxy)
}

fn count(server: &RedisServer) -> Option<i64> {
    let reply = server.cli(&["GET", "n"]);
    (!reply.is_nil()).then(|| reply.int())
}

#[tokio::test]
async fn without_faults_it_is_invisible() {
    let (server, proxy) = start().await;
    assert_eq!(proxy.url(), format!("redis://127.0.0.1:{}", proxy.port()));
    let mut client = Client::connect(proxy.port()).await;
    assert_eq!(client.ask("INCR n").await, ":1");
    server.kill();
    assert_eq!(client.receive().await.unwrap(), "");
}

#[tokio::test]
async fn a_large_request_and_reply_pass_whole() {
    let (_server, proxy) = start().await;
    let mut client = Client::connect(proxy.port()).await;
    let value = "x".repeat(1 << 20);
    client.send(&format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{value}", value.len())).await;
    assert_eq!(client.receive().await.unwrap(), "+OK");
    assert_eq!(client.ask("GET k").await, format!("${}", value.len()));
    assert_eq!(client.receive().await.unwrap(), value);
}

#[tokio::test]
async fn cut_resets_open_connections_and_spares_new_ones() {
    let (_server, proxy) = start().await;
    let mut client = Client::connect(proxy.port()).await;
    assert_eq!(client.ask("PING").await, "+PONG");
    let id = proxy.connections()[0];
    proxy.cut();
    client.assert_reset().await;
    proxy.wait_for_end(id).await;
    let mut client = Client::connect(proxy.port()).await;
    assert_eq!(client.ask("PING").await, "+PONG");
    assert_eq!(proxy.accepted(), 2);
}

#[tokio::test]
async fn refuse_resets_new_connections_and_spares_open_ones() {
    let (_server, proxy) = start().await;
    let mut open = Client::connect(proxy.port()).await;
    assert_eq!(open.ask("PING").await, "+PONG");
    proxy.refuse(true);
    // The reset may be there before `connect` looks.
    match TcpStream::connect(("127.0.0.1", proxy.port())).await {
        Ok(refused) => Client(BufStream::new(refused)).assert_reset().await,
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
    }
    proxy.wait_for_refusals(1).await;
    assert_eq!(open.ask("PING").await, "+PONG");
    proxy.refuse(false);
    let mut client = Client::connect(proxy.port()).await;
    assert_eq!(client.ask("PING").await, "+PONG");
    assert_eq!((proxy.accepted(), proxy.refused()), (2, 1));
}

#[tokio::test]
async fn delay_applies_to_each_direction_and_keeps_the_order() {
    let (_server, proxy) = start().await;
    let mut client = Client::connect(proxy.port()).await;
    assert_eq!(client.ask("INCR n").await, ":1");
    let delay = Duration::from_millis(40);
    proxy.delay(delay);
    let start = Instant::now();
    client.send("INCR n").await;
    assert_eq!(client.ask("INCR n").await, ":2");
    assert!(start.elapsed() >= 2 * delay, "{:?}", start.elapsed());
    proxy.delay(Duration::ZERO);
    assert_eq!(client.receive().await.unwrap(), ":3");
}

#[tokio::test]
async fn a_black_hole_swallows_both_directions_and_keeps_connections_open() {
    let (server, proxy) = start().await;
    let mut client = Client::connect(proxy.port()).await;
    assert_eq!(client.ask("INCR n").await, ":1");
    proxy.black_hole(true);
    let arrived = proxy.expect_request(b"INCR n");
    client.send("INCR n").await;
    arrived.wait().await;
    client.assert_silent().await;
    assert_eq!(count(&server), Some(1));
    proxy.black_hole(false);
    assert_eq!(client.ask("INCR n").await, ":2");
}

#[tokio::test]
async fn in_a_black_hole_the_server_does_not_learn_that_the_client_has_gone() {
    let (server, proxy) = start().await;
    let mut client = Client::connect(proxy.port()).await;
    assert_eq!(client.ask("CLIENT SETNAME ghost").await, "+OK");
    let id = proxy.connections()[0];
    proxy.black_hole(true);
    drop(client);
    let known = || server.cli(&["CLIENT", "LIST"]).text().contains("name=ghost");
    assert!(time::timeout(SILENCE, proxy.wait_for_end(id)).await.is_err());
    assert!(known());
    proxy.black_hole(false);
    proxy.wait_for_end(id).await;
    eventually("the server has dropped the client", || !known());
}

#[tokio::test]
async fn held_requests_arrive_after_later_ones_even_from_a_client_that_has_gone() {
    let (server, proxy) = start().await;
    let mut late = Client::connect(proxy.port()).await;
    proxy.wait_for_connections(1).await;
    let id = proxy.connections()[0];
    proxy.hold_connection(id, true);
    let arrived = proxy.expect_request(b"RPUSH list 2");
    let delivered = proxy.expect_delivery(b"RPUSH list 2");
    late.send("RPUSH list 1").await;
    late.send("RPUSH list 2").await;
    arrived.wait().await;
    drop(late);
    server.cli(&["RPUSH", "list", "0"]).ok();
    assert_eq!((arrived.count(), delivered.count()), (1, 0));
    proxy.hold_connection(id, false);
    delivered.wait().await;
    // The end reaches the client's side only after the server has executed everything and closed.
    proxy.wait_for_end(id).await;
    let list = server.cli(&["LRANGE", "list", "0", "-1"]);
    let list: Vec<i64> = list.array().iter().map(testkit::Reply::int).collect();
    assert_eq!(list, [0, 1, 2]);
}

#[tokio::test]
async fn one_connection_can_be_held_while_others_go_on() {
    let (_server, proxy) = start().await;
    let mut held = Client::connect(proxy.port()).await;
    assert_eq!(held.ask("PING").await, "+PONG");
    let id = proxy.connections()[0];
    proxy.hold_connection(id, true);
    held.send("INCR n").await;
    let mut other = Client::connect(proxy.port()).await;
    assert_eq!(other.ask("INCR n").await, ":1");
    proxy.hold_connection(id, false);
    assert_eq!(held.receive().await.unwrap(), ":2");
}

#[tokio::test]
async fn dropped_replies_leave_their_requests_executed() {
    let (server, proxy) = start().await;
    let mut client = Client::connect(proxy.port()).await;
    proxy.drop_replies(true);
    client.send("INCR n").await;
    proxy.wait_for_swallowed_replies(1).await;
    assert_eq!(count(&server), Some(1));
    proxy.drop_replies(false);
    assert_eq!(client.ask("INCR n").await, ":2");
}

#[tokio::test]
async fn a_single_dropped_reply_is_executed_and_then_cut() {
    let (server, proxy) = start().await;
    let mut client = Client::connect(proxy.port()).await;
    let mut other = Client::connect(proxy.port()).await;
    proxy.drop_replies_once_after_request_matching(b"INCR");
    assert_eq!(client.ask("PING").await, "+PONG");
    server.pause();
    let delivered = proxy.expect_delivery(b"INCR");
    client.send("INCR n").await;
    delivered.wait().await;
    // Delivered but not executed: the cut has to wait for the server.
    client.assert_silent().await;
    server.resume();
    client.assert_reset().await;
    assert_eq!(count(&server), Some(1));
    assert_eq!(other.ask("INCR n").await, ":2");
}

#[tokio::test]
async fn held_requests_outlive_a_client_that_no_longer_takes_replies() {
    let (server, proxy) = start().await;
    let mut client = Client::connect(proxy.port()).await;
    // In RESP3 a subscriber may send any command.
    client.send("HELLO 3").await;
    client.send("SUBSCRIBE channel").await;
    let publish = || server.cli(&["PUBLISH", "channel", "message"]).int();
    eventually("the client is subscribed", || publish() == 1);
    let id = proxy.connections()[0];
    proxy.hold_connection(id, true);
    let arrived = proxy.expect_request(b"INCR n");
    let delivered = proxy.expect_delivery(b"INCR n");
    client.send("INCR n").await;
    arrived.wait().await;
    drop(client);
    for _ in 0..3 {
        assert_eq!(publish(), 1);
    }
    assert!(time::timeout(SILENCE, proxy.wait_for_end(id)).await.is_err());
    assert_eq!(count(&server), None);
    proxy.hold_connection(id, false);
    delivered.wait().await;
    proxy.wait_for_end(id).await;
    assert_eq!(count(&server), Some(1));
}

#[tokio::test]
async fn the_subscriber_can_be_told_apart_and_cut_alone() {
    let (_server, proxy) = start().await;
    let mut plain = Client::connect(proxy.port()).await;
    assert_eq!(plain.ask("PING").await, "+PONG");
    let mut subscriber = Client::connect(proxy.port()).await;
    assert_eq!(subscriber.ask("*2\r\n$9\r\nSUBSCRIBE\r\n$7\r\nchannel").await, "*3");
    let id = proxy.wait_for_subscriber().await;
    assert_eq!(proxy.connections().len(), 2);
    assert_eq!(proxy.connections()[1], id);
    assert_eq!(proxy.subscribers(), [id]);
    proxy.cut_connection(id);
    proxy.wait_for_end(id).await;
    assert_eq!(plain.ask("PING").await, "+PONG");
    while subscriber.receive().await.is_ok() {}
}

#[tokio::test]
async fn one_connection_can_be_black_holed_alone() {
    let (server, proxy) = start().await;
    let mut lost = Client::connect(proxy.port()).await;
    assert_eq!(lost.ask("PING").await, "+PONG");
    let id = proxy.connections()[0];
    let mut other = Client::connect(proxy.port()).await;
    proxy.black_hole_connection(id, true);
    let arrived = proxy.expect_request(b"INCR n");
    lost.send("INCR n").await;
    arrived.wait().await;
    assert_eq!(other.ask("PING").await, "+PONG");
    assert_eq!(count(&server), None);
    proxy.black_hole_connection(id, false);
    assert_eq!(lost.ask("PING").await, "+PONG");
}

#[tokio::test]
async fn waiting_starts_at_the_call_and_sees_needles_across_writes() {
    let (_server, proxy) = start().await;
    let seen = proxy.expect_request(b"INCR number");
    let mut client = Client::connect(proxy.port()).await;
    proxy.wait_for_connections(1).await;
    let first_half = proxy.expect_request(b"INCR num");
    client.0.write_all(b"INCR num").await.unwrap();
    client.0.flush().await.unwrap();
    first_half.wait().await;
    assert_eq!(client.ask("ber").await, ":1");
    seen.wait().await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_clock_of_the_test_does_not_end_a_wait() {
    let (_server, proxy) = start().await;
    let port = proxy.port();
    let client = std::thread::spawn(move || {
        eventually("it is accepted", || common::is_open(port));
    });
    proxy.wait_for_connections(1).await;
    client.join().unwrap();
}

#[tokio::test]
async fn a_dropped_proxy_closes_its_connections() {
    let (_server, proxy) = start().await;
    let mut client = Client::connect(proxy.port()).await;
    assert_eq!(client.ask("PING").await, "+PONG");
    drop(proxy);
    assert!(matches!(client.receive().await.as_deref(), Ok("") | Err(_)));
}

#[tokio::test]
async fn a_stray_reply_comes_once_and_before_the_reply_to_the_request_it_was_armed_for() {
    let (_server, proxy) = start().await;
    let mut client = Client::connect(proxy.port()).await;
    proxy.stray_reply_once_after_request_matching(b"two", b":42\r\n");
    assert_eq!(client.ask("SET n one").await, "+OK");
    assert_eq!(client.ask("SET n two").await, ":42");
    assert_eq!(client.ask("PING").await, "+OK");
    assert_eq!(client.receive().await.unwrap(), "+PONG");
    assert_eq!(client.ask("SET n two").await, "+OK");
}
