#include <tessera/core/error.h>
#include <tessera/data_parallel/gradient_hooks.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <map>

#include "data_parallel/hooks/average.h"
#include "data_parallel/hooks/quantise.h"

namespace tessera::data_parallel {
namespace {

constexpr double kLargest = 127;

// On the CPU so many values are processed at a time, so that intermediate values stay in the cache.
constexpr std::int64_t kValuesAtATime = std::int64_t{1} << 17;

std::int64_t blocks_at_a_time(const at::Tensor& values, const QuantisedPart& part) {
  if (!values.is_cpu()) return std::max<std::int64_t>(part.num_blocks, 1);
  return std::max<std::int64_t>(kValuesAtATime / part.block, 1);
}

at::Tensor values_of(const at::Tensor& bytes, const QuantisedPart& part) {
  return bytes.narrow(0, 0, part.num_values()).view({part.num_blocks, part.block});
}

at::Tensor scales_of(const at::Tensor& bytes, const QuantisedPart& part) {
  const std::int64_t begin = part.num_values();
  return bytes.narrow(0, begin, part.num_bytes() - begin).view(at::kFloat).unsqueeze(1);
}

at::Tensor scales_for(const at::Tensor& values) {
  const at::Tensor largest = at::linalg_vector_norm(values, std::numeric_limits<double>::infinity(), {1}, true);
  at::Tensor scales = (largest / kLargest).to(at::kFloat);
  // Subnormal scales have too few bits to divide by. The values of such a block become its rounding error.
  return scales.masked_fill_(scales < std::numeric_limits<float>::min(), 0);
}

void quantise_blocks(at::Tensor values, at::Tensor bytes, at::Tensor scale_bytes) {
  const at::Tensor scales = scales_for(values);
  scale_bytes.copy_(scales);
  const at::Tensor finite = scales.isfinite();
  // On a device item() costs a synchronisation, so the repair is always made; it is cheap there.
  const bool repair = !values.is_cpu() || !finite.all().item<bool>();
  if (repair) values.masked_fill_(finite.logical_not(), 0);
  const at::Tensor usable = finite.logical_and(scales > 0);
  const at::Tensor exact = at::where(usable, scales, 0.0F).to(values.scalar_type());
  const at::Tensor rounded = (values / exact.masked_fill(usable.logical_not(), 1)).round_();
  // Without a scale the quotient is the value itself, which is so small that it rounds to zero.
  bytes.copy_(rounded);
  values.addcmul_(rounded, exact, -1);
}

}  // namespace

void quantise(at::Tensor values, const QuantisedPart& part, const at::Tensor& bytes) {
  const at::Tensor value_bytes = values_of(bytes, part);
  const at::Tensor scale_bytes = scales_of(bytes, part);
  const std::int64_t step = blocks_at_a_time(values, part);
  for (std::int64_t begin = 0; begin < part.num_blocks; begin += step) {
    const std::int64_t count = std::min(step, part.num_blocks - begin);
    quantise_blocks(values.narrow(0, begin, count), value_bytes.narrow(0, begin, count),
                    scale_bytes.narrow(0, begin, count));
  }
}

void add_dequantised(at::Tensor sum, const QuantisedPart& part, const at::Tensor& bytes) {
  const at::Tensor value_bytes = values_of(bytes, part);
  const at::Tensor scales = scales_of(bytes, part).to(sum.scalar_type());
  const std::int64_t step = blocks_at_a_time(sum, part);
  for (std::int64_t begin = 0; begin < part.num_blocks; begin += step) {
    const std::int64_t count = std::min(step, part.num_blocks - begin);
    sum.narrow(0, begin, count)
        .addcmul_(value_bytes.narrow(0, begin, count).to(sum.scalar_type()), scales.narrow(0, begin, count));
  }
}

void dequantise_into(const at::Tensor& values, const QuantisedPart& part, const at::Tensor& bytes,
                     at::ScalarType dtype) {
  const std::int64_t num_full = values.numel() / part.block;
  const std::int64_t num_rest = values.numel() % part.block;
  const at::Tensor value_bytes = values_of(bytes, part);
  const at::Tensor scales = scales_of(bytes, part).to(dtype);
  at::Tensor full = values.narrow(0, 0, num_full * part.block).view({num_full, part.block});
  at::mul_out(full, value_bytes.narrow(0, 0, num_full), scales.narrow(0, 0, num_full));
  if (num_rest == 0) return;
  at::Tensor rest = values.narrow(0, num_full * part.block, num_rest);
  at::mul_out(rest, value_bytes.select(0, num_full).narrow(0, 0, num_rest), scales.select(0, num_full));
}

}  // namespace tessera::data_parallel

namespace tessera {
namespace {

using data_parallel::QuantisedPart;

constexpr const char* kError = "error";
constexpr const char* kErrorOfSum = "error_of_sum";

// What a bucket keeps from step to step. Its elements are cut into one part for each rank; each rank sums its part.
struct Int8State {
  Int8State(const GradientBucket& bucket, const Communicator& comm, const QuantisedPart& part_of_a_rank)
      : part(part_of_a_rank), parameters(bucket.parameters), length(bucket.flat.numel()) {
    const at::Tensor& flat = bucket.flat;
    const auto options = flat.options().dtype(data_parallel::compute_dtype(flat));
    error = at::zeros({comm.size() * part.num_blocks, part.block}, options);
    error_of_sum = at::zeros({part.num_blocks, part.block}, options);
    sent = comm.empty({comm.size(), part.num_bytes()}, flat.options().dtype(at::kChar));
    gathered = comm.empty({comm.size(), part.num_bytes()}, flat.options().dtype(at::kChar));
  }

