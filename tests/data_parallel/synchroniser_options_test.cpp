#include <tessera/core/error.h>
#include <tessera/data_parallel/synchroniser.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "data_parallel/drill.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::bounded;
using testing::Drill;
using testing::expect_parts;
using testing::message_of;

TEST(SynchroniserOptions, ListTheirFields) {
  const auto& fields = SynchroniserOptions::fields();
  EXPECT_EQ(fields.fields().size(), 4U);
  EXPECT_EQ(fields.at("mode").default_text(), "synchronous");
  EXPECT_EQ(fields.at("mode").choices.size(), 4U);
  EXPECT_EQ(fields.at("max_staleness").default_text(), "4");
}

TEST(SynchroniserOptions, NameTheModes) {
  for (const auto* name : {"synchronous", "bounded_staleness", "asynchronous", "local_sgd"}) {
    EXPECT_EQ(to_string(parse_synchronisation_mode(name)), name);
  }
  expect_parts(message_of<ConfigError>([] { parse_synchronisation_mode("eager"); }), {"eager", "bounded_staleness"});
}

TEST(SynchroniserOptions, RefuseWhatCannotBe) {
  const World world = fake_world(0, 2);
  const auto refused = [&](const SynchroniserOptions& options) {
    return message_of<ConfigError>([&] { const Synchroniser sync({Drill().weights}, world, options); });
  };
  expect_parts(refused(SynchroniserOptions().mode("eager")), {"eager"});
  expect_parts(refused(bounded(-1)), {"synchroniser.max_staleness must be at least 0", "-1"});
  expect_parts(refused(SynchroniserOptions().mode("local_sgd").period(0)), {"synchroniser.period must be at least 1"});
  expect_parts(refused(SynchroniserOptions().mode("asynchronous").max_queued(0)),
               {"synchroniser.max_queued must be at least 1"});
  const auto frozen = [&] { const Synchroniser sync({at::ones({2})}, world); };
  expect_parts(message_of<ConfigError>(frozen), {"requires a gradient", "rank 0"});
}

TEST(SynchroniserOptions, MustBeTheSameOnAllRanks) {
  run_threads(3, [](const World& world) {
    const auto make = [&] { const Synchroniser sync({Drill().weights}, world, bounded(world.rank() == 1 ? 1 : 4)); };
    const std::string own = (world.rank() == 1 ? "1" : "4") + std::string(" on rank ") + std::to_string(world.rank());
    expect_parts(message_of<ConfigError>(make),
                 {"a Synchroniser needs", "max_staleness to be the same on all ranks", "1 to 4", own});
  });
}

TEST(SynchroniserOptions, NeedTheSameParametersOnAllRanks) {
  run_threads(2, [](const World& world) {
    const bool first = world.rank() == 0;
    const auto refusal_of = [&](const std::vector<at::Tensor>& parameters) {
      return message_of<ConfigError>([&] { const Synchroniser sync(parameters, world); });
    };
    const auto trained = [](at::IntArrayRef shape) { return at::ones(shape).requires_grad_(true); };
    expect_parts(refusal_of({first ? trained({2, 3}) : trained({3, 2})}), {"the parameters' shapes or types"});
    expect_parts(refusal_of({trained({first ? 2 : 3})}), {"the number of parameters' elements"});
    const std::vector<at::Tensor> some{at::ones({2}).requires_grad_(first), at::ones({3}).requires_grad_(!first)};
    expect_parts(refusal_of(some), {"which parameters require a gradient"});
    const std::vector<at::Tensor> alike{at::ones({2}).requires_grad_(first), at::ones({2}).requires_grad_(!first)};
    expect_parts(refusal_of(alike), {"which parameters require a gradient"});
  });
}

}  // namespace
}  // namespace tessera
