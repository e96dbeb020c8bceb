#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/grad_scaler.h>
#include <tessera/shard/gradient_promise.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace tessera {

using optim::LateNumbers;

namespace {

// What a report of an optimizer's gradients has.
constexpr std::int64_t kFound = 0;  // 1: an infinity
constexpr std::int64_t kGreatestScale = 1;
constexpr std::int64_t kLeastScaleNegated = 2;

/// So many updates the host may run ahead of the device.
constexpr std::size_t kUpdatesBehind = 2;

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

/// The scale of the present update. While the host does not know how the last ones ended, a device does.
class GradScaler::Scale {
 public:
  Scale(const GradScalerOptions& options, int world_rank)
      : options_(options), world_rank_(world_rank), scale_(static_cast<float>(options.init_scale())) {}

  /// Waits only if the device is not that of the last updates.
  at::Tensor on(const at::Device& device) {
    if (on_device_.defined() && on_device_.device() == device) return on_device_;
    learn_all();
    at::Tensor scale = at::full({}, scale_, at::TensorOptions(at::kFloat).device(device));
    if (device.is_cpu()) return scale;
    on_device_ = scale;
    tracker_on_device_ = at::full({}, growth_tracker_, at::TensorOptions(at::kInt).device(device));
    return scale;
  }

  /// An update ended, of which each optimizer has a report.
  void update(std::vector<LateNumbers> reports);
  void learn_all() {
    while (!unlearnt_.empty()) learn_oldest();
  }

  void require_same(const LateNumbers& report) const;

  GradScalerState state() {
    learn_all();
    return {scale_, growth_tracker_};
  }
  void set_state(const GradScalerState& state) {
    learn_all();
    scale_ = static_cast<float>(state.scale);
    growth_tracker_ = state.growth_tracker;
    on_device_ = at::Tensor();
  }
  std::int64_t num_skipped() {
    learn_all();
    return num_skipped_;
  }

 private:
  using Reports = std::vector<LateNumbers>;

  void learn_oldest();
  void learn(bool found);

  GradScalerOptions options_;
  int world_rank_;
  float scale_;  // float, as on devices: all ranks compute the same value
  std::int64_t growth_tracker_ = 0;
  std::int64_t num_skipped_ = 0;
  at::Tensor on_device_;
  at::Tensor tracker_on_device_;
  std::deque<Reports> unlearnt_;
};

void GradScaler::Scale::update(Reports reports) {
  if (on_device_.defined()) {
    at::Tensor found = at::zeros_like(on_device_);
    for (const LateNumbers& report : reports) {
      found = at::maximum(found, report.on_device()[kFound].to(found.device(), /*non_blocking=*/true));
    }
    at::_amp_update_scale_(on_device_, tracker_on_device_, found, options_.growth_factor(), options_.backoff_factor(),
                           options_.growth_interval());
  }
  unlearnt_.push_back(std::move(reports));
  // Not whenever numbers happen to be here: what is wrong must be found in the same update on every rank.
  const std::size_t num_behind = on_device_.defined() ? kUpdatesBehind : 0;
  while (unlearnt_.size() > num_behind) learn_oldest();
}

void GradScaler::Scale::learn_oldest() {
  const Reports reports = std::move(unlearnt_.front());
  unlearnt_.pop_front();
  bool found = false;
  for (const LateNumbers& report : reports) {
    require_same(report);
    found = found || report.values()[kFound] != 0;
  }
  learn(found);
}

/// As at::_amp_update_scale_() computes it.
void GradScaler::Scale::learn(bool found) {
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

void GradScaler::Scale::require_same(const LateNumbers& report) const {
  const float greatest = report.values()[kGreatestScale];
  const float least = -report.values()[kLeastScaleNegated];
  if (greatest == least) return;
  std::ostringstream fault;
  fault << "GradScaler: rank " << world_rank_ << " has the scale " << scale_ << ", others have from " << least << " to "
        << greatest << "; set the same options and state on every rank";
  throw ConfigError(fault.str());
}

GradScaler::GradScaler(const std::vector<Ranks>& axes, const GradScalerOptions& options, bool may_be_alone)
    : axes_(axes), options_(checked(options)) {
  if (axes.empty() && !may_be_alone)
    throw ConfigError("GradScaler: expected at least one axis; in one process pass the world of one");
  scale_ = std::make_unique<Scale>(options, axes.empty() ? 0 : axes.front().comm().world_rank());
}

GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled()) return loss;
  // A float tensor, not a number: multiplied by a number, a loss in fp16 would stay fp16 and overflow. A copy, because
  // backward needs it when the next scale may be there already.
  return loss * scale_->on(loss.device()).clone();
}

