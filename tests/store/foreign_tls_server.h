#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace tessera::testing {

/// A TLS server with a certificate that it signed itself: it knows no secret, but any client that only wanted
/// encryption would talk to it.
class ForeignTlsServer {
 public:
  ForeignTlsServer() : context_(SSL_CTX_new(TLS_server_method()), SSL_CTX_free) {
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_RSA_gen(2048), EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    if (X509_sign(certificate.get(), key.get(), EVP_sha256()) == 0 ||
        SSL_CTX_use_certificate(context_.get(), certificate.get()) != 1 ||
        SSL_CTX_use_PrivateKey(context_.get(), key.get()) != 1) {
      throw std::runtime_error("the certificate cannot be made");
    }
    connection_.reset(SSL_new(context_.get()));
    SSL_set_bio(connection_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_accept_state(connection_.get());
  }

  std::string answer(const std::string& bytes) {
    BIO_write(SSL_get_rbio(connection_.get()), bytes.data(), static_cast<int>(bytes.size()));
    SSL_do_handshake(connection_.get());
    char* said = nullptr;
    const long count = BIO_get_mem_data(SSL_get_wbio(connection_.get()), &said);
    std::string result(said, static_cast<std::size_t>(count));
    BIO_reset(SSL_get_wbio(connection_.get()));
    return result;
  }

 private:
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> connection_{nullptr, SSL_free};
};

}  // namespace tessera::testing
