#pragma once

#include <tessera/core/options.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/mesh/ranks.h>
#include <tessera/optim/late_numbers.h>
#include <tessera/shard/parallel_model.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera {

struct GradScalerOptions {
  /// Off: losses and gradients stay as they are, and every step is made. For programs that choose the precision by a
  /// setting.
  TORCH_ARG(bool, enabled) = true;
  /// What losses are multiplied by at the start.
  TORCH_ARG(double, init_scale) = 65536;
  /// The scale is multiplied by it after `growth_interval` updates in a row without an infinity.
  TORCH_ARG(double, growth_factor) = 2;
  /// The scale is multiplied by it after an update that was skipped.
  TORCH_ARG(double, backoff_factor) = 0.5;
  /// Lower: a scale that fell too far recovers sooner, and more updates are lost in finding its limit again.
  TORCH_ARG(std::int64_t, growth_interval) = 2000;

 public:
  static const FieldList<GradScalerOptions>& fields();
};

/// What a checkpoint keeps of a GradScaler. The same on all ranks.
struct GradScalerState {
  double scale = 0;
  std::int64_t growth_tracker = 0;  ///< updates in a row without an infinity

  bool operator==(const GradScalerState&) const = default;
};

/// Keeps the gradients of fp16 training in range: the loss is multiplied by a scale that is as large as possible, and
/// an update whose gradients are not finite is skipped. All ranks decide together: if one rank, on whichever axis,
/// finds an infinity, all ranks skip the update and lower the scale. A shard that stepped alone would no longer fit the
/// others.
///
///   GradScaler scaler(mesh);
///   scaler.scale(loss).backward();
///   scaler.unscale(optimizer);        // only to clip
///   clip_grad_norm(parameters, 1.0);
///   scaler.step(optimizer);
///   scaler.update();
///
/// bf16 needs none of this: it has the range of float. Defaults and rules are those of PyTorch's `GradScaler`.
///
/// On an accelerator the device decides, and with optim::AdamW the host does not wait for it: it learns of an update
/// two updates later, and reports then what is wrong with the scale. Other optimizers are stepped by the host, which
/// waits.
/// Thread-safety: one thread at a time.
class GradScaler {
 public:
  /// Whether an update was made. To ask is to wait for the device that decides it.
  class StepMade {
   public:
    operator bool() const { return !found_ || found_->values().front() == 0; }  // NOLINT(google-explicit-constructor)

   private:
    friend GradScaler;
    std::optional<optim::LateNumbers> found_;
  };

  /// Decides with all ranks that share `model`; alone for a module that is not shared.
  explicit GradScaler(const ParallelModel& model, const GradScalerOptions& options = {});
  /// Decides with all ranks of `mesh`: one small all-reduce for each optimizer and update.
  explicit GradScaler(const DeviceMesh& mesh, const GradScalerOptions& options = {});
  /// Decides with these ranks: a world, one axis, or a communicator.
  explicit GradScaler(const Ranks& ranks, const GradScalerOptions& options = {});
  /// Decides along each of these axes, one after the other, and so with all ranks of the mesh that they span.
  explicit GradScaler(const std::vector<Ranks>& axes, const GradScalerOptions& options = {});

  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  /// The loss to call backward() on.
  at::Tensor scale(const at::Tensor& loss) const;

  /// Divides the gradients of `optimizer` by the scale and looks for values that are not finite; found_infinity()
  /// returns whether any rank found one. step() calls it if the program did not.
  /// Collective: over all ranks of the scaler. Throws ConfigError when it was called since the last update(), when a
  /// gradient is fp16 (weights must be float), and when the ranks have different scales (on an accelerator, update()
  /// does that later).
  void unscale(torch::optim::Optimizer& optimizer);

  /// Calls optimizer.step(), unless a rank found an infinity. Returns whether it did; the same on all ranks.
  /// Collective: as unscale(). Throws ConfigError when it was called since the last update().
  StepMade step(torch::optim::Optimizer& optimizer);

  /// Sets the scale of the next update: lower after an infinity, higher after `growth_interval` updates without one.
  /// Call it once after all steps. Throws ConfigError when nothing was unscaled, and when the scale fell out of range:
  /// then the gradients are not finite whatever the scale, and the reason is in the model or the data.
  void update();

  // These wait for the device.

  double current_scale() const;
  /// Whether any rank found an infinity in the gradients that were unscaled since the last update().
  bool found_infinity() const;
  /// Updates that were skipped since the scaler was made.
  std::int64_t num_skipped() const;

  GradScalerState state() const;
  /// Requires: the same state on all ranks; the next unscale() checks the scale.
  void set_state(const GradScalerState& state);

 private:
  class Scale;
  struct Verdict {
    optim::LateNumbers report;
    bool stepped = false;
  };

  GradScaler(const std::vector<Ranks>& axes, const GradScalerOptions& options, bool may_be_alone);
  optim::LateNumbers divide(const std::vector<at::Tensor>& gradients, const at::Device& device) const;

  std::vector<Ranks> axes_;
  GradScalerOptions options_;
  std::unique_ptr<Scale> scale_;
  std::unordered_map<const torch::optim::Optimizer*, Verdict> verdicts_;  // of this update
};

}  // namespace tessera