void GradScaler::unscale(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled()) return;
  if (verdicts_.contains(&optimizer)) {
    throw ConfigError(
        "GradScaler: unscale() was called twice for one optimizer, or after its step(); call update() after each step");
  }
  for (const auto& group : optimizer.param_groups()) shard::require_no_promise(group.params(), "GradScaler");
  const at::NoGradGuard no_grad;
  const at::Device device = device_of(optimizer);
  LateNumbers report = divide(gradients_of(optimizer), device);
  if (device.is_cpu()) scale_->require_same(report);
  verdicts_.insert_or_assign(&optimizer, Verdict{std::move(report)});
}

LateNumbers GradScaler::divide(const std::vector<at::Tensor>& gradients, const at::Device& device) const {
  // The kernel takes lists of one device and dtype.
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, c10::ScalarType>, std::vector<at::Tensor>> lists;
  for (const at::Tensor& given : gradients) {
    // It supports neither complex nor sparse tensors.
    const at::Tensor dense = given.is_sparse() ? given._values() : given;
    const at::Tensor gradient = dense.is_complex() ? at::view_as_real(dense) : dense;
    lists[{gradient.device().type(), gradient.device().index(), gradient.scalar_type()}].push_back(gradient);
  }
  const at::Tensor scale = scale_->on(device);
  const at::Tensor inverse = scale.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor any = at::zeros_like(scale);
  for (const auto& [place, list] : lists) {
    const at::Device here = list.front().device();
    at::Tensor found = at::zeros({}, any.options().device(here));
    at::_amp_foreach_non_finite_check_and_unscale_(list, found, inverse.to(here, /*non_blocking=*/true));
    any = at::maximum(any, found.to(device, /*non_blocking=*/true));
  }
  // The scale is sent too, once with each sign, so that one message gives its maximum and its minimum.
  at::Tensor report = at::stack({any, scale, -scale});
  for (const Ranks& ranks : axes_) {
    if (ranks.comm().size() > 1) ranks.comm().all_reduce(report, ReduceOp::kMax);
  }
  return LateNumbers(report);
}

GradScaler::StepMade GradScaler::step(torch::optim::Optimizer& optimizer) {
  StepMade made;
  if (!options_.enabled()) {
    optimizer.step();
    return made;
  }
  if (!verdicts_.contains(&optimizer)) unscale(optimizer);
  Verdict& verdict = verdicts_.at(&optimizer);
  if (verdict.stepped) {
    throw ConfigError("GradScaler: step() was called twice for one optimizer; call update() after each step");
  }
  verdict.stepped = true;
  made.found_ = verdict.report;
  auto* const adamw = dynamic_cast<optim::AdamW*>(&optimizer);
  if (adamw && !verdict.report.on_device().is_cpu()) {
    adamw->step_unless(verdict.report);
  } else if (made) {
    optimizer.step();
  }
  return made;
}

void GradScaler::update() {
  if (!options_.enabled()) return;
  if (verdicts_.empty()) {
    throw ConfigError("GradScaler: update() without a step() before it; nothing is known of the gradients");
  }
  std::vector<LateNumbers> reports;
  for (const auto& [optimizer, verdict] : verdicts_) reports.push_back(verdict.report);
  verdicts_.clear();
  scale_->update(std::move(reports));
}

bool GradScaler::found_infinity() const {
  return std::ranges::any_of(verdicts_, [](const auto& one) { return one.second.report.values()[kFound] != 0; });
}

double GradScaler::current_scale() const { return scale_->state().scale; }
std::int64_t GradScaler::num_skipped() const { return scale_->num_skipped(); }
GradScalerState GradScaler::state() const { return scale_->state(); }

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
  scale_->set_state(state);
}

}  // namespace tessera
