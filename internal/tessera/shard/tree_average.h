#pragma once

namespace tessera::shard {

/// Who shares a model and can average gradients in an order that does not depend on the number of ranks. A pipeline in
/// reproducible mode looks for it behind a ModelState.
class TreeAverage {
 public:
  virtual ~TreeAverage() = default;

  /// Instead of finish_gradients(). Every rank has added up its own contributions along the lower part of a tree, and
  /// the number of ranks is a power of two. Parameters without a gradient get zeros. Collective.
  virtual void average_along_tree() = 0;
};

}  // namespace tessera::shard
