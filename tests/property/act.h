#pragma once

#include <ATen/ops/empty.h>

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

  /// Undefined: this rank does not have it.
  void add(std::string what, int part, const at::Tensor& value) {
    if (!value.defined()) return values.push_back({std::move(what), part, value});
    // Not clone(): that of a tensor which is cut is cut.
    at::Tensor whole = at::empty(value.sizes(), value.options().device(at::kCPU).requires_grad(false));
    values.push_back({std::move(what), part, whole.copy_(value.detach())});
  }
};

/// Does it, as a user would. Throws what the user would get.
void act(const Action& action, User& user, Seen& seen);

}  // namespace tessera::testing
