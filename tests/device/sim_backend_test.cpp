#include <tessera/comm/world.h>

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <chrono>

#include "support/require.h"
#include "support/sim_device/sim_backend.h"
#include "support/sim_device/sim_device.h"

namespace tessera::testing::sim {
namespace {

using at::Tensor;
using namespace std::chrono_literals;  // NOLINT

struct Rank {
  int rank;
  int size;
  c10::intrusive_ptr<c10d::Backend> backend;
};

void on_ranks(int num_ranks, const std::function<void(const Rank&)>& run) {
  run_threads(num_ranks, [&](const World& world) {
    const c10::DeviceGuard guard(device(world.rank()));
    run({world.rank(), world.size(), make_sim_backend(world.comm().process_group()->getBackend(at::kCPU))});
  });
}

class SimBackendTest : public ::testing::Test {
 protected:
  ~SimBackendTest() override {
    settings() = Settings();
    synchronise();
  }
};

TEST_F(SimBackendTest, MovesWhatTheCpuMoves) {
  on_ranks(3, [](const Rank& mine) {
    const auto options = torch::TensorOptions(device(mine.rank));
    std::vector<Tensor> sum{torch::full({4}, mine.rank + 1.0, options)};
    mine.backend->allreduce(sum)->wait();
    require_equal(sum[0].sum().item<float>(), 24.F, "a sum");
    Tensor piece = torch::full({2}, static_cast<double>(mine.rank), options);
    Tensor whole = torch::empty({6}, options);
    mine.backend->_allgather_base(whole, piece)->wait();
    require_equal(whole.sum().item<float>(), 6.F, "pieces");
    mine.backend->_reduce_scatter_base(piece, whole)->wait();
    require_equal(piece[0].item<float>(), 3.F * static_cast<float>(mine.rank), "a piece of the sum");
    std::vector<Tensor> from_root{torch::full({2}, static_cast<double>(mine.rank), options)};
    c10d::BroadcastOptions root;
    root.rootRank = 2;
    mine.backend->broadcast(from_root, root)->wait();
    require_equal(from_root[0].sum().item<float>(), 4.F, "the root's");
    std::vector<Tensor> sent{torch::full({2}, static_cast<double>(mine.rank), options)};
    std::vector<Tensor> received{torch::empty({2}, options)};
    const auto sending = mine.backend->send(sent, (mine.rank + 1) % 3, 0);
    mine.backend->recv(received, (mine.rank + 2) % 3, 0)->wait();
    sending->wait();
    require_equal(received[0][0].item<float>(), static_cast<float>((mine.rank + 2) % 3), "the neighbour's");
    mine.backend->barrier()->wait();
  });
}

TEST_F(SimBackendTest, ReturnsAtOnceAndLetsTheStreamWait) {
  settings().duration = [](std::string_view op, auto) { return op == "ALLREDUCE" ? 100ms : 0ms; };
  on_ranks(2, [](const Rank& mine) {
    std::vector<Tensor> sum{torch::ones({4}, device(mine.rank))};
    const auto begin = std::chrono::steady_clock::now();
    const auto work = mine.backend->allreduce(sum);
    work->wait();
    const Tensor doubled = sum[0] * 2;
    require(std::chrono::steady_clock::now() - begin < 80ms, "the host goes on");
    require(!work->isCompleted(), "while it is under way");
    require_equal(doubled.sum().item<float>(), 16.F, "the sum");
  });
}

TEST_F(SimBackendTest, AMissingWaitIsARace) {
  on_ranks(2, [](const Rank& mine) {
    std::vector<Tensor> sum{torch::ones({4}, device(mine.rank))};
    const auto work = mine.backend->allreduce(sum);
    bool was_found = false;
    try {
      sum[0].add_(1);
    } catch (const Error&) {
      was_found = true;
    }
    require(was_found, "a write while ranks add");
    work->wait();
    sum[0].add_(1);
  });
}

TEST_F(SimBackendTest, CallbacksOfItsFutureRunBehindIt) {
  on_ranks(2, [](const Rank& mine) {
    std::vector<Tensor> sum{torch::ones({4}, device(mine.rank))};
    const auto halved = mine.backend->allreduce(sum)->getFuture()->then(
        [](c10::ivalue::Future& done) { return done.value().toTensorVector()[0] / 2; }, c10::TensorType::get());
    halved->wait();
    require_equal(halved->value().toTensor().sum().item<float>(), 4.F, "half of the sum");
  });
}

}  // namespace
}  // namespace tessera::testing::sim
