//! TLS 1.3 both ways with raw public keys (RFC 8446, RFC 7250): what both QUIC and the TCP lanes use.
//!
//! A server proves its host key, which [`HostTrust`] judges during the handshake, before the client shows its own.
//! A client proves its user key; what that key may do is judged after the handshake, so that a stranger can be told
//! which key was shown.

use std::sync::{Arc, Mutex};

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme, version::TLS13,
};

use crate::identity::{HostTrust, Identity, PublicKey, TrustError};

/// What a TCP or QUIC connection is for, agreed by ALPN (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The session's requests and replies.
    Control,
    /// A data lane.
    Lane,
}

impl Purpose {
    /// Its protocol name; the number is the protocol's version.
    pub(crate) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Control => b"longhaul-control/1",
            Self::Lane => b"longhaul-lane/1",
        }
    }

    pub(crate) fn from_alpn(alpn: &[u8]) -> Option<Self> {
        [Self::Control, Self::Lane].into_iter().find(|p| p.alpn() == alpn)
    }
}

/// The name put into the handshake, where TLS wants one: keys, not names, are what is trusted.
pub(crate) const SERVER_NAME: &str = "longhaul";

fn provider() -> Arc<CryptoProvider> {
    // Ciphers in the order of speed on CPUs with AES instructions, which all that move 10 Gbit/s have; rustls
    // itself never falls back to a weak one.
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| suite.tls13().is_some());
    provider.cipher_suites.sort_by_key(|s| {
        use rustls::CipherSuite::TLS13_AES_128_GCM_SHA256;
        s.suite() != TLS13_AES_128_GCM_SHA256
    });
    Arc::new(provider)
}

/// A client's configuration, and where the reason is found when a server was not trusted.
#[derive(Debug)]
pub(crate) struct ClientTls {
    pub(crate) config: rustls::ClientConfig,
    refusal: Arc<Mutex<Option<TrustError>>>,
}

impl ClientTls {
    pub(crate) fn new(identity: &Identity, trust: Arc<HostTrust>, purpose: Purpose) -> Result<Self, Error> {
        let refusal = Arc::new(Mutex::new(None));
        let verifier = ServerKeyVerifier { trust, refusal: Arc::clone(&refusal), provider: provider() };
        let mut config = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .dangerous() // rustls' word for any verifier of one's own
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                identity.certified(),
            )));
        config.alpn_protocols = vec![purpose.alpn().to_vec()];
        config.enable_secret_extraction = true;
        config.enable_sni = false;
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self { config, refusal })
    }

    /// Why the last handshake ended, when it was for lack of trust.
    pub(crate) fn take_refusal(&self) -> Option<TrustError> {
        self.refusal.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}

/// A server's configuration, for both purposes.
pub(crate) fn server_config(identity: &Identity) -> Result<rustls::ServerConfig, Error> {
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(ClientKeyVerifier { provider: provider() }))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(identity.certified())));
    config.alpn_protocols = vec![Purpose::Control.alpn().to_vec(), Purpose::Lane.alpn().to_vec()];
    config.enable_secret_extraction = true;
    // No resumption: a ticket would be one more thing to handle after the handshake, and saves no round trip.
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The peer's key, from what TLS calls its certificate chain.
pub(crate) fn peer_key(certificates: Option<&[CertificateDer<'_>]>) -> Option<PublicKey> {
    PublicKey::from_spki(certificates?.first()?)
}

fn key_of(certificate: &CertificateDer<'_>) -> Result<PublicKey, Error> {
    PublicKey::from_spki(certificate).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))
}

fn verify_signature(
    provider: &CryptoProvider,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let spki = SubjectPublicKeyInfoDer::from(certificate.as_ref());
    verify_tls13_signature_with_raw_key(
        message,
        &spki,
        signature,
        &provider.signature_verification_algorithms,
    )
}

fn only_tls13() -> Error {
    Error::PeerIncompatible(rustls::PeerIncompatible::Tls12NotOffered)
}

#[derive(Debug)]
struct ServerKeyVerifier {
    trust: Arc<HostTrust>,
    refusal: Arc<Mutex<Option<TrustError>>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ServerKeyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.trust.check(key_of(end_entity)?).map(|()| ServerCertVerified::assertion()).map_err(|refusal| {
            *self.refusal.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(refusal);
            Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
        })
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(&self.provider, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct ClientKeyVerifier {
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for ClientKeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        key_of(end_entity).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(&self.provider, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
