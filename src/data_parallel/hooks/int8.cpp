#include <tessera/core/error.h>
#include <tessera/data_parallel/gradient_hooks.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "data_parallel/hooks/average.h"
#include "data_parallel/hooks/loaded_memory.h"
#include "data_parallel/hooks/quantise.h"

namespace tessera {
namespace {

using data_parallel::QuantisedRow;

constexpr const char* kError = "error";
constexpr const char* kErrorOfSum = "error_of_sum";

// What a bucket keeps from step to step. Its elements are cut into a row for each rank, which sums that row.
struct Int8State {
  Int8State(const GradientBucket& bucket, const Communicator& comm, const QuantisedRow& row_of_a_rank)
      : row(row_of_a_rank), parameters(bucket.parameters), length(bucket.flat.numel()) {
    const at::Tensor& flat = bucket.flat;
    const auto options = flat.options().dtype(data_parallel::compute_dtype(flat));
    error = at::zeros({comm.size() * row.num_blocks, row.block}, options);
    error_of_sum = at::zeros({row.num_blocks, row.block}, options);
    sent = comm.empty({comm.size(), row.num_bytes()}, flat.options().dtype(at::kChar));
    gathered = comm.empty({comm.size(), row.num_bytes()}, flat.options().dtype(at::kChar));
  }

  /// What was saved of such a bucket on as many ranks.
  void recall(const BucketMemory& memory) const {
    if (!memory.tensors.contains(kError)) return;
    error.copy_(memory.tensors.at(kError));
    error_of_sum.copy_(memory.tensors.at(kErrorOfSum));
  }

  /// Errors belong to parameters: buckets of the same length may hold others after they were arranged anew.
  bool serves(const GradientBucket& bucket) const {
    const at::Tensor& flat = bucket.flat;
    return data_parallel::same_tensors(bucket.parameters, parameters) && flat.numel() == length &&
           flat.device() == error.device() && data_parallel::compute_dtype(flat) == error.scalar_type();
  }

  QuantisedRow row;
  std::vector<at::Tensor> parameters;
  std::int64_t length;
  at::Tensor error;         // of this rank's gradients; the last row is padded with zeros
  at::Tensor error_of_sum;  // of the row that this rank sums
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
    const QuantisedRow row = row_of(bucket.flat, comm.size());
    if (row.num_bytes() * comm.size() >= static_cast<std::int64_t>(bucket.flat.nbytes())) {
      count(bucket.flat);
      return data_parallel::start_average(bucket.flat, bucket.divisor, comm);
    }
    auto& state = states_[bucket.index];
    if (!state || !state->serves(bucket)) {
      state = std::make_shared<Int8State>(bucket, comm, row);
      if (const auto memory = loaded_.take(bucket)) state->recall(*memory);
    }
    if (!options_.error_feedback()) {
      state->error.zero_();
      state->error_of_sum.zero_();
    }
    state->error.view(-1).narrow(0, 0, bucket.flat.numel()).add_(bucket.flat, 1.0 / bucket.divisor);
    for (int rank = 0; rank < comm.size(); ++rank) {
      data_parallel::quantise(state->error.narrow(0, rank * row.num_blocks, row.num_blocks), row,
                              state->sent.select(0, rank));
    }
    count(state->sent);
    return [this, state, work = comm.all_to_all_async(state->sent), flat = bucket.flat, comm]() mutable {
      const at::NoGradGuard no_grad_now;
      return finish(*state, work.result(), flat, comm);
    };
  }

 private:
  QuantisedRow row_of(const at::Tensor& flat, int num_ranks) const {
    const std::int64_t num_blocks = (flat.numel() + options_.block() - 1) / options_.block();
    return {(num_blocks + num_ranks - 1) / num_ranks, options_.block()};
  }

  // Every rank reads the same bytes at the end, of its own sum too: so all have the same bits.
  at::Tensor finish(Int8State& state, const at::Tensor& received, const at::Tensor& flat, const Communicator& comm) {
    for (int rank = 0; rank < comm.size(); ++rank) {
      data_parallel::add_dequantised(state.error_of_sum, state.row, received.select(0, rank));
    }
    const at::Tensor own = state.gathered.select(0, comm.rank());
    data_parallel::quantise(state.error_of_sum, state.row, own);
    count(own);
    comm.all_gather_into(state.gathered, own.unsqueeze(0));
    for (int rank = 0; rank < comm.size(); ++rank) {
      const std::int64_t begin = std::min(rank * state.row.num_values(), state.length);
      const std::int64_t length = std::min(state.row.num_values(), state.length - begin);
      data_parallel::dequantise_into(flat.narrow(0, begin, length), state.row, state.gathered.select(0, rank),
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
