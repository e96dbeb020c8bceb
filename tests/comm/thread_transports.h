#pragma once

#include <tessera/comm/transport.h>

#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/host/connect_host.h"

namespace tessera::testing {

/// Runs `body` as each of `size` ranks, threads with a bare transport between them: for engines without a world.
inline void with_transports(int size, const std::function<void(int rank, std::shared_ptr<Transport>)>& body) {
  auto shared = std::make_shared<comm::ThreadsShared>();
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  const auto run_rank = [&](int rank) {
    try {
      comm::ConnectRequest request;
      request.group = "bare";
      request.rank = rank;
      request.size = size;
      request.num_ranks_on_host = size;
      request.world_ranks.resize(static_cast<std::size_t>(size));
      std::iota(request.world_ranks.begin(), request.world_ranks.end(), 0);
      body(rank, comm::connect_threads(request, shared).transport);
    } catch (...) {
      failures[static_cast<std::size_t>(rank)] = std::current_exception();
      shared->failed_rank = rank;
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(run_rank, rank);
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace tessera::testing
