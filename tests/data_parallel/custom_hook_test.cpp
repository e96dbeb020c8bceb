// The hook of docs/guides/gradient_hooks.md, word for word.
#include <ATen/core/grad_mode.h>

#include "data_parallel/hook_case.h"

namespace tessera {
namespace {

// Sends the largest gradients only, and keeps the others for later steps.
class TopKHook : public tessera::GradientHook {
 public:
  explicit TopKHook(double fraction) : fraction_(fraction) {}

  std::string name() const override { return "topk"; }

  Finish start(const tessera::GradientBucket& bucket, const tessera::Communicator& comm) override {
    const at::NoGradGuard no_grad;
    at::Tensor& kept = kept_[bucket.index];
    if (!kept.defined() || kept.numel() != bucket.flat.numel()) kept = at::zeros_like(bucket.flat);
    kept.add_(bucket.flat, 1.0 / bucket.divisor);
    const auto num_sent = std::max<std::int64_t>(1, std::llround(fraction_ * kept.numel()));
    const at::Tensor places = std::get<1>(kept.abs().topk(num_sent));
    const at::Tensor values = kept.index_select(0, places);
    kept.index_fill_(0, places, 0);
    count(places);
    count(values);
    return [flat = bucket.flat, all_places = comm.all_gather_async(places),
            all_values = comm.all_gather_async(values)]() mutable {
      const at::NoGradGuard no_grad_now;
      return flat.zero_().index_add_(0, all_places.result(), all_values.result());
    };
  }

 private:
  double fraction_;
  std::map<std::size_t, at::Tensor> kept_;
};

TEST(CustomHook, OfTheGuideSendsEverythingInTime) {
  run_threads(3, [](const World& world) {
    const auto gradients_of = [](int rank) { return std::vector{testing::sample_gradient({501}, rank, 0)}; };
    TopKHook hook(0.1);
    at::Tensor sum = at::zeros({501});
    for (int step = 0; step < 200; ++step) {
      const at::Tensor result = testing::reduce(hook, testing::bucket_of(0, gradients_of(world.rank())), world.comm());
      testing::expect_same_bits(result, world.comm());
      sum += result;
    }
    EXPECT_LE(testing::largest_error(sum / 200, testing::exact_mean(3, gradients_of)), 0.1);
    EXPECT_EQ(hook.num_bytes(), 200U * 50U * (8U + 4U));
  });
}

}  // namespace
}  // namespace tessera
