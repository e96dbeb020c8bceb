#include "property/act.h"

#include <algorithm>
#include <stdexcept>

#include "property/kinds.h"

namespace tessera::testing {
namespace {

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = [] {
    std::vector<Kind> joined;
    for (const auto* some : {&pass_kinds(), &weight_kinds(), &run_kinds(), &stage_kinds()}) {
      joined.insert(joined.end(), some->begin(), some->end());
    }
    return joined;
  }();
  return all;
}

/// With a pipeline a program does not call forward and backward itself.
bool fits(const Kind& kind, const Config& config) {
  if (kind.fits && !kind.fits(config)) return false;
  const auto is_it = [&](const Kind& one) { return std::string(one.name) == kind.name; };
  return !config.has_stages() || std::ranges::none_of(pass_kinds(), is_it);
}

}  // namespace

void act(const Action& action, User& user, Seen& seen) {
  for (const Kind& kind : kinds()) {
    if (action.kind == kind.name) return kind.run(action, user, seen);
  }
  throw std::invalid_argument("there is no action " + action.kind);
}

Action draw_action(Dice& dice, const Config& config) {
  int total = 0;
  for (const Kind& kind : kinds()) total += fits(kind, config) ? kind.weight : 0;
  auto left = dice.below(total);
  const auto number = dice.below(1000);
  const auto way = dice.below(1000);
  for (const Kind& kind : kinds()) {
    if (!fits(kind, config)) continue;
    left -= kind.weight;
    if (left < 0) return {kind.name, number, way};
  }
  throw std::logic_error("the weights of actions do not add up");
}

bool is_one_of(const Action& action, std::initializer_list<const char*> kinds) {
  return std::any_of(kinds.begin(), kinds.end(), [&](const char* kind) { return action.kind == kind; });
}

std::string text_of(const Action& action) {
  return action.kind + "(" + std::to_string(action.number) + ", " + std::to_string(action.way) + ")";
}

}  // namespace tessera::testing
