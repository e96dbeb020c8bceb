#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/optim/grad_scaler.h>
#include <tessera/shard/gradient_promise.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace tessera {
namespace {

GradScalerOptions checked(const GradScalerOptions& options) {
  std::string faults;
  const auto require = [&faults](bool holds, const std::string& expected, double found) {
    if (!holds) {
      faults += (faults.empty() ? "" : "\n") + ("GradScaler: " + expected) + ", found " + std::to_string(found);
    }
  };
  require(std::isnormal(static_cast<float>(options.init_scale())) && options.init_scale() > 0,
          "init_scale must be a float above 0", options.init_scale());
  require(options.growth_factor() > 1, "growth_factor must be above 1", options.growth_factor());
  require(options.backoff_factor() > 0 && options.backoff_factor() < 1, "backoff_factor must be between 0 and 1",
          options.backoff_factor());
  require(options.growth_interval() > 0, "growth_interval must be above 0",
          static_cast<double>(options.growth_interval()));
  if (!faults.empty()) throw ConfigError(faults);
  return options;
}

/// The gradients to divide, each once, though a group may list a parameter twice.
std::vector<at::Tensor> gradients_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  std::unordered_set<const void*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      if (gradient.scalar_type() == at::kHalf) {
        std::ostringstream fault;
        fault << "GradScaler: expected gradients of float, found Half for a parameter of shape " << parameter.sizes()
              << "; keep the weights in float and compute under tessera::Autocast(at::kHalf)";
        throw ConfigError(fault.str());
      }
      gradients.push_back(gradient.is_sparse() ? gradient._values() : intercept::held_part(gradient));
    }
  }
  return gradients;
}

std::vector<Ranks> ranks_of(const ParallelModel& model) {
  std::vector<Ranks> ranks;
  for (const ModelAxis& axis : model.axes()) ranks.emplace_back(axis.comm);
  return ranks;
}

at::Device device_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params().front().device();
  }
  return at::kCPU;
}

}  // namespace

const FieldList<GradScalerOptions>& GradScalerOptions::fields() {
  static const FieldList<GradScalerOptions> list =
      FieldList<GradScalerOptions>("grad_scaler")
          .add("enabled", &GradScalerOptions::enabled_, "Scale at all; off, every step is made.")
          .add("init_scale", &GradScalerOptions::init_scale_, "What losses are multiplied by at the start.")
          .add("growth_factor", &GradScalerOptions::growth_factor_,
               "The scale is multiplied by it after growth_interval updates in a row without an infinity.")
          .add("backoff_factor", &GradScalerOptions::backoff_factor_,
               "The scale is multiplied by it after an update that was skipped.")
          .add("growth_interval", &GradScalerOptions::growth_interval_,
               "Updates in a row without an infinity before the scale grows.");
  return list;
}

GradScaler::GradScaler(const DeviceMesh& mesh, const GradScalerOptions& options)
    : GradScaler(std::vector<Ranks>{mesh.comm()}, options) {}

GradScaler::GradScaler(const Ranks& ranks, const GradScalerOptions& options)
    : GradScaler(std::vector<Ranks>{ranks}, options) {}

GradScaler::GradScaler(const ParallelModel& model, const GradScalerOptions& options)
    : GradScaler(ranks_of(model), options, /*may_be_alone=*/true) {}

GradScaler::GradScaler(const std::vector<Ranks>& axes, const GradScalerOptions& options)
    : GradScaler(axes, options, /*may_be_alone=*/false) {}

GradScaler::GradScaler(const std::vector<Ranks>& axes, const GradScalerOptions& options, bool may_be_alone)
    : axes_(axes), options_(checked(options)), scale_(static_cast<float>(options.init_scale())) {
  if (axes.empty() && !may_be_alone)
    throw ConfigError("GradScaler: expected at least one axis; in one process pass the world of one");
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled()) return loss;
  // A float tensor, not a number: multiplied by a number, a loss in fp16 would stay fp16 and overflow.
  return loss * at::full({}, scale_, at::TensorOptions(at::kFloat).device(loss.device()));
}

void GradScaler::unscale(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled()) return;
  if (verdicts_.contains(&optimizer)) {
    throw ConfigError(
        "GradScaler: unscale() was called twice for one optimizer, or after its step(); call update() after each step");
  }
  for (const auto& group : optimizer.param_groups()) shard::require_no_promise(group.params(), "GradScaler");
  const at::NoGradGuard no_grad;
  const bool found = agree(divide(gradients_of(optimizer)), device_of(optimizer));
  verdicts_[&optimizer] = {found, false};
  found_infinity_ = found_infinity_ || found;
}

