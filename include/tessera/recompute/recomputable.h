#pragma once

namespace tessera {

/// A module that can keep less for backward by computing parts of its forward again, as with checkpoint() around its
/// layers. `parallelize()` asks for it by this.
class Recomputable {
 public:
  virtual ~Recomputable() = default;

  /// From the next forward on.
  virtual void set_recompute(bool recompute) = 0;
};

}  // namespace tessera
