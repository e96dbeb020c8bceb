#include "pipeline/timed.h"

#include <tessera/schedule/check_schedule.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/nn/modules/container/modulelist.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <ctime>
#include <utility>

namespace tessera::testing {
namespace {

// Three numbers that tell the products of a stage apart by their sizes.
constexpr std::int64_t kSamples = 3;
constexpr std::int64_t kInputs = 4;
constexpr std::int64_t kOutputs = 5;

/// The values of a stage: as many as it got.
struct TimedStage : torch::nn::Module {
  TimedStage()
      : scale(register_parameter("scale", torch::ones({kInputs}))),
        weight(register_parameter("weight", torch::ones({kOutputs, kInputs}))) {}

  /// The factor of the product is a tensor of the stage's own, and has a gradient on the first stage too.
  at::Tensor forward(const at::Tensor& x) const { return at::linear(x * scale, weight).narrow(1, 0, kInputs); }

  at::Tensor scale;
  at::Tensor weight;
};

timespec after(timespec time, std::chrono::nanoseconds duration) {
  constexpr long kSecond = 1'000'000'000;
  const long nanoseconds = time.tv_nsec + static_cast<long>(duration.count());
  return {time.tv_sec + nanoseconds / kSecond, nanoseconds % kSecond};
}

}  // namespace

ScheduleCosts TimedCosts::in_seconds() const {
  const auto seconds = [](std::chrono::microseconds time) {
    return std::vector{std::chrono::duration<double>(time).count()};
  };
  return ScheduleCosts()
      .forward(seconds(forward))
      .backward_input(seconds(backward_input))
      .backward_weight(seconds(backward_weight));
}

class TimedPipeline::Stages : public torch::nn::Module {
 public:
  explicit Stages(int num_stages) {
    for (int i = 0; i < num_stages; ++i) layers_->push_back(std::make_shared<TimedStage>());
    register_module("layers", layers_);
  }

  at::Tensor loss(at::Tensor x) const {
    for (const auto& layer : *layers_) x = layer->as<TimedStage>()->forward(x);
    return x.mean();
  }

 private:
  torch::nn::ModuleList layers_;
};

namespace {

/// While it exists, this thread and those that it starts get a core as soon as they can run, where this process may ask
/// for that. They sleep nearly all of the time; what others do on this machine would be measured instead.
class GetsACoreAtOnce {
 public:
  GetsACoreAtOnce() {
    pthread_getschedparam(pthread_self(), &policy_, &before_);
    const sched_param first{.sched_priority = 1};
    gets_it_ = pthread_setschedparam(pthread_self(), SCHED_FIFO, &first) == 0;
    prctl(PR_SET_TIMERSLACK, 1);
  }
  ~GetsACoreAtOnce() { pthread_setschedparam(pthread_self(), policy_, &before_); }
  GetsACoreAtOnce(const GetsACoreAtOnce&) = delete;
  GetsACoreAtOnce& operator=(const GetsACoreAtOnce&) = delete;

  bool gets_it() const { return gets_it_; }

 private:
  bool gets_it_ = false;
  int policy_ = 0;
  sched_param before_{};
};

}  // namespace

/// Makes the products of this thread take their time, and counts the factors that wait for the gradient of a weight.
class TimedPipeline::Clock {
 public:
  explicit Clock(TimedCosts costs) : costs_(costs) {
    current() = this;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&begin).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~Clock() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  bool gets_a_core_at_once() const { return priority_.gets_it(); }
  int take_most_alive() { return static_cast<int>(std::exchange(most_alive_, 0)); }

 private:
  static Clock*& current() {
    thread_local Clock* clock = nullptr;
    return clock;
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    if (current() == nullptr || std::string_view(call.name()) != "aten::mm") return nullptr;
    const at::Tensor& left = call.inputs()[0].toTensor();
    const at::Tensor& right = call.inputs()[1].toTensor();
    if (left.is_cpu() && right.is_cpu()) current()->take_time(left, right);
    return nullptr;
  }

  void take_time(const at::Tensor& left, const at::Tensor& right) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    std::chrono::nanoseconds cost = costs_.backward_weight;  // the samples are what it adds up
    if (left.size(0) == kSamples && right.size(1) == kOutputs) {
      cost = costs_.forward;
      alive_.push_back(left.storage().getWeakStorageImpl());
      std::erase_if(alive_, [](const auto& one) { return one.expired(); });
      most_alive_ = std::max(most_alive_, alive_.size());
    } else if (left.size(0) == kSamples && right.size(1) == kInputs) {
      cost = costs_.backward_input;
    }
    const timespec end = after(now, cost);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr) != 0) {
    }
  }

  TimedCosts costs_;
  GetsACoreAtOnce priority_;
  at::CallbackHandle handle_ = 0;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> alive_;
  std::size_t most_alive_ = 0;
};

TimedPipeline::TimedPipeline(World world, const std::string& schedule, int num_micro_batches, TimedCosts costs)
    : world_(std::move(world)),
      num_micro_batches_(num_micro_batches),
      model_(std::make_shared<Stages>(world_.size() * default_num_chunks(*pipeline_schedule_kind(schedule)))),
      pipe_(pipeline(model_, world_, PipelineOptions().schedule(schedule))),
      clock_(std::make_unique<Clock>(costs)) {}

TimedPipeline::~TimedPipeline() = default;

PipelineSchedule TimedPipeline::schedule() const { return pipe_.schedule(num_micro_batches_); }

bool TimedPipeline::gets_a_core_at_once() const { return clock_->gets_a_core_at_once(); }

TimedStep TimedPipeline::step() {
  const at::Tensor batch = at::ones({kSamples * num_micro_batches_, kInputs});
  clock_->take_most_alive();
  world_.comm().barrier();
  const auto start = std::chrono::steady_clock::now();
  pipe_.step(batch, num_micro_batches_, [this](const at::Tensor& micro) { return model_->loss(micro); });
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  const at::Tensor mine = at::tensor({taken.count(), static_cast<double>(clock_->take_most_alive())}, at::kDouble);
  const at::Tensor all = world_.comm().all_gather(mine.view({1, 2}));
  TimedStep step;
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
    step.seconds = std::max(step.seconds, all[rank][0].item<double>());
    step.num_live.push_back(static_cast<int>(all[rank][1].item<double>()));
  }
  return step;
}

TimedStep simulated(const PipelineSchedule& schedule, const TimedCosts& costs) {
  TimedStep step;
  step.seconds = simulate(schedule, costs.in_seconds()).makespan;
  for (const PeakActivations& one : check_schedule(schedule).peaks) step.num_live.push_back(one.until_weight);
  return step;
}

}  // namespace tessera::testing
