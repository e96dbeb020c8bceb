#include <tessera/core/error.h>
#include <tessera/data_parallel/synchroniser_options.h>

#include <array>

namespace tessera {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"synchronous", "bounded_staleness", "asynchronous", "local_sgd"};

}  // namespace

SynchronisationMode parse_synchronisation_mode(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames.at(i) == name) return static_cast<SynchronisationMode>(i);
  }
  throw ConfigError("there is no synchronisation mode \"" + std::string(name) +
                    "\"; give synchronous, bounded_staleness, asynchronous or local_sgd");
}

std::string_view to_string(SynchronisationMode mode) { return kNames.at(static_cast<std::size_t>(mode)); }

const FieldList<SynchroniserOptions>& SynchroniserOptions::fields() {
  static const FieldList<SynchroniserOptions> list =
      FieldList<SynchroniserOptions>("synchroniser")
          .add_choice("mode", &SynchroniserOptions::mode_, {kNames.begin(), kNames.end()},
                      "When the ranks' gradients meet.")
          .add("max_staleness", &SynchroniserOptions::max_staleness_,
               "With bounded_staleness: the most updates that a gradient may be behind.")
          .add("period", &SynchroniserOptions::period_, "With local_sgd: steps of a rank between two averagings.")
          .add("max_queued", &SynchroniserOptions::max_queued_,
               "With asynchronous: updates that may wait on a rank until its next step.");
  return list;
}

}  // namespace tessera
