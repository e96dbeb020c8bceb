#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "property/action.h"
#include "property/user.h"

namespace tessera::testing {

/// What a program saw: losses, outputs, weights that it read.
struct Seen {
  static constexpr int kAll = -1;
  struct Value {
    std::string what;
    int part;  ///< of which rank's batch, or kAll
    at::Tensor value;
  };
  std::vector<Value> values;

  void add(std::string what, int part, const at::Tensor& value) {
    values.push_back({std::move(what), part, value.detach().clone()});
  }
};

/// Does it, as a user would. Throws what the user would get.
void act(const Action& action, User& user, Seen& seen);

}  // namespace tessera::testing
