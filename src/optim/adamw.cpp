#include <tessera/core/error.h>
#include <tessera/optim/adamw.h>
#include <tessera/shard/trained_memory.h>

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adamw.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tessera::optim {

/// The arguments of one call of the fused kernel: parameters of one device and dtype, with their gradients and states.
class FusedBatch {
 public:
  /// Which step of a parameter this is, if all were made.
  struct Step {
    std::int64_t number;
    std::vector<const LateNumbers*> undecided;  // of the steps before; those that were not made do not count

    auto operator<=>(const Step&) const = default;
  };

  /// Creates the tensors that `state` lacks. Requires: gradient and parameter are dense, of one dtype and device.
  void add(const at::Tensor& parameter, const at::Tensor& gradient, torch::optim::AdamWParamState& state,
           const Step& step, bool amsgrad);
  /// Elements of one that lies elsewhere, and of what is kept for it there.
  void add(const shard::TrainedMemory::Piece& piece, const Step& step);
  /// With `found`: nothing changes if its first number is 1.
  void run(const torch::optim::AdamWOptions& options, const LateNumbers* found);

 private:
  const at::Tensor& step_tensor(const Step& step, const at::Device& device);

  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> averages_;
  std::vector<at::Tensor> squares_;
  std::vector<at::Tensor> greatest_squares_;
  std::vector<at::Tensor> steps_;
  std::map<Step, at::Tensor> step_tensors_;                     // most parameters share one
  std::vector<std::pair<at::Tensor, at::Tensor>> write_backs_;  // a parameter with gaps, and the copy that is stepped
};

namespace {

at::Tensor first_of(const LateNumbers& numbers, const at::Device& device) {
  return numbers.on_device().select(0, 0).to(device, at::kFloat, /*non_blocking=*/true);
}

/// Copies the tensor if its layout differs: the kernel processes memory from the first element to the last and ignores
/// strides.
at::Tensor laid_out_like(const at::Tensor& parameter, const at::Tensor& tensor) {
  const bool same_order =
      tensor.strides() == parameter.strides() || (tensor.is_contiguous() && parameter.is_contiguous());
  const bool fits =
      same_order && tensor.scalar_type() == parameter.scalar_type() && tensor.device() == parameter.device();
  return fits ? tensor : at::empty_like(parameter).copy_(tensor);
}

at::Tensor state_like(const at::Tensor& parameter, const at::Tensor& state) {
  if (!state.defined()) return at::zeros_like(parameter);
  if (state.sizes() != parameter.sizes()) {
    std::ostringstream fault;
    fault << "AdamW: expected a state of shape " << parameter.sizes() << ", that of its parameter, found "
          << state.sizes() << "; it was saved by another model";
    throw ConfigError(fault.str());
  }
  return laid_out_like(parameter, state);
}

}  // namespace

void FusedBatch::add(const at::Tensor& parameter, const at::Tensor& gradient, torch::optim::AdamWParamState& state,
                     const Step& step, bool amsgrad) {
  at::Tensor stepped = parameter;
  if (!parameter.is_non_overlapping_and_dense()) {
    stepped = at::empty_like(parameter).copy_(parameter);
    write_backs_.emplace_back(parameter, stepped);
  }
  state.exp_avg(state_like(stepped, state.exp_avg()));
  state.exp_avg_sq(state_like(stepped, state.exp_avg_sq()));
  if (amsgrad) state.max_exp_avg_sq(state_like(stepped, state.max_exp_avg_sq()));

  parameters_.push_back(stepped);
  gradients_.push_back(laid_out_like(stepped, gradient));
  averages_.push_back(state.exp_avg());
  squares_.push_back(state.exp_avg_sq());
  if (amsgrad) greatest_squares_.push_back(state.max_exp_avg_sq());
  steps_.push_back(step_tensor(step, parameter.device()));
}

void FusedBatch::add(const shard::TrainedMemory::Piece& piece, const Step& step) {
  parameters_.push_back(piece.parameter);
  gradients_.push_back(piece.gradient);
  averages_.push_back(piece.states[0]);
  squares_.push_back(piece.states[1]);
  if (piece.states.size() > 2) greatest_squares_.push_back(piece.states[2]);
  steps_.push_back(step_tensor(step, piece.parameter.device()));
}

const at::Tensor& FusedBatch::step_tensor(const Step& step, const at::Device& device) {
  at::Tensor& tensor = step_tensors_[step];
  if (tensor.defined()) return tensor;
  tensor = at::full({}, step.number, at::TensorOptions(at::kFloat).device(device));
  for (const LateNumbers* const found : step.undecided) tensor.sub_(first_of(*found, device));
  return tensor;
}

void FusedBatch::run(const torch::optim::AdamWOptions& options, const LateNumbers* found) {
  const auto& [beta1, beta2] = options.betas();
  std::optional<at::Tensor> skips;
  if (found) skips = first_of(*found, parameters_.front().device());
  at::_fused_adamw_(parameters_, gradients_, averages_, squares_, greatest_squares_, steps_, options.lr(), beta1, beta2,
                    options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false,
                    /*grad_scale=*/std::nullopt, skips);
  for (auto& [parameter, stepped] : write_backs_) parameter.copy_(stepped);
}

}  // namespace tessera::optim

