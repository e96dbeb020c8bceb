#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "fsdp/random_models/dice.h"
#include "property/config.h"

namespace tessera::testing {

/// Something that a training program does. What the numbers mean is the action's own matter; any number will do.
struct Action {
  std::string kind;
  std::int64_t number = 0;  ///< of a batch, a parameter, a value
  std::int64_t way = 0;     ///< of several ways to do it
};

bool is_one_of(const Action& action, std::initializer_list<const char*> kinds);

/// "train(3, 1)"
std::string text_of(const Action& action);

/// The next action of a program, drawn from those that fit its configuration.
Action draw_action(Dice& dice, const Config& config);

}  // namespace tessera::testing
