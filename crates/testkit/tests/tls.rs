//! A TLS server presents a certificate that its own CA vouches for, and asks for the client's.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use testkit::RedisServer;

fn config(server: &RedisServer, with_certificate: bool) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&server.ca_pem()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    if !with_certificate {
        return builder.with_no_client_auth();
    }
    let certificate = CertificateDer::from_pem_slice(&server.client_cert_pem()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(&server.client_key_pem()).unwrap();
    builder.with_client_auth_cert(vec![certificate], key).unwrap()
}

fn ping(server: &RedisServer, host: &'static str, with_certificate: bool) -> io::Result<String> {
    let name = ServerName::try_from(host).unwrap();
    let session = ClientConnection::new(Arc::new(config(server, with_certificate)), name);
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port()))?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut stream = StreamOwned::new(session.unwrap(), socket);
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn a_client_that_trusts_the_ca_is_served_by_address_and_by_name() {
    let server = RedisServer::builder().tls().start();
    assert_eq!(server.url(), format!("rediss://127.0.0.1:{}", server.port()));
    assert_eq!(ping(&server, "127.0.0.1", false).unwrap(), "+PONG\r\n");
    assert_eq!(ping(&server, "localhost", true).unwrap(), "+PONG\r\n");
    assert!(ping(&server, "example.org", false).is_err());
    assert_eq!(server.cli(&["PING"]).text(), "PONG");
}

#[test]
fn a_server_that_requires_a_client_certificate_serves_nobody_without() {
    let server = RedisServer::builder().tls_with_client_certificate().start();
    assert!(ping(&server, "127.0.0.1", false).is_err());
    assert_eq!(ping(&server, "127.0.0.1", true).unwrap(), "+PONG\r\n");
}
