#include "data_parallel/hooks/average.h"

#include <tessera/core/error.h>
#include <tessera/data_parallel/gradient_hooks.h>
#include <tessera/launch/machine.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace tessera::data_parallel {

void LoadedMemory::set(std::vector<BucketMemory> buckets) {
  buckets_.clear();
  for (BucketMemory& bucket : buckets) buckets_.emplace_back(std::move(bucket));
}

const BucketMemory* LoadedMemory::find(std::size_t index, const std::vector<at::Tensor>& parameters) const {
  if (index >= buckets_.size() || !buckets_[index]) return nullptr;
  return same_tensors(buckets_[index]->parameters, parameters) ? &*buckets_[index] : nullptr;
}

std::optional<BucketMemory> LoadedMemory::take(const GradientBucket& bucket) {
  if (!find(bucket.index, bucket.parameters)) return std::nullopt;
  return std::exchange(buckets_[bucket.index], std::nullopt);
}

namespace {

/// Note [Overlap with backward]
/// A network transfers gradients while the cores compute, and a device has streams. In shared memory the cores
/// themselves add the gradients. If all cores are busy with backward already, adding at the same time only competes
/// with it, which costs 3% of a step more than adding at the end of backward.
bool overlap_pays(const at::Tensor& tensor, const Communicator& comm) {
  if (!tensor.is_cpu() || !comm.shares_memory()) return true;
  return std::size_t{1} * comm.size() * at::get_num_threads() < launch::allowed_cpus().size();
}

}  // namespace

GradientHook::Finish start_average(const at::Tensor& tensor, int divisor, const Communicator& comm) {
  // The communicator can divide by the number of ranks while the values are in registers; another divisor costs a
  // separate pass.
  const bool divides = divisor == comm.size();
  const ReduceOp op = divides ? ReduceOp::kAvg : ReduceOp::kSum;
  std::function<void()> reduce;
  if (overlap_pays(tensor, comm)) {
    reduce = [work = comm.all_reduce_async(tensor, op)]() mutable { work.wait(); };
  } else {
    reduce = [comm, tensor, op] { comm.all_reduce(tensor, op); };
  }
  return [reduce, tensor, divisor, divides] {
    const at::NoGradGuard no_grad;
    reduce();
    if (!divides && divisor != 1) at::Tensor(tensor).div_(divisor);
    return tensor;
  };
}

bool same_tensors(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& one, const at::Tensor& other) { return one.is_same(other); });
}

at::ScalarType compute_dtype(const at::Tensor& gradients) {
  return gradients.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace tessera::data_parallel

namespace tessera {
namespace {

class AllReduceHook : public GradientHook {
 public:
  std::string name() const override { return "none"; }

  // In shared memory the cores add the gradients, and divide while the values are in registers.
  bool takes_divided(const Communicator& comm) const override { return !comm.shares_memory(); }

  Finish start(const GradientBucket& bucket, const Communicator& comm) override {
    count(bucket.flat);
    return data_parallel::start_average(bucket.flat, bucket.divisor, comm);
  }
};

}  // namespace

std::shared_ptr<GradientHook> all_reduce_hook() { return std::make_shared<AllReduceHook>(); }

std::shared_ptr<GradientHook> make_gradient_hook(const std::string& compression) {
  if (compression == "none") return all_reduce_hook();
  if (compression == "fp16") return fp16_hook();
  if (compression == "bf16") return bf16_hook();
  if (compression == "int8") return int8_hook();
  if (compression == "powersgd") return power_sgd_hook();
  throw ConfigError("there is no gradient compression \"" + compression +
                    "\"; choose none, fp16, bf16, int8 or powersgd, or write a hook of your own "
                    "(docs/guides/gradient_hooks.md)");
}

namespace {

// On the CPU a bucket is converted in pieces of this length, so that intermediate values stay in the cache.
constexpr std::int64_t kPieceLength = std::int64_t{1} << 17;

constexpr double kLargestHalf = 65504;

class HalfHook : public GradientHook {
 public:
  explicit HalfHook(at::ScalarType dtype) : dtype_(dtype) {}

  std::string name() const override { return dtype_ == at::kHalf ? "fp16" : "bf16"; }

  Finish start(const GradientBucket& bucket, const Communicator& comm) override {
    const at::NoGradGuard no_grad;
    const at::Tensor half = buffer_for(bucket, comm);
    const std::int64_t length = bucket.flat.numel();
    const std::int64_t step = bucket.flat.is_cpu() ? kPieceLength : std::max<std::int64_t>(length, 1);
    for (std::int64_t begin = 0; begin < length; begin += step) {
      const std::int64_t count = std::min(step, length - begin);
      convert(bucket.flat.narrow(0, begin, count), half.narrow(0, begin, count), bucket.divisor, comm.size());
    }
    count(half);
    return [work = comm.all_reduce_async(half), half, flat = bucket.flat]() mutable {
      const at::NoGradGuard no_grad_now;
      work.wait();
      return flat.copy_(half);
    };
  }

 private:
  // Kept from step to step: new pages of shared memory cost more than the conversion.
  at::Tensor buffer_for(const GradientBucket& bucket, const Communicator& comm) {
    at::Tensor& buffer = buffers_[bucket.index];
    const auto options = bucket.flat.options().dtype(dtype_);
    if (!buffer.defined() || buffer.numel() != bucket.flat.numel() || buffer.device() != bucket.flat.device()) {
      buffer = comm.empty(bucket.flat.sizes(), options);
    }
    return buffer;
  }

  // Divides before it converts, so that the sum stays within the range of the type.
  void convert(const at::Tensor& gradients, at::Tensor half, int divisor, int num_ranks) const {
    if (dtype_ != at::kHalf) {
      half.copy_(gradients / divisor);
      return;
    }
    // A little less than the largest value, since partial sums must not be rounded to infinity.
    const double limit = kLargestHalf / num_ranks * (1 - 1.0 / 256);
    at::Tensor divided = (gradients.scalar_type() == at::kHalf ? gradients.to(at::kFloat) : gradients) / divisor;
    at::Tensor held = divided.clamp(-limit, limit);
    // Clamping hides infinities; adding zero times infinity makes them NaN.
    half.copy_(held.add_(divided, 0));
  }

  at::ScalarType dtype_;
  std::map<std::size_t, at::Tensor> buffers_;
};

}  // namespace

std::shared_ptr<GradientHook> fp16_hook() { return std::make_shared<HalfHook>(at::kHalf); }
std::shared_ptr<GradientHook> bf16_hook() { return std::make_shared<HalfHook>(at::kBFloat16); }

}  // namespace tessera
