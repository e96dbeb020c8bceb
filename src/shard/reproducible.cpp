#include <tessera/comm/communicator.h>
#include <tessera/core/digest.h>
#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/shard/exact_sum.h>
#include <tessera/shard/gradient_tree.h>
#include <tessera/shard/named_tensors.h>
#include <tessera/shard/refuse_modules.h>
#include <tessera/shard/reproducible.h>
#include <tessera/shard/tensor_bytes.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace tessera {
namespace {

/// Calls `check` with the options of every embedding of either kind.
template <class Check>
void for_each_embedding(const torch::nn::Module& model, const Check& check) {
  for (const auto& entry : model.named_modules()) {
    if (const auto* embedding = entry.value()->as<torch::nn::EmbeddingImpl>()) check(entry.key(), embedding->options);
    if (const auto* bag = entry.value()->as<torch::nn::EmbeddingBagImpl>()) check(entry.key(), bag->options);
  }
}

}  // namespace

void refuse_sparse_gradients(const torch::nn::Module& model) {
  for_each_embedding(model, [](const std::string& name, const auto& options) {
    if (!options.sparse()) return;
    throw ConfigError("the embedding \"" + name +
                      "\" makes sparse gradients, and shards have dense ones: build it with sparse(false)");
  });
}

void refuse_cut_buffers(const torch::nn::Module& model) {
  const NamedTensors buffers = buffers_of(model);
  for (std::size_t i = 0; i < buffers.tensors.size(); ++i) {
    if (!intercept::holds_part(buffers.tensors[i])) continue;
    throw ConfigError("the buffer " + buffers.names[i] +
                      " is cut by tensor parallelism, and copies or shards of the model "
                      "keep buffers whole: leave its layer out of the plan");
  }
}

void refuse_cut_models(const torch::nn::Module& model) {
  const NamedTensors state = state_of(model);
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    if (!intercept::holds_part(state.tensors[i]) || intercept::is_elsewhere(state.tensors[i])) continue;
    throw ConfigError(state.names[i] +
                      " is cut by tensor parallelism, which this way of training cannot be combined with: use "
                      "distribute() or fully_shard(), without reproducible(true)");
  }
}

void refuse_several_devices(const torch::nn::Module& model) {
  const NamedTensors state = here(state_of(model));
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    if (!state.tensors[i].is_meta()) continue;
    throw ConfigError(state.names[i] +
                      " is on meta, where tensors have no values that ranks could share: build the model on the CPU or "
                      "on this rank's device, with DeferredInit if it is large");
  }
  const NamedTensors parameters = here(parameters_of(model));
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    const at::Tensor& first = parameters.tensors.front();
    const at::Tensor& one = parameters.tensors[i];
    if (one.device() == first.device()) continue;
    throw ConfigError(parameters.names[i] + " is on " + one.device().str() + ", " + parameters.names.front() + " on " +
                      first.device().str() +
                      ": a rank trains its copy of the model on one device. Move the model to that, as with "
                      "model->to(device)");
  }
}

void refuse_renormalising_modules(const torch::nn::Module& model) {
  for_each_embedding(model, [](const std::string& name, const auto& options) {
    if (!options.max_norm()) return;
    throw ConfigError("the embedding \"" + name +
                      "\" has max_norm: its forward shortens the rows that it looks up, each rank those of its own "
                      "batch, and the ranks' weights would drift apart. Build it without, and after each step "
                      "call renorm_(norm_type, 0, max_norm) on its weight, under NoGradGuard and on every rank");
  });
}

at::Tensor tensor_on(c10::DataPtr bytes, std::int64_t num_elements, at::ScalarType dtype) {
  const c10::InferenceMode ordinary(false);
  const auto num_bytes = static_cast<std::size_t>(num_elements) * c10::elementSize(dtype);
  const auto options = at::TensorOptions(dtype).device(bytes.device());
  const c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), num_bytes,
                                                                   std::move(bytes), nullptr, false));
  return at::empty({0}, options).set_(storage, 0, {num_elements}, {1});
}

