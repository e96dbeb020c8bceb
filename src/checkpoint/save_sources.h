#pragma once

#include <tessera/checkpoint/held_slice.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/copy_layout.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/staging.h"

namespace tessera::checkpoints {

/// The elements that a rank writes, of each of its planned slices. They share the memory of `state`.
std::vector<at::Tensor> written_parts(const SavePlan& plan, int rank, const RankState& state);

/// Where the bytes of these parts are while they are written.
struct SaveSources {
  std::vector<std::span<const std::byte>> bytes;  ///< of each part
  std::shared_ptr<std::byte> copy;                ///< that they lie in; null: they are the parts' own

  /// Requires: the parts are on the host, and stay as they are.
  static SaveSources of(const std::vector<at::Tensor>& parts);
  /// Blocks: until the copy is made, and before that until there is memory for one.
  static SaveSources copied(const std::vector<at::Tensor>& parts, const CopyLayout& layout, Staging& staging);
};

}  // namespace tessera::checkpoints