bool GradScaler::divide(const std::vector<at::Tensor>& gradients) const {
  // The kernel takes lists of one device and dtype.
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, c10::ScalarType>, std::vector<at::Tensor>> lists;
  for (const at::Tensor& given : gradients) {
    // It supports neither complex nor sparse tensors.
    const at::Tensor dense = given.is_sparse() ? given._values() : given;
    const at::Tensor gradient = dense.is_complex() ? at::view_as_real(dense) : dense;
    lists[{gradient.device().type(), gradient.device().index(), gradient.scalar_type()}].push_back(gradient);
  }
  const auto inverse = static_cast<float>(1.0 / scale_);
  std::vector<at::Tensor> found;
  for (const auto& [place, list] : lists) {
    const auto options = at::TensorOptions(at::kFloat).device(list.front().device());
    found.push_back(at::zeros({}, options));
    at::_amp_foreach_non_finite_check_and_unscale_(list, found.back(), at::full({}, inverse, options));
  }
  bool any = false;
  for (const at::Tensor& one : found) any = one.item<float>() != 0 || any;
  return any;
}

bool GradScaler::agree(bool found, const at::Device& device) const {
  // The scale is sent too, once with each sign, so that one message gives its maximum and its minimum.
  at::Tensor report = at::tensor({found ? 1.0F : 0.0F, scale_, -scale_}).to(device);
  for (const Ranks& ranks : axes_) {
    if (ranks.comm().size() > 1) ranks.comm().all_reduce(report, ReduceOp::kMax);
  }
  const at::Tensor agreed = report.cpu();
  const float greatest = agreed[1].item<float>();
  const float least = -agreed[2].item<float>();
  if (greatest != least) {
    std::ostringstream fault;
    fault << "GradScaler: rank " << axes_.front().comm().world_rank() << " has the scale " << scale_
          << ", others have from " << least << " to " << greatest << "; set the same options and state on every rank";
    throw ConfigError(fault.str());
  }
  return agreed[0].item<float>() != 0;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled()) {
    optimizer.step();
    return true;
  }
  if (!verdicts_.contains(&optimizer)) unscale(optimizer);
  Verdict& verdict = verdicts_[&optimizer];
  if (verdict.stepped) {
    throw ConfigError("GradScaler: step() was called twice for one optimizer; call update() after each step");
  }
  verdict.stepped = true;
  if (!verdict.found_infinity) optimizer.step();
  return !verdict.found_infinity;
}

void GradScaler::update() {
  if (!options_.enabled()) return;
  if (verdicts_.empty()) {
    throw ConfigError("GradScaler: update() without a step() before it; nothing is known of the gradients");
  }
  const bool found = found_infinity_;
  verdicts_.clear();
  found_infinity_ = false;
  if (found) {
    ++num_skipped_;
    growth_tracker_ = 0;
    const auto lowered = static_cast<float>(scale_ * options_.backoff_factor());
    if (!std::isnormal(lowered)) {
      std::ostringstream fault;
      fault << "GradScaler: the gradients are not finite though the scale has fallen to " << scale_ << " after "
            << num_skipped_ << " skipped updates; look for an infinity in the model or the data";
      throw ConfigError(fault.str());
    }
    scale_ = lowered;
  } else if (++growth_tracker_ >= options_.growth_interval()) {
    growth_tracker_ = 0;
    const auto raised = static_cast<float>(scale_ * options_.growth_factor());
    if (std::isfinite(raised)) scale_ = raised;
  }
}

void GradScaler::set_state(const GradScalerState& state) {
  const auto scale = static_cast<float>(state.scale);
  if (!std::isnormal(scale) || scale < 0 || state.growth_tracker < 0) {
    std::ostringstream fault;
    fault << "GradScaler: expected a state with a scale above 0 and a growth tracker from 0 on, found " << state.scale
          << " and " << state.growth_tracker;
    throw ConfigError(fault.str());
  }
  if (!verdicts_.empty()) {
    throw ConfigError("GradScaler: set_state() between unscale() and update(); call update() first");
  }
  scale_ = scale;
  growth_tracker_ = state.growth_tracker;
}

}  // namespace tessera
