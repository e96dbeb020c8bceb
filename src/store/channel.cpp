#include "store/channel.h"

#include <tessera/core/error.h>

#include <array>
#include <climits>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string_view>

namespace tessera::store {
namespace {

constexpr std::size_t kMaxRecordBytes = std::size_t{16} << 10;

/// Returns the reason of this thread's newest OpenSSL error, and clears all its errors.
std::string take_reason() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "unknown reason";
}

}  // namespace

void Channel::Free::operator()(ssl_st* connection) const { SSL_free(connection); }

Channel::Channel(const ChannelContext& context) : connection_(SSL_new(context.get())) {
  if (!connection_) throw InternalError("OpenSSL makes no connection: " + take_reason());
  incoming_ = BIO_new(BIO_s_mem());
  outgoing_ = BIO_new(BIO_s_mem());
  if (incoming_ == nullptr || outgoing_ == nullptr) {
    BIO_free(incoming_);
    BIO_free(outgoing_);
    throw InternalError("OpenSSL makes no buffer: " + take_reason());
  }
  // An empty buffer means "more later", not the end.
  BIO_set_mem_eof_return(incoming_, -1);
  SSL_set_bio(connection_.get(), incoming_, outgoing_);
  if (context.role() == ChannelRole::kServer) {
    SSL_set_accept_state(connection_.get());
  } else {
    SSL_set_connect_state(connection_.get());
    advance_handshake();
  }
}

Channel::~Channel() = default;

void Channel::receive(std::string_view bytes, std::string& plain) {
  // OpenSSL counts in int.
  while (!bytes.empty() && (state_ == State::kHandshake || state_ == State::kOpen)) {
    const std::string_view piece = bytes.substr(0, INT_MAX / 2);
    bytes.remove_prefix(piece.size());
    ERR_clear_error();
    if (BIO_write(incoming_, piece.data(), static_cast<int>(piece.size())) != static_cast<int>(piece.size())) {
      fail();
      return;
    }
    if (state_ == State::kHandshake) advance_handshake();
    if (state_ == State::kOpen) decrypt(plain);
  }
}

void Channel::send(std::string_view plain) {
  if (state_ != State::kOpen) throw InternalError("a store's channel was used before it was open");
  while (!plain.empty()) {
    const std::string_view piece = plain.substr(0, kMaxRecordBytes);
    plain.remove_prefix(piece.size());
    ERR_clear_error();
    if (SSL_write(connection_.get(), piece.data(), static_cast<int>(piece.size())) != static_cast<int>(piece.size())) {
      fail();
      return;
    }
  }
  collect_output();
}

void Channel::sent(std::size_t count) {
  sent_ += count;
  if (sent_ < output_.size()) return;
  output_.clear();
  sent_ = 0;
}

void Channel::advance_handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(connection_.get());
  if (result == 1) {
    // Whatever OpenSSL has accepted: a peer that did not use the key has proved nothing.
    if (SSL_session_reused(connection_.get()) != 1) {
      state_ = State::kFailed;
      failure_ = "the peer did not use the shared key";
      return;
    }
    state_ = State::kOpen;
    collect_output();
    return;
  }
  if (SSL_get_error(connection_.get(), result) == SSL_ERROR_WANT_READ) {
    collect_output();
  } else {
    fail();
  }
}

void Channel::decrypt(std::string& plain) {
  std::array<char, kMaxRecordBytes> block;  // NOLINT(*-member-init): filled by the next call
  while (state_ == State::kOpen) {
    ERR_clear_error();
    const int count = SSL_read(connection_.get(), block.data(), static_cast<int>(block.size()));
    if (count > 0) {
      plain.append(block.data(), static_cast<std::size_t>(count));
      continue;
    }
    const int error = SSL_get_error(connection_.get(), count);
    if (error == SSL_ERROR_WANT_READ) break;
    if (error == SSL_ERROR_ZERO_RETURN) {
      state_ = State::kClosed;
    } else {
      fail();
    }
  }
  // An update of the keys needs an answer.
  collect_output();
}

void Channel::collect_output() {
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(outgoing_, &bytes);
  if (count <= 0) return;
  output_.append(bytes, static_cast<std::size_t>(count));
  BIO_reset(outgoing_);
}

void Channel::fail() {
  state_ = State::kFailed;
  failure_ = take_reason();
  collect_output();
}

namespace {

/// Also carries the protocol's version: another version is another identity, whose key the server does not know.
constexpr std::string_view kIdentity = "tessera store 1";
constexpr const char* kCipherSuite = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kCipherNumber{0x13, 0x01};

void require(bool done, const char* what) {
  if (done) return;
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  throw InternalError(std::string("OpenSSL refuses ") + what + ": " + (reason != nullptr ? reason : "unknown reason"));
}

/// The key as a resumable session, the form in which OpenSSL takes an external key. Null when it cannot be made.
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
  // OpenSSL calls this a second time with the hash that the server chose; our server has only one suite.
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
