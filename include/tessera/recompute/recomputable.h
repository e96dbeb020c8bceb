#pragma once

namespace tessera {

/// A module that can keep less for backward by computing parts of its forward again, for example with recompute()
/// around its layers. `parallelize()` switches that on through this interface.
class Recomputable {
 public:
  virtual ~Recomputable() = default;

  /// From the next forward on.
  virtual void set_recompute(bool recompute) = 0;
};

}  // namespace tessera
