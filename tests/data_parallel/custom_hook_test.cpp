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
    at::Tensor& kept = rest_of(bucket);
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

  // Also called when training starts anew, for example after a failed backward.
  std::string load_memory(const std::vector<tessera::BucketMemory>&) override {
    kept_.clear();
    return "";
  }

 private:
  struct Kept {
    std::vector<at::Tensor> parameters;
    at::Tensor rest;
  };

  // A bucket of the same number may get other parameters: after the first pass they are arranged anew.
  at::Tensor& rest_of(const tessera::GradientBucket& bucket) {
    Kept& kept = kept_[bucket.index];
    const auto& now = bucket.parameters;
    const auto same = [](const at::Tensor& one, const at::Tensor& other) { return one.is_same(other); };
    const bool fits = std::equal(kept.parameters.begin(), kept.parameters.end(), now.begin(), now.end(), same);
    if (!fits || !kept.rest.defined()) kept = {now, at::zeros_like(bucket.flat)};
    return kept.rest;
  }

  double fraction_;
  std::map<std::size_t, Kept> kept_;
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

TEST(CustomHook, OfTheGuideGivesNoParameterTheRestOfAnother) {
  run_threads(2, [](const World& world) {
    TopKHook hook(0.1);
    const auto reduced = [&](const at::Tensor& parameter, const at::Tensor& gradient) {
      GradientBucket bucket = testing::bucket_of(0, {gradient});
      bucket.parameters = {parameter};
      return testing::reduce(hook, bucket, world.comm());
    };
    const at::Tensor first = at::zeros({20});
    const at::Tensor second = at::zeros({20});
    reduced(first, at::ones({20}));
    EXPECT_EQ(reduced(second, at::zeros({20})).abs().max().item<float>(), 0);
    reduced(first, at::ones({20}));
    hook.load_memory({});
    EXPECT_EQ(reduced(first, at::zeros({20})).abs().max().item<float>(), 0);
  });
}

}  // namespace
}  // namespace tessera
