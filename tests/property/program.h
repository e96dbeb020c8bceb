#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "property/action.h"
#include "property/config.h"

namespace tessera::testing {

/// A model, a way to spread it, and what a user does with it. The same for a seed each time.
struct Program {
  std::uint64_t seed = 0;  ///< also the model's
  Config config;
  std::vector<Action> actions;

  std::string text() const;
  /// A test that plays it, to be pasted in.
  std::string as_test() const;
};

/// On as many ranks as it likes, or on `num_ranks` if that is not 0. `cuts_shards`: see draw_config().
Program make_program(std::uint64_t seed, int num_ranks = 0, bool cuts_shards = false);

}  // namespace tessera::testing
