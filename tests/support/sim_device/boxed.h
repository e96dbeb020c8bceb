#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

#include "support/sim_device/sim_device.h"

namespace tessera::testing::sim {

inline bool is_on_sim(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kSim; }

inline bool writes(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

/// As long as it lives, operators only compute: no autograd, no autocast, no callbacks of profilers.
struct Below {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::DisableRecordFunctionGuard no_callbacks;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

/// The argument or result with `change(tensor)` in the place of each defined tensor.
template <class Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(change(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& one : value.toTensorVector()) list.push_back(change(one));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& one : value.toOptionalTensorVector()) {
      list.push_back(one && one->defined() ? std::optional<at::Tensor>(change(*one)) : one);
    }
    return list;
  }
  return value;
}

template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  with_tensors(value, [&](const at::Tensor& one) {
    visit(one);
    return one;
  });
}

}  // namespace tessera::testing::sim
