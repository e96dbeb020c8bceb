#pragma once

#include <tessera/comm/transport.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>

namespace tessera::comm {

/// Messages through Gloo's own sends and receives; the channel is the tag.
class GlooTransport : public Transport {
 public:
  explicit GlooTransport(c10::intrusive_ptr<c10d::Backend> gloo) : gloo_(std::move(gloo)) {}

  std::string name() const override { return "gloo"; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> data, int peer, int channel) override;
  std::unique_ptr<Transfer> recv(std::span<std::byte> data, int peer, int channel) override;

 private:
  c10::intrusive_ptr<c10d::Backend> gloo_;
};

}  // namespace tessera::comm
