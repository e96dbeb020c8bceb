// What every hook that comes with Tessera keeps.
#include <tessera/core/error.h>

#include "data_parallel/hook_case.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::bucket_of;
using testing::sample_gradient;

const std::vector<std::string> kNames{"none", "fp16", "bf16", "int8", "powersgd"};

// PowerSGD from the second step on, so that short tests see it; the others as they are made by name.
std::shared_ptr<GradientHook> make(const std::string& name) {
  return name == "powersgd" ? power_sgd_hook(PowerSgdOptions().start_step(1)) : make_gradient_hook(name);
}

std::vector<at::Tensor> gradients_of(std::size_t bucket, int rank, int step, at::ScalarType dtype) {
  if (bucket == 0) return {sample_gradient({37}, rank, step, dtype), sample_gradient({48, 5, 9}, rank, step, dtype)};
  if (bucket == 1) return {sample_gradient({7}, rank, step, dtype)};
  return {sample_gradient({61, 83}, rank, step, dtype), sample_gradient({3, 3}, rank, step, dtype)};
}

// How far from the mean the result of a first lossy step may be, for values below 2.
double bound(const std::string& name, at::ScalarType dtype) {
  const double of_dtype = dtype == at::kDouble ? 1e-14 : dtype == at::kFloat ? 1e-6 : 2e-2;
  if (name == "fp16") return std::max(of_dtype, 4e-3);
  if (name == "bf16") return std::max(of_dtype, 3e-2);
  if (name == "int8") return 2.0 / 127 + of_dtype;
  return of_dtype;
}

TEST(GradientHooks, GiveTheMeanWithTheSameBitsOnAllRanks) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const std::string& name : kNames) {
      for (const int num_ranks : {1, 2, 3, 4}) {
        run_threads(num_ranks, [&](const World& world) {
          const auto hook = make(name);
          for (int step = 0; step < 3; ++step) {
            std::vector<GradientHook::Finish> finishers;
            for (std::size_t i = 0; i < 3; ++i) {
              auto bucket = bucket_of(i, gradients_of(i, world.rank(), step, dtype));
              bucket.divisor = num_ranks;
              finishers.push_back(hook->start(bucket, world.comm()));
            }
            for (std::size_t i = 0; i < 3; ++i) {
              const at::Tensor result = finishers[i]();
              const auto mean =
                  testing::exact_mean(num_ranks, [&](int rank) { return gradients_of(i, rank, step, dtype); });
              ASSERT_EQ(result.scalar_type(), dtype);
              ASSERT_EQ(result.sizes(), mean.sizes());
              testing::expect_same_bits(result, world.comm());
              if (step == 0) {
                EXPECT_LE(testing::largest_error(result, mean), bound(name, dtype)) << name << ' ' << num_ranks;
              }
            }
          }
        });
      }
    }
  }
}

TEST(GradientHooks, DivideByTheDivisorOfTheBucket) {
  for (const std::string& name : kNames) {
    run_threads(3, [&](const World& world) {
      auto bucket = bucket_of(0, {at::full({3000}, 6.0F)});
      bucket.divisor = 2;  // two of three ranks still have batches
      if (world.rank() == 2) bucket.flat.zero_();
      const at::Tensor result = make(name)->start(bucket, world.comm())();
      EXPECT_LE(testing::largest_error(result, at::full({3000}, 6.0F)), 1e-6) << name;
    });
  }
}

TEST(GradientHooks, ShowWhatIsNotFiniteAndForgetItInTheNextStep) {
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    for (const std::string& name : kNames) {
      run_threads(2, [&](const World& world) {
        const auto hook = make(name);
        for (int step = 0; step < 4; ++step) {
          auto bucket = bucket_of(0, {sample_gradient({64, 80}, world.rank(), step), sample_gradient({999}, 0, step)});
          if (step == 2 && world.rank() == 1) bucket.flat[4321] = bad;
          if (step == 2 && world.rank() == 1) bucket.flat[5555] = bad;
          const at::Tensor finite = testing::reduce(*hook, bucket, world.comm()).isfinite();
          EXPECT_EQ(finite[4321].item<bool>(), step != 2) << name << ' ' << bad << ", a matrix";
          EXPECT_EQ(finite[5555].item<bool>(), step != 2) << name << ' ' << bad << ", a vector";
          EXPECT_EQ(finite.all().item<bool>(), step != 2) << name << ' ' << bad;
        }
      });
    }
  }
}

TEST(GradientHooks, TakeBucketsOfAnotherLengthInTheNextStep) {
  for (const std::string& name : kNames) {
    run_threads(2, [&](const World& world) {
      const auto hook = make(name);
      for (const std::int64_t rows : {50, 50, 71, 20}) {
        const auto bucket = bucket_of(0, {at::full({rows, 60}, 1.0F + world.rank())});
        const at::Tensor result = testing::reduce(*hook, bucket, world.comm());
        EXPECT_LE(testing::largest_error(result, at::full({rows * 60}, 1.5F)), 1e-2) << name << ' ' << rows;
      }
    });
  }
}

struct Bytes {
  std::uint64_t handed_over = 0;
  std::uint64_t sent = 0;
  bool operator==(const Bytes&) const = default;
};

// Of one step of rank 1 of 8, for a layer of 1024 inputs and outputs.
Bytes bytes_of(const std::string& name) {
  const World world = fake_world(1, 8);
  const auto hook = name == "powersgd" ? power_sgd_hook(PowerSgdOptions().start_step(0)) : make_gradient_hook(name);
  testing::reduce(*hook, bucket_of(0, {at::ones({1024, 1024}), at::ones({1024})}), world.comm());
  return {hook->num_bytes(), fake_traffic(world).num_bytes};
}

std::ostream& operator<<(std::ostream& stream, const Bytes& bytes) {
  return stream << bytes.handed_over << ", " << bytes.sent;
}

TEST(GradientHooks, SendTheBytesOfTheGuide) {
  EXPECT_EQ(bytes_of("none"), (Bytes{4'198'400, 7'347'200}));
  EXPECT_EQ(bytes_of("fp16"), (Bytes{2'099'200, 3'673'600}));
  EXPECT_EQ(bytes_of("bf16"), (Bytes{2'099'200, 3'673'600}));
  EXPECT_EQ(bytes_of("int8"), (Bytes{1'200'420, 1'867'320}));
  EXPECT_EQ(bytes_of("powersgd"), (Bytes{36'864, 64'512}));
}

TEST(GradientHooks, AreMadeByName) {
  for (const std::string& name : kNames) EXPECT_EQ(make_gradient_hook(name)->name(), name);
  const auto message = testing::message_of<ConfigError>([] { make_gradient_hook("int4"); });
  testing::expect_parts(message, {"int4", "none, fp16, bf16, int8 or powersgd"});
}

}  // namespace
}  // namespace tessera
