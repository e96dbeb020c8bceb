#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/engine/buffer.h"

namespace tessera::comm {

/// A list of tensors seen as one flat buffer: where they lie one after another in memory, that memory; else a copy.
class TensorList {
 public:
  /// `load` copies the tensors' values into the flat copy, if there is one.
  TensorList(std::vector<at::Tensor> tensors, bool load);

  Buffer flat() const;
  const Counts& counts() const { return counts_; }
  /// Copies the flat values back into the tensors, if they are elsewhere.
  void store() const;

 private:
  std::vector<at::Tensor> tensors_;
  Counts counts_;
  at::Tensor copy_;  // undefined when the tensors adjoin
};

}  // namespace tessera::comm