  /// Restores the state that was saved of such a bucket on the same number of ranks.
  void recall(const BucketMemory& memory) const {
    if (!memory.tensors.contains(kError)) return;
    error.copy_(memory.tensors.at(kError));
    error_of_sum.copy_(memory.tensors.at(kErrorOfSum));
  }

  /// Errors belong to parameters: after a rearrangement, a bucket of the same length may hold other parameters.
  bool serves(const GradientBucket& bucket) const {
    const at::Tensor& flat = bucket.flat;
    return data_parallel::same_tensors(bucket.parameters, parameters) && flat.numel() == length &&
           flat.device() == error.device() && data_parallel::compute_dtype(flat) == error.scalar_type();
  }

  QuantisedPart part;
  std::vector<at::Tensor> parameters;
  std::int64_t length;
  at::Tensor error;         // of this rank's gradients; the last part is padded with zeros
  at::Tensor error_of_sum;  // of the part that this rank sums
  at::Tensor sent;
  at::Tensor gathered;
};

class Int8Hook : public GradientHook {
 public:
  explicit Int8Hook(const Int8HookOptions& options) : options_(options) {
    if (options.block() < 8 || options.block() % 8 != 0) {
      throw ConfigError("the block of the int8 hook must be a multiple of 8, found " + std::to_string(options.block()));
    }
  }

  std::string name() const override { return "int8"; }
  bool keeps_state() const override { return true; }
  bool save_memory(std::vector<BucketMemory>& buckets) const override;
  std::string load_memory(const std::vector<BucketMemory>& buckets) override;

  Finish start(const GradientBucket& bucket, const Communicator& comm) override {
    const at::NoGradGuard no_grad;
    const QuantisedPart part = part_of(bucket.flat, comm.size());
    if (part.num_bytes() * comm.size() >= static_cast<std::int64_t>(bucket.flat.nbytes())) {
      count(bucket.flat);
      return data_parallel::start_average(bucket.flat, bucket.divisor, comm);
    }
    auto& state = states_[bucket.index];
    if (!state || !state->serves(bucket)) {
      state = std::make_shared<Int8State>(bucket, comm, part);
      if (const auto memory = loaded_.take(bucket)) state->recall(*memory);
    }
    if (!options_.error_feedback()) {
      state->error.zero_();
      state->error_of_sum.zero_();
    }
    state->error.view(-1).narrow(0, 0, bucket.flat.numel()).add_(bucket.flat, 1.0 / bucket.divisor);
    for (int rank = 0; rank < comm.size(); ++rank) {
      data_parallel::quantise(state->error.narrow(0, rank * part.num_blocks, part.num_blocks), part,
                              state->sent.select(0, rank));
    }
    count(state->sent);
    return [this, state, work = comm.all_to_all_async(state->sent), flat = bucket.flat, comm]() mutable {
      const at::NoGradGuard no_grad_now;
      return finish(*state, work.result(), flat, comm);
    };
  }

 private:
  QuantisedPart part_of(const at::Tensor& flat, int num_ranks) const {
    const std::int64_t num_blocks = (flat.numel() + options_.block() - 1) / options_.block();
    return {(num_blocks + num_ranks - 1) / num_ranks, options_.block()};
  }

  // At the end every rank dequantises the same bytes, including those of its own sum, so all have the same bits.
  at::Tensor finish(Int8State& state, const at::Tensor& received, const at::Tensor& flat, const Communicator& comm) {
    for (int rank = 0; rank < comm.size(); ++rank) {
      data_parallel::add_dequantised(state.error_of_sum, state.part, received.select(0, rank));
    }
    const at::Tensor own = state.gathered.select(0, comm.rank());
    data_parallel::quantise(state.error_of_sum, state.part, own);
    count(own);
    comm.all_gather_into(state.gathered, own.unsqueeze(0));
    for (int rank = 0; rank < comm.size(); ++rank) {
      const std::int64_t begin = std::min(rank * state.part.num_values(), state.length);
      const std::int64_t length = std::min(state.part.num_values(), state.length - begin);
      data_parallel::dequantise_into(flat.narrow(0, begin, length), state.part, state.gathered.select(0, rank),
                                     state.error.scalar_type());
    }
    return flat;
  }

  Int8HookOptions options_;
  std::map<std::size_t, std::shared_ptr<Int8State>> states_;
  data_parallel::LoadedMemory loaded_;
};

bool Int8Hook::save_memory(std::vector<BucketMemory>& buckets) const {
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (const BucketMemory* const loaded = loaded_.find(i, buckets[i].parameters)) {
      buckets[i] = *loaded;
      continue;
    }
    const auto found = states_.find(i);
    if (found == states_.end() || !data_parallel::same_tensors(found->second->parameters, buckets[i].parameters)) {
      continue;
    }
    buckets[i].tensors = {{kError, found->second->error}, {kErrorOfSum, found->second->error_of_sum}};
  }
  return true;
}

std::string Int8Hook::load_memory(const std::vector<BucketMemory>& buckets) {
  states_.clear();
  loaded_.set({});
  for (const BucketMemory& bucket : buckets) {
    const auto error = bucket.tensors.find(kError);
    if (error != bucket.tensors.end() && error->second.size(1) != options_.block()) {
      return "its block was " + std::to_string(error->second.size(1)) + " and is " + std::to_string(options_.block());
    }
  }
  loaded_.set(buckets);
  return "";
}

}  // namespace

std::shared_ptr<GradientHook> int8_hook(const Int8HookOptions& options) { return std::make_shared<Int8Hook>(options); }

}  // namespace tessera
