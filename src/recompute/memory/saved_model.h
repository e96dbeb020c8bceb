#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "recompute/memory/tally.h"

namespace tessera::recomputation {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using WeakMemory = c10::weak_intrusive_ptr<c10::StorageImpl>;

inline WeakTensor weak(const at::Tensor& tensor) { return WeakTensor(tensor.getIntrusivePtr()); }
inline WeakMemory weak_memory(const c10::StorageImpl* memory) {
  return WeakMemory(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(const_cast<c10::StorageImpl*>(memory)));
}

/// A model whose graphs keep less.
struct SavedModel {
  /// Which part is computed again: -1 for what lies in none.
  struct Member {
    WeakTensor tensor;
    int part;
  };

  bool whole_parts = false;        ///< whole parts are computed again; else cheap operators
  std::vector<std::string> parts;  ///< names of modules
  std::vector<Member> members;     ///< parameters and buffers
  std::shared_ptr<Tally> tally = std::make_shared<Tally>();
};

/// Parameters and buffers of all such models. Not changed once made.
struct ModelTable {
  struct Place {
    std::shared_ptr<SavedModel> model;
    int part;
    WeakTensor tensor;  // its address is not given to another one
  };
  std::unordered_map<const c10::TensorImpl*, Place> places;

  const Place* find(const at::Tensor& tensor) const {
    const auto found = places.find(tensor.unsafeGetTensorImpl());
    return found == places.end() ? nullptr : &found->second;
  }
};

}  // namespace tessera::recomputation
