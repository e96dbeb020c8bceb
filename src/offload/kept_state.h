#pragma once

#include <tessera/shard/hollow_storage.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "offload/places.h"

namespace tessera::offload {

/// What an optimizer keeps for a shard: a tensor of the shard's length, in host memory or in a file. It begins with
/// zeros.
class KeptState {
 public:
  /// `what` is for messages: "the optimizer state of blocks.3".
  KeptState(std::shared_ptr<Places> places, std::int64_t num_elements, at::ScalarType dtype, std::string what);

  /// Stands for the elements from `first` on. Has bytes if the state is in memory.
  at::Tensor stand_in(std::int64_t first, at::IntArrayRef shape) const;
  bool holds(const at::Tensor& tensor) const { return storage_.holds(tensor); }
  /// Requires: as many elements as are replaced.
  void set_values(std::int64_t first, const at::Tensor& values);

  /// Null if it is in memory.
  const FileBlock* block() const { return block_ ? &*block_ : nullptr; }
  const at::Tensor& flat() const { return storage_.flat(); }

 private:
  std::shared_ptr<Places> places_;
  HollowStorage storage_;
  std::optional<FileBlock> block_;
};

}  // namespace tessera::offload