c10::DataPtr bytes_of(at::Tensor tensor) {
  const c10::Device device = tensor.device();
  auto kept = std::make_unique<at::Tensor>(std::move(tensor));
  void* const bytes = kept->mutable_data_ptr();
  return {bytes, kept.release(), [](void* context) { delete static_cast<at::Tensor*>(context); }, device};
}

std::uint64_t fingerprint_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return fingerprint_of(tensor.cpu());
  // Several independent sums: a single one would wait for the previous multiplication at every word.
  constexpr std::size_t kParts = 8;
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15U;
  std::array<std::uint64_t, kParts> sums{};
  for (std::size_t i = 0; i < kParts; ++i) sums[i] = kFactor * (i + 1);
  const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
  std::size_t left = tensor.nbytes();
  std::array<std::uint64_t, kParts> words{};
  for (; left > 0; left -= std::min(left, sizeof(words))) {
    if (left < sizeof(words)) words = {};
    std::memcpy(words.data(), bytes, std::min(left, sizeof(words)));
    bytes += std::min(left, sizeof(words));
    for (std::size_t i = 0; i < kParts; ++i) sums[i] = (sums[i] ^ words[i]) * kFactor;
  }
  std::uint64_t all = tensor.nbytes();
  // The upper bits of a product depend on all bits of the factors, its lower bits only on their lower bits.
  for (const std::uint64_t sum : sums) all = (all ^ sum ^ sum >> 32U) * kFactor;
  return all;
}

std::uint64_t fingerprint_of(const std::vector<at::Tensor>& tensors) {
  Digest all;
  for (const at::Tensor& one : tensors) {
    const bool is_empty = !one.defined() || one.numel() == 0;
    all.add(is_empty ? 0 : fingerprint_of(one.detach().resolve_conj().contiguous().cpu()));
  }
  return all.value();
}

GradientTree::GradientTree(std::int64_t num_contributions) : num_contributions_(num_contributions) {
  if (num_contributions < 1 || !std::has_single_bit(static_cast<std::uint64_t>(num_contributions))) {
    throw InternalError("a tree of " + std::to_string(num_contributions) + " contributions; expected a power of two");
  }
}

void GradientTree::add(std::int64_t number, at::Tensor contribution) {
  if (number < 0 || number >= num_contributions_) {
    throw ConfigError("expected a micro-batch of 0 to " + std::to_string(num_contributions_ - 1) + ", found " +
                      std::to_string(number));
  }
  if (!added_.insert(number).second) {
    throw ConfigError("micro-batch " + std::to_string(number) + " came twice in one step");
  }
  int level = 0;
  // As long as the neighbour is present, the two are added to a sum of the next level.
  for (auto neighbour = sums_.extract({level, number ^ 1}); !neighbour.empty();
       neighbour = sums_.extract({level, number ^ 1})) {
    // x + y and y + x have the same bits, so the order of a pair does not matter.
    contribution.add_(neighbour.mapped());
    number >>= 1;
    ++level;
  }
  sums_.emplace(std::pair(level, number), std::move(contribution));
}

at::Tensor GradientTree::take() {
  if (!is_complete() || sums_.size() != 1) throw InternalError("a sum of gradients was taken before it was complete");
  at::Tensor sum = sums_.begin()->second;
  sums_.clear();
  added_.clear();
  return sum;
}

namespace {

constexpr int kDigitBits = 32;
constexpr std::uint64_t kDigitMask = 0xffffffff;
constexpr int kMantissaBits = 52;
constexpr std::uint64_t kMaxExponent = 0x7ff;

// Neighbouring terms usually have similar magnitudes and touch the same digits. They are added to several sums in turn,
// so that adding one need not wait for the one before.
constexpr std::int64_t kNumTurns = 4;
// The upper digit of a term has up to 52 bits, so this many terms fit 64 bits without a carry.
constexpr std::int64_t kTermsPerCarry = 1024;

// The elements of one task of a thread.
constexpr std::int64_t kGrain = std::int64_t{1} << 16;

}  // namespace

