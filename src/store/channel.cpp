#include "store/channel.h"

#include <tessera/core/error.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <climits>

namespace tessera::store {
namespace {

constexpr std::size_t kMaxRecordBytes = std::size_t{16} << 10;

/// The reason of the newest error of this thread, which is then forgotten with all older ones.
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
    // Whatever OpenSSL was content with: without the key, nobody has proved anything.
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
  // An update of the keys asks for an answer.
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

}  // namespace tessera::store
