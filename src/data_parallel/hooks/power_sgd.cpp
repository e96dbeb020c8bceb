#include <tessera/core/error.h>
#include <tessera/data_parallel/gradient_hooks.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "data_parallel/flat_parameters.h"
#include "data_parallel/hooks/average.h"
#include "data_parallel/hooks/power_sgd_state.h"

namespace tessera::data_parallel {
namespace {

std::int64_t columns_of(const at::Tensor& gradient) { return gradient.numel() / gradient.size(0); }

std::int64_t rank_of(const at::Tensor& gradient, const PowerSgdOptions& options) {
  return std::min({options.rank(), gradient.size(0), columns_of(gradient)});
}

bool pays(const at::Tensor& gradient, const PowerSgdOptions& options) {
  if (gradient.dim() < 2 || gradient.numel() == 0) return false;
  const auto thin = (gradient.size(0) + columns_of(gradient)) * rank_of(gradient, options);
  return static_cast<double>(thin) * options.min_compression() <= static_cast<double>(gradient.numel());
}

// Neighbouring seeds must not give related starts: the steps of SplitMix64 spread them.
std::uint64_t mixed(std::uint64_t seed, std::uint64_t more) {
  std::uint64_t value = seed + 0x9E3779B97F4A7C15ULL * (more + 1);
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31U);
}

// The next part of `whole` as a matrix; moves `begin` past it.
at::Tensor take(const at::Tensor& whole, std::int64_t& begin, std::int64_t num_rows, std::int64_t num_columns) {
  const std::int64_t length = num_rows * num_columns;
  begin += length;
  return whole.narrow(0, begin - length, length).view({num_rows, num_columns});
}

std::string right_name(std::size_t tensor) { return "right/" + std::to_string(tensor); }
std::string error_name(std::size_t tensor) { return "error/" + std::to_string(tensor); }

}  // namespace

PowerSgdState::PowerSgdState(const GradientBucket& bucket, const Communicator& comm, const PowerSgdOptions& options)
    : bucket_index_(bucket.index),
      seed_(options.seed()),
      gradient_options_(bucket.flat.options()),
      parameters_(bucket.parameters) {
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    shapes_.push_back(bucket.gradients[i].sizes().vec());
    if (pays(bucket.gradients[i], options)) {
      matrices_.emplace_back().tensor = i;
    } else {
      exact_.push_back(i);
    }
  }
  make_factors(bucket, comm, options);
  make_rest(bucket, comm);
  restart();
}

void PowerSgdState::make_factors(const GradientBucket& bucket, const Communicator& comm,
                                 const PowerSgdOptions& options) {
  std::int64_t num_left = 0;
  std::int64_t num_right = 0;
  for (const ThinMatrix& matrix : matrices_) {
    const at::Tensor& gradient = bucket.gradients[matrix.tensor];
    num_left += gradient.size(0) * rank_of(gradient, options);
    num_right += columns_of(gradient) * rank_of(gradient, options);
  }
  const auto computed = bucket.flat.options().dtype(compute_dtype(bucket.flat));
  lefts_ = comm.empty({num_left}, computed);
  rights_ = comm.empty({num_right}, computed);
  num_left = 0;
  num_right = 0;
  for (ThinMatrix& matrix : matrices_) {
    const at::Tensor& gradient = bucket.gradients[matrix.tensor];
    matrix.left = take(lefts_, num_left, gradient.size(0), rank_of(gradient, options));
    matrix.right = take(rights_, num_right, columns_of(gradient), rank_of(gradient, options));
    matrix.error = at::empty({gradient.size(0), columns_of(gradient)}, computed);
  }
}

void PowerSgdState::make_rest(const GradientBucket& bucket, const Communicator& comm) {
  std::int64_t length = 0;
  for (const std::size_t tensor : exact_) length += bucket.gradients[tensor].numel();
  rest_ = comm.empty({length}, bucket.flat.options());
}

bool PowerSgdState::serves(const GradientBucket& bucket) const {
  if (!same_tensors(bucket.parameters, parameters_) || bucket.gradients.size() != shapes_.size() ||
      bucket.flat.dtype() != gradient_options_.dtype() || bucket.flat.device() != gradient_options_.device()) {
    return false;
  }
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    if (bucket.gradients[i].sizes() != at::IntArrayRef(shapes_[i])) return false;
  }
  return true;
}

