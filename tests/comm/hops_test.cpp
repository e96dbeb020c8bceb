// How many messages follow one another: the time of small collectives.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "comm/algorithms/ring_engine.h"
#include "comm/algorithms/tree_engine.h"
#include "comm/engine/engine_backend.h"
#include "comm/thread_transports.h"

namespace tessera::comm {
namespace {

/// Logical time: a message arrives one hop after its sender's latest arrival.
class HopClock {
 public:
  explicit HopClock(int size) : now_(static_cast<std::size_t>(size), 0) {}

  void sent(int from, int to) {
    const std::lock_guard lock(mutex_);
    under_way_[{from, to}].push_back(now_[static_cast<std::size_t>(from)] + 1);
  }
  void received(int from, int to) {
    const std::lock_guard lock(mutex_);
    auto& queue = under_way_[{from, to}];
    auto& now = now_[static_cast<std::size_t>(to)];
    now = std::max(now, queue.front());
    queue.pop_front();
  }
  int latest() const { return *std::max_element(now_.begin(), now_.end()); }

 private:
  std::mutex mutex_;
  std::vector<int> now_;
  std::map<std::pair<int, int>, std::deque<int>> under_way_;
};

class ClockedTransport : public Transport {
 public:
  ClockedTransport(std::shared_ptr<Transport> inner, HopClock& clock, int rank)
      : inner_(std::move(inner)), clock_(clock), rank_(rank) {}

  std::string name() const override { return "clocked"; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> data, int peer, int channel) override {
    clock_.sent(rank_, peer);
    return inner_->send(data, peer, channel);
  }
  std::unique_ptr<Transfer> recv(std::span<std::byte> data, int peer, int channel) override {
    return std::make_unique<Receive>(*this, inner_->recv(data, peer, channel), peer);
  }

 private:
  class Receive : public Transfer {
   public:
    Receive(ClockedTransport& transport, std::unique_ptr<Transfer> inner, int peer)
        : transport_(transport), inner_(std::move(inner)), peer_(peer) {}
    bool test() override { return inner_->test(); }
    void wait(std::chrono::steady_clock::time_point deadline) override {
      inner_->wait(deadline);
      transport_.clock_.received(peer_, transport_.rank_);
    }

   private:
    ClockedTransport& transport_;
    std::unique_ptr<Transfer> inner_;
    int peer_;
  };

  std::shared_ptr<Transport> inner_;
  HopClock& clock_;
  int rank_;
};

template <typename Engine>
int hops_of_all_reduce(int size) {
  HopClock clock(size);
  testing::with_transports(size, [&](int rank, const std::shared_ptr<Transport>& transport) {
    Engine engine(std::make_shared<ClockedTransport>(transport, clock, rank), rank, size, kRingChannel);
    std::array<float, 18> data{};
    const Deadline deadline = Deadline::after(std::chrono::seconds(30));
    engine.all_reduce({reinterpret_cast<std::byte*>(data.data()), 18, c10::ScalarType::Float}, ReduceOp::kSum,
                      deadline);
    Engine(transport, rank, size, kTreeChannel)
        .barrier(deadline);  // not counted: nobody leaves while others still read
  });
  return clock.latest();
}

TEST(TreeHops, AllReduceTakesTwiceTheDepthOfTheTree) {
  for (int size = 1; size <= 9; ++size) {
    const int depth = static_cast<int>(std::bit_width(static_cast<unsigned>(size - 1)));
    const int hops = hops_of_all_reduce<TreeEngine>(size);
    if (std::has_single_bit(static_cast<unsigned>(size))) {
      EXPECT_EQ(hops, 2 * depth) << size << " ranks";
    } else {
      EXPECT_LE(hops, 2 * depth) << size << " ranks";
    }
  }
}

TEST(RingHops, AllReduceGoesRoundTwiceButForOneStep) {
  for (int size = 1; size <= 9; ++size) EXPECT_EQ(hops_of_all_reduce<RingEngine>(size), 2 * (size - 1)) << size;
}

}  // namespace
}  // namespace tessera::comm
