#pragma once

#include <tessera/comm/world.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/schedule/simulation.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace tessera::testing {

/// How long the operations of a stage take. Long, because a core that has slept is cold: what the runtime does between
/// two operations takes it 0.6 ms instead of the 0.3 ms behind stages of 2 ms. A core that computes a stage is not.
struct TimedCosts {
  std::chrono::microseconds forward{40000};
  std::chrono::microseconds backward_input{40000};
  std::chrono::microseconds backward_weight{40000};

  ScheduleCosts in_seconds() const;
};

struct TimedStep {
  double seconds = 0;         ///< of the slowest rank
  std::vector<int> num_live;  ///< of each rank: the most activations that were alive at once
};

/// A real pipeline whose stages take a set time and no core, so that there may be more ranks than cores: a stage is one
/// product with a weight, and each of its three products (of the forward, of the input's gradient and of the weight's)
/// sleeps. Requires: each rank is one thread, the same for all calls.
class TimedPipeline {
 public:
  TimedPipeline(World world, const std::string& schedule, int num_micro_batches, TimedCosts costs);
  ~TimedPipeline();
  TimedPipeline(const TimedPipeline&) = delete;
  TimedPipeline& operator=(const TimedPipeline&) = delete;

  /// Collective.
  TimedStep step();
  PipelineSchedule schedule() const;
  /// Whether this process may have a core before others; where it may not, what they do is measured too.
  bool gets_a_core_at_once() const;

 private:
  class Stages;
  class Clock;

  World world_;
  int num_micro_batches_;
  std::shared_ptr<Stages> model_;
  Pipeline pipe_;
  std::unique_ptr<Clock> clock_;
};

/// Simulated: what the step would take if nothing but the stages took time, and the activations of each rank.
TimedStep simulated(const PipelineSchedule& schedule, const TimedCosts& costs);

}  // namespace tessera::testing