// Note [Where a vector ends]
// The kernel processes full vector registers and then the remaining elements one by one, and the two round differently.
// So an element's bits depend on where vectors end: at the end of its tensor and, with several threads, at the end of
// each thread's piece. Code that cuts parameters and needs the bits of the whole must cut at multiples of a vector and
// keep the number of threads. What is kept elsewhere comes in pieces that are cut so; threads cut at multiples of a
// cache line, so their number does not matter there.

namespace tessera::optim {
namespace {

using torch::optim::AdamWParamState;

void check_options(const AdamWOptions& options, const std::string& place) {
  std::ostringstream faults;
  const auto check = [&](bool holds, const char* what, double found) {
    if (!holds) faults << (faults.tellp() > 0 ? "\n" : "") << "AdamW: " << place << ": " << what << ", found " << found;
  };
  const auto& [beta1, beta2] = options.betas();
  check(options.lr() >= 0, "the learning rate must not be negative", options.lr());
  check(options.eps() >= 0, "eps must not be negative", options.eps());
  check(beta1 >= 0 && beta1 < 1, "the first beta must be at least 0 and below 1", beta1);
  check(beta2 >= 0 && beta2 < 1, "the second beta must be at least 0 and below 1", beta2);
  check(options.weight_decay() >= 0, "the weight decay must not be negative", options.weight_decay());
  if (faults.tellp() > 0) throw ConfigError(faults.str());
}

[[noreturn]] void refuse(const at::Tensor& parameter, std::size_t index, std::size_t group, const std::string& why) {
  std::ostringstream text;
  text << "AdamW: parameter " << index << " of group " << group << ", " << parameter.scalar_type() << " "
       << parameter.sizes() << ": " << why;
  throw ConfigError(text.str());
}

void check_parameter(const at::Tensor& parameter, std::size_t index, std::size_t group) {
  if (parameter.layout() != at::kStrided || !parameter.is_floating_point()) {
    refuse(parameter, index, group, "expected a dense parameter of real numbers; train complex ones as pairs of real");
  }
}

void check_gradient(const at::Tensor& parameter, std::size_t index, std::size_t group) {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.layout() != at::kStrided) {
    refuse(parameter, index, group,
           "its gradient is sparse; make the layer with sparse(false), or use another optimizer");
  }
  if (gradient.scalar_type() != parameter.scalar_type() || gradient.device() != parameter.device() ||
      gradient.sizes() != parameter.sizes()) {
    std::ostringstream why;
    why << "expected a gradient of the same shape, dtype and device, found " << gradient.scalar_type() << " "
        << gradient.sizes() << " on " << gradient.device() << "; convert it before the step";
    refuse(parameter, index, group, why.str());
  }
}

using Place = std::tuple<c10::DeviceType, c10::DeviceIndex, c10::ScalarType>;

Place place_of(const at::Tensor& tensor) {
  return {tensor.device().type(), tensor.device().index(), tensor.scalar_type()};
}

const AdamWOptions& options_of(const torch::optim::OptimizerParamGroup& group) {
  return static_cast<const AdamWOptions&>(group.options());
}

}  // namespace

AdamW::AdamW(const std::vector<torch::optim::OptimizerParamGroup>& param_groups, const AdamWOptions& defaults)
    : Optimizer(param_groups, std::make_unique<AdamWOptions>(defaults)) {
  check_options(defaults, "the defaults");
  for (std::size_t group = 0; group < param_groups_.size(); ++group) {
    check_options(options_of(param_groups_[group]), "group " + std::to_string(group));
    const auto& parameters = param_groups_[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) check_parameter(parameters[i], i, group);
  }
}

AdamW::AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& defaults)
    : AdamW(std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup(std::move(parameters))},
            defaults) {}

