#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/torch.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "support/error_message.h"
#include "support/sim_device/sim_device.h"

// What the checker of the simulated device takes for order, and what not.

namespace tessera::testing::sim {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

const c10::impl::VirtualGuardImpl& guard() {
  static const c10::impl::VirtualGuardImpl instance(kSim);
  return instance;
}

class SimOrder : public ::testing::Test {
 protected:
  void TearDown() override {
    settings().longest_delay = {};
    try {
      synchronise();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a test that expects it has seen it
    }
  }

  c10::Stream first_ = guard().getNewStream(device());
  c10::Stream second_ = guard().getNewStream(device());
  Tensor values_ = [] {
    Tensor made = torch::zeros({8, 8}, device());
    synchronise();
    return made;
  }();
};

/// Lets `stream` wait for what `before` has so far.
void order(const c10::Stream& before, const c10::Stream& stream) {
  c10::Event event(kSim);
  event.record(before);
  event.block(stream);
}

template <class Function>
void on(const c10::Stream& stream, const Function& run) {
  const c10::StreamGuard guard(stream);
  run();
}

TEST_F(SimOrder, AWriteThatNothingOrdersBeforeAReadIsARace) {
  on(first_, [&] { values_.fill_(1); });
  const auto read = [&] { on(second_, [&] { values_.sum(); }); };
  EXPECT_THAT(message_of<Error>(read),
              AllOf(HasSubstr("data race in a block of 256 bytes: sum reads bytes [0, 256) on stream "),
                    HasSubstr("and nothing orders it after fill_ writes bytes [0, 256) on stream ")));
}

TEST_F(SimOrder, AReadBeforeAWriteToo) {
  on(first_, [&] { values_.sum(); });
  const auto write = [&] { on(second_, [&] { values_.fill_(1); }); };
  EXPECT_THAT(message_of<Error>(write), HasSubstr("fill_ writes bytes"));
}

TEST_F(SimOrder, TwoReadsAreNone) {
  on(first_, [&] { values_.sum(); });
  on(second_, [&] { values_.sum(); });
}

TEST_F(SimOrder, AnEventOrders) {
  on(first_, [&] { values_.fill_(1); });
  order(first_, second_);
  on(second_, [&] { values_.add_(1); });
  order(second_, first_);
  on(first_, [&] { EXPECT_EQ(values_.sum().item<float>(), 128); });
}

TEST_F(SimOrder, AnEventThatWasRecordedTooEarlyDoesNot) {
  c10::Event event(kSim);
  event.record(first_);
  on(first_, [&] { values_.fill_(1); });
  event.block(second_);
  EXPECT_THROW(on(second_, [&] { values_.add_(1); }), Error);
}

TEST_F(SimOrder, OrderGoesOnThroughAThirdStream) {
  const c10::Stream third = guard().getNewStream(device());
  on(first_, [&] { values_.fill_(1); });
  order(first_, third);
  order(third, second_);
  on(second_, [&] { values_.add_(1); });
}

TEST_F(SimOrder, ColumnsSideBySideDoNotTouch) {
  on(first_, [&] { values_.slice(1, 0, 8, 2).fill_(1); });
  on(second_, [&] { values_.slice(1, 1, 8, 2).fill_(2); });
  EXPECT_THROW(on(second_, [&] { values_.select(1, 4).fill_(3); }), Error);
}

TEST_F(SimOrder, ADelayShowsWhatARaceGives) {
  settings().longest_delay = std::chrono::milliseconds(20);
  on(first_, [&] { values_.fill_(1); });
  order(first_, second_);
  on(second_, [&] { EXPECT_EQ(values_.sum().item<float>(), 64); });
}

TEST_F(SimOrder, TheHostOrdersByWaiting) {
  on(first_, [&] { values_.fill_(1); });
  first_.synchronize();
  on(second_, [&] { values_.add_(1); });
  c10::Event event(kSim);
  event.record(second_);
  event.synchronize();
  on(first_, [&] { values_.add_(1); });
}

TEST_F(SimOrder, AskingDoesAsSoonAsTheAnswerIsYes) {
  on(first_, [&] { values_.fill_(1); });
  while (!first_.query()) std::this_thread::yield();
  on(second_, [&] { values_.add_(1); });
}

TEST_F(SimOrder, AnotherHostThreadsWaitIsNoneOfThisOne) {
  on(first_, [&] { values_.fill_(1); });
  std::atomic<bool> has_waited{false};
  std::atomic<bool> ends{false};
  std::thread other([&] {
    first_.synchronize();
    has_waited = true;
    while (!ends) std::this_thread::yield();
  });
  while (!has_waited) std::this_thread::yield();
  EXPECT_THROW(on(second_, [&] { values_.add_(1); }), Error);
  ends = true;
  other.join();
}

TEST_F(SimOrder, ThreadsLearnFromWhomTheyJoin) {
  on(first_, [&] { values_.fill_(1); });
  std::thread([&] { first_.synchronize(); }).join();
  on(second_, [&] { values_.add_(1); });
}

TEST_F(SimOrder, ThreadsBeginWithWhatIsKnownToWhoStartsThem) {
  on(first_, [&] { values_.fill_(1); });
  first_.synchronize();
  std::thread([&] { on(second_, [&] { values_.add_(1); }); }).join();
}

TEST_F(SimOrder, ThreadsLearnThroughMutexesAndConditions) {
  std::mutex mutex;
  std::condition_variable changed;
  bool has_waited = false;
  std::thread other([&] {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return has_waited; });
    on(second_, [&] { values_.add_(1); });
  });
  on(first_, [&] { values_.fill_(1); });
  first_.synchronize();
  {
    const std::lock_guard lock(mutex);
    has_waited = true;
  }
  changed.notify_all();
  other.join();
}

TEST_F(SimOrder, MemoryThatAnotherStreamUsesMustNotBeFreed) {
  {
    const Tensor made = torch::ones({64}, device());
    order(guard().getStream(device()), second_);
    on(second_, [&] { made.sum(); });
  }
  EXPECT_THAT(message_of<Error>([] { torch::ones({1}, device()); }),
              AllOf(HasSubstr("a block of 256 bytes of stream 0 is freed, and nothing orders that after sum reads"),
                    HasSubstr("record_stream() or a wait is missing")));
}

TEST_F(SimOrder, MemoryIsFreedWhenTheStreamsItWasRecordedOnAreOver) {
  settings().longest_delay = std::chrono::milliseconds(30);
  const std::size_t before = bytes_in_use(0);
  {
    Tensor made = torch::ones({64}, device());
    order(guard().getStream(device()), second_);
    on(second_, [&] { made.sum(); });
    made.record_stream(second_);
  }
  EXPECT_GE(bytes_in_use(0), before + 256);
  synchronise();
  EXPECT_EQ(bytes_in_use(0), before);
}

TEST_F(SimOrder, MemoryMayBeFreedBehindAWait) {
  {
    const Tensor made = torch::ones({64}, device());
    order(guard().getStream(device()), second_);
    on(second_, [&] { made.sum(); });
    order(second_, guard().getStream(device()));
  }
  torch::ones({1}, device());
}

}  // namespace
}  // namespace tessera::testing::sim
