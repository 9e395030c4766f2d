//! Certificates for one TLS server: a CA, the server's for 127.0.0.1 and localhost, a client's.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

type Authority = CertifiedIssuer<'static, KeyPair>;

/// PEM files in a server's directory.
#[derive(Clone, Debug)]
pub(crate) struct Certificates {
    pub(crate) ca: PathBuf,
    pub(crate) server_certificate: PathBuf,
    pub(crate) server_key: PathBuf,
    pub(crate) client_certificate: PathBuf,
    pub(crate) client_key: PathBuf,
}

impl Certificates {
    pub(crate) fn create(directory: &Path) -> Self {
        let authority = authority();
        let (server_certificate, server_key) =
            leaf(directory, &authority, "server", ExtendedKeyUsagePurpose::ServerAuth);
        let (client_certificate, client_key) =
            leaf(directory, &authority, "client", ExtendedKeyUsagePurpose::ClientAuth);
        let ca = write(directory, "ca.crt", &authority.pem());
        Self { ca, server_certificate, server_key, client_certificate, client_key }
    }
}

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // Issuer and subject must differ, else OpenSSL takes a leaf for a self-signed certificate.
    params.distinguished_name.push(DnType::CommonName, "testkit CA");
    Authority::self_signed(params, key()).expect("a CA certificate can be signed")
}

fn leaf(
    directory: &Path,
    authority: &Authority,
    name: &str,
    usage: ExtendedKeyUsagePurpose,
) -> (PathBuf, PathBuf) {
    let hosts = ["127.0.0.1".to_owned(), "localhost".to_owned()];
    let mut params = CertificateParams::new(hosts).expect("the host names are valid");
    params.distinguished_name.push(DnType::CommonName, format!("testkit {name}"));
    params.extended_key_usages = vec![usage];
    let key = key();
    let certificate = params.signed_by(&key, authority).expect("a certificate can be signed");
    (
        write(directory, &format!("{name}.crt"), &certificate.pem()),
        write(directory, &format!("{name}.key"), &key.serialize_pem()),
    )
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key pair can be generated")
}

fn write(directory: &Path, name: &str, pem: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, pem).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}
