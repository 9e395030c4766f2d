//! The settings of TLS.

#[cfg(feature = "tls")]
pub(super) use enabled::config;

/// What connections share. Without the feature there is none.
#[cfg(feature = "tls")]
pub(super) type Config = std::sync::Arc<rustls::ClientConfig>;

#[cfg(not(feature = "tls"))]
#[derive(Clone)]
pub(super) enum Config {}

#[cfg(not(feature = "tls"))]
pub(super) fn config(_: &crate::redis_options::Tls) -> Result<Config, crate::backend::Fault> {
    Err(super::url::invalid("a rediss:// URL needs the feature \"tls\" of lockkeeper"))
}

#[cfg(feature = "tls")]
mod enabled {
    use std::sync::Arc;

    use rustls::crypto::CryptoProvider;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, RootCertStore};

    use super::Config;
    use crate::backend::Fault;
    use crate::redis::url::invalid;
    use crate::redis_options::Tls;

    /// Reads the settings: once, not for every connection.
    pub(crate) fn config(tls: &Tls) -> Result<Config, Fault> {
        let unusable = |what: &str, error: &dyn std::fmt::Display| {
            invalid(format!("the TLS settings are unusable: {what}: {error}"))
        };
        // The provider of the process, if it has chosen one.
        let provider = CryptoProvider::get_default().cloned();
        let provider =
            provider.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()));
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("protocol versions", &error))?
            .with_root_certificates(roots(tls.ca.as_deref())?);
        let Some((certificates, key)) = &tls.identity else {
            return Ok(Arc::new(builder.with_no_client_auth()));
        };
        let certificates = CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>();
        let certificates = certificates.map_err(|error| unusable("client certificate", &error))?;
        let key = PrivateKeyDer::from_pem_slice(key);
        let key = key.map_err(|error| unusable("client key", &error))?;
        let config = builder.with_client_auth_cert(certificates, key);
        config.map(Arc::new).map_err(|error| unusable("client certificate", &error))
    }

    /// The certificates to trust: the given ones, or those of the system.
    fn roots(ca: Option<&[u8]>) -> Result<RootCertStore, Fault> {
        let mut roots = RootCertStore::empty();
        let Some(ca) = ca else {
            // Without any, the handshake fails and says why.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            return Ok(roots);
        };
        for certificate in CertificateDer::pem_slice_iter(ca) {
            let added = certificate.map_err(|error| error.to_string());
            let added = added.and_then(|one| roots.add(one).map_err(|error| error.to_string()));
            let what = "the TLS settings are unusable: CA certificate";
            added.map_err(|error| invalid(format!("{what}: {error}")))?;
        }
        Ok(roots)
    }
}
