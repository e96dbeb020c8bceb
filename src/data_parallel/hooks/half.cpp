#include <tessera/data_parallel/gradient_hooks.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

namespace tessera {
namespace {

// On the CPU a bucket is converted in pieces of this length, so that what lies between two passes stays in the cache.
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
    // A little less than the largest: partial sums are rounded, and must not be rounded to infinity.
    const double limit = kLargestHalf / num_ranks * (1 - 1.0 / 256);
    at::Tensor divided = (gradients.scalar_type() == at::kHalf ? gradients.to(at::kFloat) : gradients) / divisor;
    at::Tensor held = divided.clamp(-limit, limit);
    // Holding hides infinities; zero times infinity makes them NaN.
    half.copy_(held.add_(divided, 0));
  }

  at::ScalarType dtype_;
  std::map<std::size_t, at::Tensor> buffers_;
};

}  // namespace

std::shared_ptr<GradientHook> fp16_hook() { return std::make_shared<HalfHook>(at::kHalf); }
std::shared_ptr<GradientHook> bf16_hook() { return std::make_shared<HalfHook>(at::kBFloat16); }

}  // namespace tessera
