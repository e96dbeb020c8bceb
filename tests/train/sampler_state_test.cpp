#include <tessera/core/error.h>
#include <tessera/train/sampler.h>

#include <gtest/gtest.h>

#include "support/error_message.h"

namespace tessera::testing {
namespace {

SamplerState some_state() { return {42, 3, 70, 100, true}; }

TEST(SamplerState, SurvivesAsNumbersByName) {
  EXPECT_EQ(SamplerState::from_values(some_state().to_values()), some_state());
  EXPECT_EQ(some_state().to_values().size(), 6U);
}

TEST(SamplerState, IsRefusedWithEveryFault) {
  auto values = some_state().to_values();
  values.erase("seed");
  values["colour"] = 1;
  expect_parts(message_of<ConfigError>([&] { SamplerState::from_values(values); }),
               {"seed is missing", "colour is no part"});
  values = some_state().to_values();
  values["epoch"] = -1;
  values["consumed"] = 101;
  values["shuffled"] = 2;
  values["permutation_version"] = 9;
  expect_parts(message_of<ConfigError>([&] { SamplerState::from_values(values); }),
               {"epoch is -1", "consumed is 101", "shuffled is 2", "permutation_version is 9"});
}

TEST(SamplerState, AdvancesWithinItsEpoch) {
  EXPECT_EQ(some_state().advanced(30).consumed, 100);
  EXPECT_EQ(some_state().advanced(0), some_state());
  EXPECT_THROW(some_state().advanced(31), ConfigError);
  EXPECT_THROW(some_state().advanced(-1), ConfigError);
}

TEST(SamplerState, IsTakenByASamplerOfTheSameDataOnly) {
  Sampler sampler(100, 0, 1, SamplerOptions().seed(42).global_batch(10));
  sampler.restore(some_state());
  EXPECT_EQ(sampler.state(), some_state());
  EXPECT_EQ(sampler.next()->first, 70);

  Sampler other_seed(100, 0, 1, SamplerOptions().seed(1).global_batch(10));
  expect_parts(message_of<ConfigError>([&] { other_seed.restore(some_state()); }),
               {"seed", "the state has 42, this sampler 1", "rank 0"});
  Sampler other_size(101, 0, 1, SamplerOptions().seed(42).global_batch(10));
  expect_parts(message_of<ConfigError>([&] { other_size.restore(some_state()); }), {"the state has 100"});
  Sampler other_order(100, 0, 1, SamplerOptions().seed(42).order("sequential").global_batch(10));
  expect_parts(message_of<ConfigError>([&] { other_order.restore(some_state()); }), {"shuffled"});
  EXPECT_EQ(other_seed.state().consumed, 0) << "a refused state changes nothing";
}

TEST(SamplerState, AtAnEpochsEndLeadsToTheNextOne) {
  Sampler sampler(100, 0, 1, SamplerOptions().seed(42).global_batch(10));
  sampler.restore({42, 3, 100, 100, true});
  EXPECT_FALSE(sampler.next().has_value());
  EXPECT_EQ(sampler.next()->epoch, 4);
}

}  // namespace
}  // namespace tessera::testing