template <class Number>
void ExactSum::add_squares_of(const Number* values, std::int64_t count) {
  std::array<Digits, kNumTurns> sums{};
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    const auto bits = std::bit_cast<std::uint64_t>(value * value);
    const std::uint64_t exponent = (bits >> kMantissaBits) & kMaxExponent;
    if (exponent == kMaxExponent) {
      ++(std::isnan(value) ? num_not_numbers_ : num_infinite_);
      continue;
    }
    // Subnormal numbers have an exponent of 0 that means 1, and no leading bit.
    const std::uint64_t is_normal = exponent > 0 ? 1 : 0;
    const std::uint64_t mantissa = (bits & ((std::uint64_t{1} << kMantissaBits) - 1)) | (is_normal << kMantissaBits);
    const std::uint64_t place = exponent - is_normal;
    const std::uint64_t shift = place % kDigitBits;
    Digits& sum = sums[static_cast<std::size_t>(i % kNumTurns)];
    sum[place / kDigitBits] += (mantissa << shift) & kDigitMask;
    sum[place / kDigitBits + 1] += mantissa >> (kDigitBits - shift);
  }
  for (const Digits& sum : sums) {
    for (std::size_t i = 0; i < kNumDigits; ++i) digits_[i] += sum[i];
    settle_carries();
  }
}

void ExactSum::settle_carries() {
  std::uint64_t carry = 0;
  for (std::uint64_t& digit : digits_) {
    carry += digit;
    digit = carry & kDigitMask;
    carry >>= kDigitBits;
  }
}

void ExactSum::add_squares(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::map<std::string, std::vector<at::Tensor>> norms;  // by device
  for (const at::Tensor& values : tensors) {
    const at::Tensor numbers = values.is_complex() ? at::view_as_real(values.detach().resolve_conj()) : values.detach();
    if (values.is_cpu()) {
      add_squares_on_cpu(numbers);
    } else {
      norms[values.device().str()].push_back(at::linalg_vector_norm(numbers, 2, std::nullopt, false, at::kDouble));
    }
  }
  for (const auto& [device, of_device] : norms) {
    add_squares_on_cpu(at::stack(of_device).cpu());
  }
}

void ExactSum::add_squares_on_cpu(const at::Tensor& values) {
  const at::Tensor numbers = values.to(values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).contiguous();
  std::mutex mutex;
  at::parallel_for(0, numbers.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    ExactSum part;
    for (std::int64_t i = begin; i < end; i += kNumTurns * kTermsPerCarry) {
      const std::int64_t count = std::min(kNumTurns * kTermsPerCarry, end - i);
      if (numbers.scalar_type() == at::kDouble) {
        part.add_squares_of(numbers.const_data_ptr<double>() + i, count);
      } else {
        part.add_squares_of(numbers.const_data_ptr<float>() + i, count);
      }
    }
    const std::lock_guard lock(mutex);
    add(part);
  });
}

void ExactSum::add(const ExactSum& other) {
  for (std::size_t i = 0; i < kNumDigits; ++i) digits_[i] += other.digits_[i];
  num_infinite_ += other.num_infinite_;
  num_not_numbers_ += other.num_not_numbers_;
  settle_carries();
}

void ExactSum::all_reduce(const Communicator& comm) {
  if (comm.size() == 1) return;
  const at::Tensor sums = at::empty({static_cast<std::int64_t>(kNumDigits) + 2}, at::kLong);
  auto* const numbers = sums.mutable_data_ptr<std::int64_t>();
  std::transform(digits_.begin(), digits_.end(), numbers, [](std::uint64_t d) { return static_cast<std::int64_t>(d); });
  numbers[kNumDigits] = static_cast<std::int64_t>(num_infinite_);
  numbers[kNumDigits + 1] = static_cast<std::int64_t>(num_not_numbers_);
  comm.all_reduce(sums);
  std::transform(numbers, numbers + kNumDigits, digits_.begin(), [](auto d) { return static_cast<std::uint64_t>(d); });
  num_infinite_ = static_cast<std::uint64_t>(numbers[kNumDigits]);
  num_not_numbers_ = static_cast<std::uint64_t>(numbers[kNumDigits + 1]);
  settle_carries();
}

