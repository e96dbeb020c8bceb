#include <tessera/core/error.h>
#include <tessera/data_parallel/gradient_hooks.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>

#include "data_parallel/hooks/average.h"
#include "data_parallel/hooks/loaded_memory.h"
#include "data_parallel/hooks/power_sgd_state.h"

namespace tessera {
namespace {

using data_parallel::PowerSgdState;
using data_parallel::ThinMatrix;

constexpr const char* kNumSteps = "num_steps";

class PowerSgdHook : public GradientHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options) : options_(options) {
    if (options.rank() < 1 || options.start_step() < 0 || options.min_compression() < 1) {
      throw ConfigError("PowerSGD needs a rank of at least 1, a start_step of at least 0 and a min_compression of at " +
                        std::string("least 1; found ") + std::to_string(options.rank()) + ", " +
                        std::to_string(options.start_step()) + " and " + std::to_string(options.min_compression()));
    }
  }

  std::string name() const override { return "powersgd"; }
  bool keeps_state() const override { return true; }
  bool save_memory(std::vector<BucketMemory>& buckets) const override;
  std::string load_memory(const std::vector<BucketMemory>& buckets) override;

  Finish start(const GradientBucket& bucket, const Communicator& comm) override {
    const at::NoGradGuard no_grad;
    if (num_steps_[bucket.index]++ < options_.start_step()) return start_exactly(bucket, comm);
    auto& state = states_[bucket.index];
    if (!state || !state->serves(bucket)) {
      state = std::make_shared<PowerSgdState>(bucket, comm, options_);
      if (const auto memory = loaded_.take(bucket)) state->recall(*memory);
    }
    if (state->matrices().empty()) return start_exactly(bucket, comm);
    Finish finish_rest = start_rest(*state, bucket, comm);
    for (const ThinMatrix& matrix : state->matrices()) {
      at::Tensor total = matrix.error;
      if (!options_.error_feedback()) total.zero_();
      total.add_(bucket.gradients[matrix.tensor].reshape(total.sizes()), 1.0 / bucket.divisor);
      at::Tensor left = matrix.left;
      at::mm_out(left, total, matrix.right);
    }
    count(state->lefts());
    return [this, state, work = comm.all_reduce_async(state->lefts()), finish_rest, bucket, comm]() mutable {
      const at::NoGradGuard no_grad_now;
      work.wait();
      finish(*state, bucket.gradients, comm);
      if (finish_rest) {
        finish_rest();
        state->return_rest(bucket.gradients);
      }
      return bucket.flat;
    };
  }

 private:
  Finish start_exactly(const GradientBucket& bucket, const Communicator& comm) {
    count(bucket.flat);
    return data_parallel::start_average(bucket.flat, bucket.divisor, comm);
  }

  // Null when there is none.
  Finish start_rest(PowerSgdState& state, const GradientBucket& bucket, const Communicator& comm) {
    if (state.rest().numel() == 0) return nullptr;
    state.collect_rest(bucket);
    count(state.rest());
    return data_parallel::start_average(state.rest(), bucket.divisor, comm);
  }

  void finish(PowerSgdState& state, const std::vector<at::Tensor>& gradients, const Communicator& comm) {
    for (const ThinMatrix& matrix : state.matrices()) {
      // Orthogonal also for a left factor of zeros: so a gradient of zeros does not end the approximation for ever.
      matrix.left.copy_(std::get<0>(at::linalg_qr(matrix.left)));
      at::Tensor right = matrix.right;
      at::mm_out(right, matrix.error.t(), matrix.left);
      // Minus this rank's share of the approximation, not minus the approximation: else what sets its gradients apart
      // from the others' would add up from step to step.
      if (options_.error_feedback()) at::Tensor(matrix.error).addmm_(matrix.left, right.t(), 1, -1);
    }
    count(state.rights());
    comm.all_reduce(state.rights());
    for (const ThinMatrix& matrix : state.matrices()) {
      at::Tensor gradient = gradients[matrix.tensor];
      gradient.copy_(at::mm(matrix.left, matrix.right.t()).view(gradient.sizes()));
    }
    // What is not finite must not live on in the errors. The factors are the same on all ranks, so all restart.
    if (!state.rights().isfinite().all().item<bool>()) state.restart();
  }

  PowerSgdOptions options_;
  std::map<std::size_t, std::int64_t> num_steps_;
  std::map<std::size_t, std::shared_ptr<PowerSgdState>> states_;
  data_parallel::LoadedMemory loaded_;
};

bool PowerSgdHook::save_memory(std::vector<BucketMemory>& buckets) const {
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const auto state = states_.find(i);
    if (const BucketMemory* const loaded = loaded_.find(i, buckets[i].parameters)) {
      buckets[i] = *loaded;
    } else if (state != states_.end() && state->second->is_of(buckets[i].parameters)) {
      buckets[i].tensors = state->second->memory();
    }
    const auto num_steps = num_steps_.find(i);
    if (num_steps != num_steps_.end()) buckets[i].tensors[kNumSteps] = at::full({1}, num_steps->second, at::kLong);
  }
  return true;
}

std::string PowerSgdHook::load_memory(const std::vector<BucketMemory>& buckets) {
  states_.clear();
  num_steps_.clear();
  loaded_.set({});
  for (const BucketMemory& bucket : buckets) {
    std::string why_not = PowerSgdState::why_not(bucket, options_);
    if (!why_not.empty()) return why_not;
  }
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const auto num_steps = buckets[i].tensors.find(kNumSteps);
    if (num_steps != buckets[i].tensors.end()) num_steps_[i] = num_steps->second.item<std::int64_t>();
  }
  loaded_.set(buckets);
  return "";
}

}  // namespace

std::shared_ptr<GradientHook> power_sgd_hook(const PowerSgdOptions& options) {
  return std::make_shared<PowerSgdHook>(options);
}

}  // namespace tessera
