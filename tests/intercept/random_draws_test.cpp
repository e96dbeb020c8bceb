#include <tessera/intercept/random_draws.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

namespace tessera::intercept {
namespace {

TEST(RandomDraws, HearsOfOperatorsThatDraw) {
  const at::Tensor x = at::ones({3});
  for (const auto& draw : std::vector<std::function<void()>>{
           [&] { at::dropout(x, 0.5, /*train=*/true); }, [] { at::randn({2}); }, [&] { at::rand_like(x); },
           [&] { x.clone().exponential_(); }, [] { at::randperm(4); }, [&] { at::multinomial(x, 1); }}) {
    const RandomDraws draws;
    EXPECT_FALSE(draws.any());
    draw();
    EXPECT_TRUE(draws.any());
  }
}

TEST(RandomDraws, HearsNothingOfTheOthers) {
  const at::Tensor x = at::ones({3});
  const RandomDraws draws;
  at::dropout(x, 0.5, /*train=*/false);
  at::matmul(x, x.exp());
  std::thread([] { at::rand({2}); }).join();
  EXPECT_FALSE(draws.any());
}

TEST(RandomDraws, NestsEachFromItsOwnBeginning) {
  const RandomDraws outer;
  at::rand({1});
  {
    const RandomDraws inner;
    EXPECT_FALSE(inner.any());
    at::rand({1});
    EXPECT_TRUE(inner.any());
  }
  const RandomDraws next;
  EXPECT_FALSE(next.any());
  EXPECT_TRUE(outer.any());
}

}  // namespace
}  // namespace tessera::intercept
