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

/// Which programs are drawn.
struct Ways {
  int num_ranks = 0;         ///< 0: as many as it likes
  bool cuts_shards = false;  ///< see draw_config()
  bool has_stages = false;   ///< every model is on the stages of a pipeline; otherwise some are
  bool uses_files = false;   ///< every model in shards has some of it in files; otherwise some do
};
Program make_program(std::uint64_t seed, const Ways& ways = {});

}  // namespace tessera::testing
