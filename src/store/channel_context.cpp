#include <tessera/core/error.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <string_view>

#include "store/channel.h"

namespace tessera::store {
namespace {

/// Also the protocol's version: another one is another identity, whose key the server does not know.
constexpr std::string_view kIdentity = "tessera store 1";
constexpr const char* kCipherSuite = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kCipherNumber{0x13, 0x01};

void require(bool done, const char* what) {
  if (done) return;
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  throw InternalError(std::string("OpenSSL refuses ") + what + ": " + (reason != nullptr ? reason : "unknown reason"));
}

/// The key in the form of a session that could be resumed, which is how OpenSSL takes one. Null when it cannot be made.
SSL_SESSION* session_of(SSL* connection) {
  const auto* context = static_cast<const ChannelContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(connection)));
  const SSL_CIPHER* cipher = SSL_CIPHER_find(connection, kCipherNumber.data());
  SSL_SESSION* session = SSL_SESSION_new();
  const auto key = context->secret().bytes();
  if (session != nullptr && cipher != nullptr && SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int find_session(SSL* connection, const unsigned char* identity, std::size_t length, SSL_SESSION** session) {
  *session = nullptr;
  const std::string_view given(reinterpret_cast<const char*>(identity), length);
  if (given != kIdentity) return 1;  // unknown: the handshake then fails for want of a certificate
  *session = session_of(connection);
  return *session != nullptr ? 1 : 0;
}

int use_session(SSL* connection, const EVP_MD* digest, const unsigned char** identity, std::size_t* length,
                SSL_SESSION** session) {
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *length = kIdentity.size();
  *session = session_of(connection);
  if (*session == nullptr) return 0;
  // Asked a second time, with the hash that the server chose; ours has but one suite.
  return digest == nullptr || EVP_MD_is_a(digest, "SHA256") == 1 ? 1 : 0;
}

}  // namespace

void ChannelContext::Free::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }

ChannelContext::ChannelContext(ChannelRole role, const Secret& secret)
    : role_(role),
      secret_(secret),
      context_(SSL_CTX_new(role == ChannelRole::kServer ? TLS_server_method() : TLS_client_method())) {
  SSL_CTX* context = context_.get();
  require(context != nullptr, "a context");
  require(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1, "TLS 1.3");
  require(SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1, "TLS 1.3");
  require(SSL_CTX_set_ciphersuites(context, kCipherSuite) == 1, kCipherSuite);
  std::string groups = "X25519:P-256";  // OpenSSL's macro takes the const away
  require(SSL_CTX_set1_groups_list(context, groups.data()) == 1, "the groups of the key exchange");
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  require(SSL_CTX_set_num_tickets(context, 0) == 1, "to leave tickets out");
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_early_data(context, 0);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_app_data(context, this);
  if (role == ChannelRole::kServer) {
    SSL_CTX_set_psk_find_session_callback(context, find_session);
  } else {
    SSL_CTX_set_psk_use_session_callback(context, use_session);
    // No authority is known, so that every certificate is refused.
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  }
}

ChannelContext::~ChannelContext() = default;

}  // namespace tessera::store
