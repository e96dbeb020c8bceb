#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "comm/host/connect_host.h"
#include "comm/world_state.h"

namespace tessera {
namespace {

class ThreadsConnector : public comm::Connector {
 public:
  explicit ThreadsConnector(std::shared_ptr<comm::ThreadsShared> shared) : shared_(std::move(shared)) {}

  comm::Connection connect(const comm::ConnectRequest& request) override {
    return comm::connect_threads(request, shared_);
  }

 private:
  std::shared_ptr<comm::ThreadsShared> shared_;
};

}  // namespace

void run_threads(int num_ranks, const std::function<void(World)>& body, const WorldOptions& options,
                 int ranks_per_node) {
  if (num_ranks < 1) throw ConfigError("a world needs at least one rank, found " + std::to_string(num_ranks));
  if (options.backend() != "auto" && options.backend() != "threads") {
    throw ConfigError("ranks that are threads talk through memory; leave the backend \"auto\" instead of \"" +
                      options.backend() + "\"");
  }
  auto shared = std::make_shared<comm::ThreadsShared>();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(num_ranks));
  const auto run_rank = [&](int rank) {
    try {
      auto context = comm::make_context(options, rank, num_ranks);
      context->launcher = "threads";
      context->topology = Topology::blocks(num_ranks, ranks_per_node > 0 ? ranks_per_node : num_ranks);
      context->store = store;
      context->connector = std::make_shared<ThreadsConnector>(shared);
      body(World(std::make_shared<World::State>(std::move(context))));
    } catch (...) {
      failures[static_cast<std::size_t>(rank)] = std::current_exception();
      int none = -1;
      shared->failed_rank.compare_exchange_strong(none, rank);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < num_ranks; ++rank) threads.emplace_back(run_rank, rank);
  run_rank(0);
  for (auto& thread : threads) thread.join();
  const int first = shared->failed_rank.load();
  if (first >= 0) std::rethrow_exception(failures[static_cast<std::size_t>(first)]);
}

}  // namespace tessera
