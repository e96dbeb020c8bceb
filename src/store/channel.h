#pragma once

#include <tessera/store/secret.h>

#include <memory>
#include <string>
#include <string_view>

struct ssl_ctx_st;
struct ssl_st;
struct bio_st;

namespace tessera::store {

enum class ChannelRole { kClient, kServer };

/// Note [Proof by a shared key]
/// TLS 1.3 with an external pre-shared key: both sides prove that they have the secret. A fresh Diffie-Hellman exchange
/// (psk_dhe_ke) makes the keys of each connection, so a secret that leaks later does not decrypt recorded connections.
/// There is one cipher suite, whose hash is the key's, and no certificate, ticket, early data or renegotiation. By
/// default a client would accept a server that ignores the key and shows a certificate instead. So any certificate is
/// refused, and a handshake that ends without the key counts as failed.

/// What all channels of one side share. Thread-safety: channels may be made from any thread.
class ChannelContext {
 public:
  ChannelContext(ChannelRole role, const Secret& secret);
  ~ChannelContext();
  ChannelContext(const ChannelContext&) = delete;
  ChannelContext& operator=(const ChannelContext&) = delete;

  ChannelRole role() const { return role_; }
  ssl_ctx_st* get() const { return context_.get(); }
  const Secret& secret() const { return secret_; }

 private:
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };

  ChannelRole role_;
  Secret secret_;
  std::unique_ptr<ssl_ctx_st, Free> context_;
};

/// An encrypted connection without a socket: turns bytes of the peer into plain text, and plain text into bytes for it.
/// No bytes of a peer make it throw. See Note [Proof by a shared key].
class Channel {
 public:
  enum class State {
    kHandshake,
    kOpen,
    kClosed,  ///< by the peer, in order
    kFailed   ///< the peer lacks the secret, or its bytes were changed on the way
  };

  /// Requires: the context outlives the channel.
  explicit Channel(const ChannelContext& context);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  State state() const { return state_; }
  /// Why the state is kFailed.
  const std::string& failure() const { return failure_; }

  /// Takes bytes of the peer and appends the plain text in them to `plain`.
  void receive(std::string_view bytes, std::string& plain);

  /// Encrypts. Requires: the state is kOpen.
  void send(std::string_view plain);

  /// Bytes to send to the peer; also after a failure, so that the peer is notified of it.
  /// Valid until the next call of a member.
  std::string_view output() const { return std::string_view(output_).substr(sent_); }
  /// Removes the first `count` bytes of the output, which were sent.
  void sent(std::size_t count);

 private:
  struct Free {
    void operator()(ssl_st* connection) const;
  };

  void advance_handshake();
  void decrypt(std::string& plain);
  void collect_output();
  void fail();

  std::unique_ptr<ssl_st, Free> connection_;
  bio_st* incoming_ = nullptr;  // the connection owns both
  bio_st* outgoing_ = nullptr;
  State state_ = State::kHandshake;
  std::string failure_;
  std::string output_;
  std::size_t sent_ = 0;
};

}  // namespace tessera::store