void AdamW::check_parameters() const {
  for (std::size_t group = 0; group < param_groups_.size(); ++group) {
    const auto& parameters = param_groups_[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].grad().defined()) continue;
      check_parameter(parameters[i], i, group);
      check_gradient(parameters[i], i, group);
    }
  }
}

/// The parameters of a group that one memory keeps elsewhere.
struct AdamW::KeptElsewhere {
  shard::TrainedMemory::Stepped stepped;
  std::vector<FusedBatch::Step> steps;

  void add(shard::TrainedMemory& memory, const at::Tensor& parameter, AdamWParamState& state,
           const AdamWOptions& options, const FusedBatch::Step& step) {
    state.exp_avg(memory.keep_state(parameter, 0, state.exp_avg()));
    state.exp_avg_sq(memory.keep_state(parameter, 1, state.exp_avg_sq()));
    if (options.amsgrad()) state.max_exp_avg_sq(memory.keep_state(parameter, 2, state.max_exp_avg_sq()));
    stepped.trained.push_back(parameter);
    stepped.states.push_back({state.exp_avg(), state.exp_avg_sq()});
    if (options.amsgrad()) stepped.states.back().push_back(state.max_exp_avg_sq());
    steps.push_back(step);
  }
  void run(shard::TrainedMemory& memory, const AdamWOptions& options, const LateNumbers* found) const {
    memory.step(stepped, [&](const shard::TrainedMemory::Piece& piece) {
      FusedBatch batch;
      batch.add(piece, steps[piece.index]);
      batch.run(options, found);
    });
  }
};

void AdamW::step_all(const LateNumbers* found) {
  const at::NoGradGuard no_grad;
  check_parameters();  // before any is changed
  Times times;
  for (const auto& group : param_groups_) {
    const AdamWOptions& options = options_of(group);
    std::map<Place, FusedBatch> batches;
    std::map<std::shared_ptr<shard::TrainedMemory>, KeptElsewhere> elsewhere;
    std::unordered_set<const void*> seen;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      void* const key = parameter.unsafeGetTensorImpl();
      auto& held = state_[key];
      if (!held) held = std::make_unique<AdamWParamState>();
      auto& state = static_cast<AdamWParamState&>(*held);
      FusedBatch::Step step{state.step() + ++times[key], {}};
      for (const Undecided& earlier : undecided_) {
        const auto made = earlier.times.find(key);
        if (made == earlier.times.end()) continue;
        step.number += made->second;
        step.undecided.insert(step.undecided.end(), static_cast<std::size_t>(made->second), &earlier.found);
      }
      if (const auto memory = shard::trained_memory_of(parameter)) {
        elsewhere[memory].add(*memory, parameter, state, options, step);
      } else {
        batches[place_of(parameter)].add(parameter, parameter.grad(), state, step, options.amsgrad());
      }
    }
    for (auto& [memory, kept] : elsewhere) kept.run(*memory, options, found);
    for (auto& [place, batch] : batches) batch.run(options, found);
  }
  if (found) {
    undecided_.push_back({*found, std::move(times)});
  } else {
    count(times);
  }
}

at::Tensor AdamW::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  settle();
  step_all(nullptr);
  return loss;
}

void AdamW::step_unless(const LateNumbers& found) {
  constexpr std::size_t kMostUndecided = 4;  // so far a host may run ahead
  while (!undecided_.empty() && (undecided_.front().found.are_here() || undecided_.size() >= kMostUndecided)) {
    decide();
  }
  step_all(&found);
}

void AdamW::settle() {
  while (!undecided_.empty()) decide();
}

void AdamW::decide() {
  const Undecided oldest = std::move(undecided_.front());
  undecided_.pop_front();
  if (oldest.found.values().front() == 0) count(oldest.times);
}

void AdamW::count(const Times& times) {
  for (const auto& [parameter, number] : times) {
    const auto found = state_.find(parameter);
    if (found == state_.end()) continue;
    auto& state = static_cast<AdamWParamState&>(*found->second);
    state.step(state.step() + number);
  }
}

void AdamW::save(torch::serialize::OutputArchive& archive) const {
  const_cast<AdamW*>(this)->settle();  // NOLINT(cppcoreguidelines-pro-type-const-cast): what is saved does not change
  torch::optim::serialize<AdamWParamState, AdamWOptions>(archive, *this);
}

void AdamW::load(torch::serialize::InputArchive& archive) {
  settle();
  torch::optim::serialize<AdamWParamState, AdamWOptions>(archive, *this);
}

}  // namespace tessera::optim
