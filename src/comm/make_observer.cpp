#include <tessera/comm/make_observer.h>
#include <tessera/core/error.h>
#include <tessera/flight/clock.h>

#include <ATen/Functions.h>

#include <bit>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/clock_comparison.h"
#include "comm/device/event_device.h"
#include "comm/world_context.h"

namespace tessera::comm {
namespace {

constexpr int kNumQuestions = 16;

at::Tensor numbers(std::int64_t count) { return at::empty({count}, at::kLong); }

observe::ClockOffset ask(const Communicator& ranks, int parent, const ReadClock& now_ns) {
  std::vector<observe::RoundTrip> trips;
  const at::Tensor question = at::zeros({1}, at::kLong);
  at::Tensor answer = numbers(1);
  for (int i = 0; i < kNumQuestions; ++i) {
    observe::RoundTrip trip;
    trip.asked_ns = now_ns();
    ranks.send(question, parent);
    ranks.recv(answer, parent);
    trip.answered_ns = now_ns();
    trip.other_ns = answer.item<std::int64_t>();
    trips.push_back(trip);
  }
  at::Tensor parents = numbers(2);
  ranks.recv(parents, parent);
  const auto* values = parents.const_data_ptr<std::int64_t>();
  return observe::estimate_offset(trips) + observe::ClockOffset{values[0], values[1]};
}

void answer(const Communicator& ranks, int child, const observe::ClockOffset& own, const ReadClock& now_ns) {
  at::Tensor question = numbers(1);
  at::Tensor time = numbers(1);
  for (int i = 0; i < kNumQuestions; ++i) {
    ranks.recv(question, child);
    time.fill_(now_ns());
    ranks.send(time, child);
  }
  at::Tensor offset = numbers(2);
  offset[0] = own.offset_ns;
  offset[1] = own.error_ns;
  ranks.send(offset, child);
}

}  // namespace

observe::ClockOffset compare_clocks(const Communicator& ranks, const ReadClock& now_ns) {
  const auto rank = static_cast<unsigned>(ranks.rank());
  const auto size = static_cast<unsigned>(ranks.size());
  // The parent's rank is this rank without its lowest set bit. A child's rank has one more bit set, below that one.
  const unsigned lowest = rank == 0 ? std::bit_ceil(size) : rank & (~rank + 1);
  observe::ClockOffset offset;
  if (rank != 0) offset = ask(ranks, static_cast<int>(rank - lowest), now_ns);
  for (unsigned bit = lowest >> 1; bit > 0; bit >>= 1) {
    if (rank + bit < size) answer(ranks, static_cast<int>(rank + bit), offset, now_ns);
  }
  return offset;
}

}  // namespace tessera::comm

namespace tessera {

std::unique_ptr<observe::Observer> make_observer(const World& world, const ObserveOptions& options,
                                                 observe::RunDescription run, std::optional<at::Device> device) {
  run.rank = world.rank();
  run.num_ranks = world.size();
  if (!device) device = comm::device_in_use();
  auto observed = device && !device->is_cpu() ? comm::make_event_device(*device) : nullptr;
  auto observer = std::make_unique<observe::Observer>(options, std::move(run), std::move(observed));
  if (!observer->tracer()) return observer;
  // First the clocks, so that the comparison itself is not in the trace.
  compare_clocks(world, *observer);
  if (!world.state().context->recorder->listen(observer->tracer())) {
    throw ConfigError("rank " + std::to_string(world.rank()) +
                      " is being traced by another observer; close and destroy that one first");
  }
  return observer;
}

void compare_clocks(const World& world, observe::Observer& observer) {
  if (!observer.tracer()) return;
  if (observer.device()) observer.device()->compare_clocks();
  if (world.launcher() == "fake") return;
  observer.tracer()->add_clock(comm::compare_clocks(world.comm(), flight::now_ns));
}

}  // namespace tessera