at::Tensor PowerSgdState::start_of(const ThinMatrix& matrix) const {
  const auto of_bucket = mixed(static_cast<std::uint64_t>(seed_), bucket_index_);
  auto generator = at::detail::createCPUGenerator(mixed(of_bucket, matrix.tensor));
  return at::randn(matrix.right.sizes(), generator, at::TensorOptions(matrix.right.scalar_type()));
}

void PowerSgdState::restart() {
  for (ThinMatrix& matrix : matrices_) {
    matrix.right.copy_(start_of(matrix));
    matrix.error.zero_();
  }
}

void PowerSgdState::restart_unless(const at::Tensor& finite) {
  for (ThinMatrix& matrix : matrices_) {
    if (!matrix.start.defined()) matrix.start = start_of(matrix).to(matrix.right.device());
    matrix.right.copy_(at::where(finite, matrix.right, matrix.start));
    matrix.error.masked_fill_(finite.logical_not(), 0);
  }
}

bool PowerSgdState::is_of(const std::vector<at::Tensor>& parameters) const {
  return same_tensors(parameters, parameters_);
}

std::map<std::string, at::Tensor> PowerSgdState::memory() const {
  std::map<std::string, at::Tensor> tensors;
  for (const ThinMatrix& matrix : matrices_) {
    tensors[right_name(matrix.tensor)] = matrix.right;
    tensors[error_name(matrix.tensor)] = matrix.error;
  }
  return tensors;
}

void PowerSgdState::recall(const BucketMemory& memory) const {
  for (const ThinMatrix& matrix : matrices_) {
    const auto right = memory.tensors.find(right_name(matrix.tensor));
    if (right == memory.tensors.end()) continue;
    matrix.right.copy_(right->second);
    matrix.error.copy_(memory.tensors.at(error_name(matrix.tensor)));
  }
}

std::string PowerSgdState::why_not(const BucketMemory& memory, const PowerSgdOptions& options) {
  for (std::size_t i = 0; i < memory.parameters.size(); ++i) {
    const at::Tensor parameter = as_real(memory.parameters[i]);
    const auto right = memory.tensors.find(right_name(i));
    if (right == memory.tensors.end()) continue;
    if (!pays(parameter, options)) return "a matrix travels exactly now that did not then";
    if (right->second.size(1) == rank_of(parameter, options)) continue;
    std::ostringstream text;
    text << "the rank of a matrix was " << right->second.size(1) << " and is " << rank_of(parameter, options);
    return text.str();
  }
  return "";
}

void PowerSgdState::collect_rest(const GradientBucket& bucket) {
  std::int64_t begin = 0;
  for (const std::size_t tensor : exact_) {
    const at::Tensor& gradient = bucket.gradients[tensor];
    rest_.narrow(0, begin, gradient.numel()).view(gradient.sizes()).copy_(gradient);
    begin += gradient.numel();
  }
}

void PowerSgdState::return_rest(const std::vector<at::Tensor>& gradients) const {
  std::int64_t begin = 0;
  for (const std::size_t tensor : exact_) {
    at::Tensor gradient = gradients[tensor];
    gradient.copy_(rest_.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
    begin += gradient.numel();
  }
}

}  // namespace tessera::data_parallel

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
      // QR gives an orthogonal matrix even for a left factor of zeros. So a gradient of zeros does not leave factors of
      // zeros for all later steps.
      matrix.left.copy_(std::get<0>(at::linalg_qr(matrix.left)));
      at::Tensor right = matrix.right;
      at::mm_out(right, matrix.error.t(), matrix.left);
      // Subtract this rank's share of the approximation, not the whole approximation: else the difference between this
      // rank's gradients and the others' would add up from step to step.
      if (options_.error_feedback()) at::Tensor(matrix.error).addmm_(matrix.left, right.t(), 1, -1);
    }
    count(state.rights());
    comm.all_reduce(state.rights());
    for (const ThinMatrix& matrix : state.matrices()) {
      at::Tensor gradient = gradients[matrix.tensor];
      gradient.copy_(at::mm(matrix.left, matrix.right.t()).view(gradient.sizes()));
    }
    // Values that are not finite must not stay in the errors. The factors are the same on all ranks, so all restart.
    const at::Tensor finite = state.rights().isfinite().all();
    if (state.rights().is_cpu()) {
      if (!finite.item<bool>()) state.restart();
    } else {
      state.restart_unless(finite);  // without a wait for the device
    }
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