double ExactSum::value() const {
  if (num_not_numbers_ > 0) return std::numeric_limits<double>::quiet_NaN();
  if (num_infinite_ > 0) return std::numeric_limits<double>::infinity();
  std::size_t top = kNumDigits - 1;
  while (top > 0 && digits_[top] == 0) --top;
  // From the lowest digit up, so that rounding errors are far below the significant digits.
  double sum = 0;
  for (std::size_t i = 0; i <= top; ++i) sum = sum * 0x1p-32 + static_cast<double>(digits_[i]);
  return std::ldexp(sum, static_cast<int>(top) * kDigitBits - 1074);
}

namespace {

bool is_power_of_two(std::int64_t number) {
  return number > 0 && std::has_single_bit(static_cast<std::uint64_t>(number));
}

template <class Dropout>
bool is_active(const torch::nn::Module& module) {
  const auto* dropout = module.as<Dropout>();
  return dropout && dropout->options.p() > 0;
}

bool drops(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  return is_active<nn::DropoutImpl>(module) || is_active<nn::Dropout2dImpl>(module) ||
         is_active<nn::Dropout3dImpl>(module) || is_active<nn::AlphaDropoutImpl>(module) ||
         is_active<nn::FeatureAlphaDropoutImpl>(module);
}

}  // namespace

std::string faults_of_tree(std::int64_t micro_batches, std::int64_t num_ranks) {
  std::string faults;
  if (!is_power_of_two(num_ranks)) {
    faults += "\n  reproducible needs a power of two of ranks, the group has " + std::to_string(num_ranks);
  }
  if (!is_power_of_two(micro_batches) || micro_batches < num_ranks) {
    faults += "\n  reproducible needs micro_batches, the number of a step over all ranks: a power of two, at least " +
              std::to_string(num_ranks) + "; found " + std::to_string(micro_batches);
  }
  return faults;
}

void refuse_irreproducible_modules(const torch::nn::Module& model) {
  for (const auto& entry : model.named_modules()) {
    const torch::nn::Module& module = *entry.value();
    const std::string who = "reproducible mode refuses \"" + entry.key() + "\", a " + module.name() + ": ";
    if (module.named_buffers(/*recurse=*/false).contains("running_mean")) {
      throw ConfigError(who +
                        "its running statistics depend on which micro-batches a rank sees. Use LayerNorm or "
                        "GroupNorm");
    }
    if (drops(module)) {
      throw ConfigError(who + "its random numbers would depend on the number of ranks. Set its p to 0");
    }
  }
}

// Note [Kernels in reproducible mode]
// Some kernels split their sums by the number of threads (the gradient of LayerNorm's weight, for one). So the result
// depends on that number, which is set here and checked in every step. LibTorch itself refuses kernels whose result may
// differ from call to call, by name. Its filling of uninitialised memory is off: it would only help code that reads
// memory before writing it.
void use_reproducible_kernels(int num_threads) {
  at::set_num_threads(num_threads);
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

void require_num_threads(int num_threads, int world_rank, const std::string& what_to_do) {
  if (at::get_num_threads() == num_threads) return;
  throw ConfigError("reproducible mode was set up for " + std::to_string(num_threads) +
                    " threads a rank, and now there are " + std::to_string(at::get_num_threads()) + " (rank " +
                    std::to_string(world_rank) + "): results would differ. " + what_to_do);
}

bool drop_cleared_gradient(at::Tensor& gradient) {
  if (gradient.defined() && gradient.count_nonzero().item<std::int64_t>() > 0) return false;
  gradient = at::Tensor();
  return true;
}

void refuse_gradients_left(int world_rank) {
  throw ConfigError("reproducible mode needs the gradients cleared before a forward (rank " +
                    std::to_string(world_rank) +
                    "): call zero_grad() after the optimizer's step, and look at parameters under NoGradGuard");
}

ConfigError refusal_of_random_operator(std::string_view operator_name, int world_rank) {
  return ConfigError("reproducible mode refuses " + std::string(operator_name) + " (rank " +
                     std::to_string(world_rank) +
                     "): its random numbers would depend on the number of ranks. Set dropout to 0, or draw them before "
                     "the forward from a generator of your own");
}

}  // namespace tessera
