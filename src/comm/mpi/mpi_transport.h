#pragma once

#include <tessera/comm/transport.h>

#include <memory>
#include <string>
#include <utility>

#include "comm/mpi/mpi_engine.h"

namespace tessera::comm {

/// Messages by MPI_Isend and MPI_Irecv; the channel is the tag.
class MpiTransport : public Transport {
 public:
  explicit MpiTransport(std::shared_ptr<MpiComm> comm) : comm_(std::move(comm)) {}

  std::string name() const override { return "mpi"; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> data, int peer, int channel) override;
  std::unique_ptr<Transfer> recv(std::span<std::byte> data, int peer, int channel) override;

 private:
  std::shared_ptr<MpiComm> comm_;
};

}  // namespace tessera::comm
