#include <tessera/core/error.h>
#include <tessera/train/loader.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "support/error_message.h"

namespace tessera::testing {
namespace {

using Samples = std::vector<std::int64_t>;

Sampler a_sampler(std::int64_t num_samples = 40) {
  return Sampler(num_samples, 0, 1, SamplerOptions().seed(3).global_batch(4));
}

std::vector<Samples> batches_of(Sampler sampler) {
  std::vector<Samples> batches;
  while (const auto batch = sampler.next()) batches.push_back(batch->samples);
  return batches;
}

TEST(Loader, KeepsTheOrderWithAnyNumberOfThreads) {
  for (const std::int64_t num_threads : {1, 3}) {
    // Later batches are made more quickly than earlier ones.
    std::atomic<int> number = 0;
    const auto make = [&](const SampleBatch& part) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5 * (2 - number++ % 3)));
      return part.samples;
    };
    Loader loader(a_sampler(), make, LoaderOptions().num_threads(num_threads).prefetch(6));
    std::vector<Samples> seen;
    for (const Samples& batch : loader) seen.push_back(batch);
    EXPECT_EQ(seen, batches_of(a_sampler())) << num_threads;
  }
}

TEST(Loader, GoesOnWithTheNextEpoch) {
  Loader loader(a_sampler(), [](const SampleBatch& part) { return part.epoch; });
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    int num_batches = 0;
    for (const std::int64_t found : loader) {
      EXPECT_EQ(found, epoch);
      ++num_batches;
    }
    EXPECT_EQ(num_batches, 10);
  }
}

TEST(Loader, TellsTheStateOfWhatWasConsumedNotOfWhatLiesReady) {
  std::atomic<int> num_made = 0;
  const auto make = [&](const SampleBatch& part) {
    ++num_made;
    return part.samples;
  };
  Loader loader(a_sampler(), make, LoaderOptions().prefetch(5));
  EXPECT_EQ(loader.state().consumed, 0);
  Samples third;
  for (int i = 0; i < 3; ++i) third = *loader.next();
  while (num_made < 8) std::this_thread::yield();  // five lie ready
  EXPECT_EQ(loader.state().consumed, 12);
  Sampler resumed = a_sampler();
  resumed.restore(loader.state());
  EXPECT_EQ(resumed.next()->samples, *loader.next()) << "the fourth";
  EXPECT_EQ(third, batches_of(a_sampler())[2]);
}

TEST(Loader, MakesNoMoreThanItMayKeep) {
  std::atomic<int> num_made = 0;
  Loader loader(
      a_sampler(), [&](const SampleBatch& part) { return ++num_made, part.samples; },
      LoaderOptions().num_threads(2).prefetch(3));
  while (num_made < 3) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(num_made, 3);
  loader.next();
  while (num_made < 4) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(num_made, 4);
}

TEST(Loader, ThrowsWhatTheFunctionThrewInItsPlace) {
  for (const std::int64_t num_threads : {1, 3}) {
    const auto make = [](const SampleBatch& part) {
      if (part.first == 8) throw StorageError("the disk is gone");
      return part.first;
    };
    Loader loader(a_sampler(), make, LoaderOptions().num_threads(num_threads));
    EXPECT_EQ(loader.next(), 0);
    EXPECT_EQ(loader.next(), 4);
    EXPECT_EQ(message_of<StorageError>([&] { loader.next(); }), "the disk is gone");
    EXPECT_EQ(message_of<StorageError>([&] { loader.next(); }), "the disk is gone") << "it does not go on";
    EXPECT_EQ(loader.state().consumed, 8);
  }
}

TEST(Loader, UsesAsManyThreadsAsAskedFor) {
  std::mutex mutex;
  std::condition_variable all_there;
  std::set<std::thread::id> threads;
  const auto make = [&](const SampleBatch& part) {
    std::unique_lock lock(mutex);
    threads.insert(std::this_thread::get_id());
    all_there.notify_all();
    all_there.wait_for(lock, std::chrono::seconds(20), [&] { return threads.size() == 3; });
    return part.first;
  };
  Loader loader(a_sampler(), make, LoaderOptions().num_threads(3));
  loader.next();
  const std::lock_guard lock(mutex);
  EXPECT_EQ(threads.size(), 3U);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
}

TEST(Loader, StopsInTheMiddle) {
  std::atomic<int> num_alive = 0;
  struct Counted {
    explicit Counted(std::atomic<int>& count) : alive(&count) { ++*alive; }
    Counted(const Counted& other) : alive(other.alive) { ++*alive; }
    Counted(Counted&& other) noexcept : alive(other.alive) { ++*alive; }
    Counted& operator=(const Counted&) = delete;
    Counted& operator=(Counted&&) = delete;
    ~Counted() { --*alive; }
    std::atomic<int>* alive;
  };
  {
    Loader loader(a_sampler(), [&](const SampleBatch& /*part*/) { return Counted(num_alive); });
    loader.next();
    loader.stop();
    EXPECT_EQ(num_alive, 0) << "what lay ready is gone";
    expect_parts(message_of<ConfigError>([&] { loader.next(); }), {"after stop()"});
    loader.stop();
  }
  Loader left_alone(a_sampler(), [&](const SampleBatch& /*part*/) { return Counted(num_alive); });
}

TEST(Loader, GoesOnWhereAStateWasTaken) {
  const auto make = [](const SampleBatch& part) { return part.samples; };
  Loader first(a_sampler(), make);
  for (int i = 0; i < 13; ++i) first.next();  // into the second epoch
  const SamplerState state = first.state();
  Loader second(a_sampler(), make, LoaderOptions().num_threads(2));
  second.next();
  Sampler other(41, 0, 1, SamplerOptions().seed(3).global_batch(4));
  EXPECT_THROW(second.restore(other.state()), ConfigError);
  EXPECT_EQ(second.next(), batches_of(a_sampler())[1]) << "nothing has changed";
  second.restore(state);
  EXPECT_EQ(second.state(), state);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(second.next(), first.next());
  second.stop();
  second.restore(state);
  EXPECT_TRUE(second.next()) << "also after the end";
}

TEST(Loader, TellsHowLongItWasWaitedFor) {
  const auto make = [](const SampleBatch& part) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return part.first;
  };
  Loader loader(a_sampler(), make);
  EXPECT_EQ(loader.seconds_waited(), 0);
  for (int i = 0; i < 5; ++i) loader.next();
  EXPECT_GT(loader.seconds_waited(), 0.05);
}

TEST(Loader, RefusesNumbersBelowOne) {
  const auto make = [](const SampleBatch& part) { return part.first; };
  expect_parts(message_of<ConfigError>([&] { Loader(a_sampler(), make, LoaderOptions().num_threads(0).prefetch(-1)); }),
               {"num_threads is 0", "prefetch is -1"});
}

/// What has no tensors that a loader knows of. Where there is an accelerator: tests/device/pinned_loader_test.cpp.
struct Opaque {
  std::int64_t first = 0;
};
static_assert(!train::can_pin<Opaque>());
static_assert(!train::can_pin<std::vector<Opaque>>());
static_assert(!train::can_pin<std::shared_ptr<Samples>>());
static_assert(train::can_pin<Samples>());

TEST(Loader, RefusesToPinMemoryWithoutAnAccelerator) {
  const auto make = [](const SampleBatch& part) { return part.samples; };
  expect_parts(message_of<ConfigError>([&] { Loader(a_sampler(), make, LoaderOptions().pin_memory(true)); }),
               {"pin_memory is true", "no accelerator", "pin_memory(!world.device().is_cpu())"});
}

}  // namespace
}  // namespace tessera::testing
