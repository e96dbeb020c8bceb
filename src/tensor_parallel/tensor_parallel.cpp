#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/intercept/gradient_node.h>
#include <tessera/intercept/kept_error.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/hollow_storage.h>
#include <tessera/shard/model_state.h>
#include <tessera/shard/named_tensors.h>
#include <tessera/shard/placement_ops.h>
#include <tessera/shard/same_model.h>
#include <tessera/shard/state_broadcast.h>
#include <tessera/shard/tensor_bytes.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <exception>
#include <iomanip>
#include <map>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "tensor_parallel/collectives.h"
#include "tensor_parallel/sharded.h"

namespace tessera {
namespace {

/// `*` stands for any characters but a dot.
bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() != '*') {
    return !name.empty() && name.front() == pattern.front() && matches(pattern.substr(1), name.substr(1));
  }
  for (std::size_t length = 0;; ++length) {
    if (matches(pattern.substr(1), name.substr(length))) return true;
    if (length == name.size() || name[length] == '.') return false;
  }
}

bool is_embedding(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::EmbeddingImpl*>(&module) != nullptr;
}

bool has_channel_statistics(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr;
}

/// A tensor of the model that the plan cuts.
struct PlannedCut {
  std::string name;
  at::Tensor tensor;
  Placement placement;
  std::string pattern;
};

/// Finds what a plan cuts.
class PlanMatcher {
 public:
  explicit PlanMatcher(const torch::nn::Module& model) : model_(model) {}

  std::vector<PlannedCut> match(const TensorPlan& plan) {
    std::string faults;
    for (const TensorPlan::Entry& entry : plan.entries()) {
      try {
        if (!match_entry(entry)) {
          faults += "\n  '" + entry.pattern + "' matches no module with parameters of its own, and no parameter";
        }
      } catch (const ConfigError& fault) {
        faults += "\n  '" + entry.pattern + "': " + fault.what();
      }
    }
    if (!faults.empty()) throw ConfigError("the plan of tensor parallelism does not fit the model:" + faults + known());
    return std::move(cuts_);
  }

 private:
  bool match_entry(const TensorPlan::Entry& entry) {
    bool found = false;
    for (const auto& item : model_.named_modules("", true)) {
      const torch::nn::Module& module = *item.value();
      const std::string prefix = item.key().empty() ? "" : item.key() + ".";
      const bool matches_module = matches(entry.pattern, item.key());
      for (const auto& parameter : module.named_parameters(false)) {
        if (!matches_module && !matches(entry.pattern, prefix + parameter.key())) continue;
        found = true;
        add(prefix + parameter.key(), parameter.value(), entry, is_embedding(module));
      }
      if (!matches_module || !has_channel_statistics(module)) continue;
      for (const auto& buffer : module.named_buffers(false)) {
        if (buffer.value().defined() && buffer.value().dim() == 1) {
          add(prefix + buffer.key(), buffer.value(), entry, false);
        }
      }
    }
    return found;
  }

  void add(const std::string& name, const at::Tensor& tensor, const TensorPlan::Entry& entry, bool of_embedding) {
    if (!tensor.defined()) return;
    const auto placement = entry.split.placement(tensor.sizes().vec(), of_embedding);
    if (!placement) return;
    const auto known = places_.find(tensor.unsafeGetTensorImpl());
    if (known == places_.end()) {
      places_[tensor.unsafeGetTensorImpl()] = cuts_.size();
      cuts_.push_back({name, tensor, *placement, entry.pattern});
    } else if (cuts_[known->second].placement != *placement) {
      const PlannedCut& other = cuts_[known->second];
      throw ConfigError(name + " would be " + placement->text() + ", but '" + other.pattern + "' has it " +
                        other.placement.text() +
                        (other.name == name ? "" : ": it is the same tensor as " + other.name));
    }
  }

  std::string known() const {
    std::string names;
    int count = 0;
    for (const auto& item : model_.named_modules("", false)) {
      if (item.value()->parameters(false).empty()) continue;
      if (++count > 40) return names + ", ...";
      names += (names.empty() ? "\nModules with parameters of their own: " : ", ") + item.key();
    }
    return names;
  }

  const torch::nn::Module& model_;
  std::vector<PlannedCut> cuts_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> places_;
};

}  // namespace

namespace tp {

/// Makes the gradient of a parameter what the parameter is, whole or cut: a custom function may return any.
class GradientFit {
 public:
  explicit GradientFit(const at::Tensor& parameter)
      : cut_(cut_of(parameter)), sizes_(parameter.sizes().vec()), strides_(parameter.strides().vec()) {}

  /// Undefined: it is so already.
  at::Tensor operator()(const at::Tensor& gradient) const {
    if (!gradient.defined()) return {};
    if (!cut_) return intercept::acting_data(gradient) ? whole_gradient(gradient) : at::Tensor();
    const CutDataPtr its = cut_of(gradient);
    const bool is_held = !intercept::is_wrapper(gradient) || gradient.requires_grad();
    if (its && its->cut() == cut_->cut() && is_held) return {};
    at::Tensor part = cut_kind().inner_gradient(gradient, *cut_);
    if (part.requires_grad()) return wrap(std::move(part), cut_);
    return intercept::make_part(part.clone(), cut_, sizes_, strides_);
  }

 private:
  CutDataPtr cut_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
};

class TensorParallelState : public shard::ModelState {
 public:
  TensorParallelState(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<TensorAxis> axis)
      : module_(std::move(module)), axis_(std::move(axis)) {}

  /// Cuts a tensor that all ranks have whole.
  void cut(const PlannedCut& planned) {
    const at::NoGradGuard no_grad;
    const at::Tensor& tensor = planned.tensor;
    const std::vector<std::int64_t> shape = tensor.sizes().vec();
    const CutDataPtr cut = make_cut(axis_, planned.placement, shape[static_cast<std::size_t>(planned.placement.dim())],
                                    axis_->parameter(planned.name));
    at::Tensor part =
        take_part(tensor.detach(), cut->cut(), axis_->size(), axis_->rank()).clone(at::MemoryFormat::Contiguous);
    const std::vector<std::int64_t> strides = tensor.strides().vec();
    intercept::mark_part(tensor, std::move(part), cut, shape, strides);
    note_slice(tensor, shape, *cut);
  }

  TensorAxis& axis() { return *axis_; }

  const std::shared_ptr<torch::nn::Module>& module() const override { return module_; }
  bool cuts_layers() const override { return true; }
  void set_outer(std::weak_ptr<ModelState> outer) override { outer_ = std::move(outer); }
  std::shared_ptr<ModelState> outer() const override { return outer_.lock(); }
  std::vector<ModelAxis> axes() const override { return {{axis_->comm(), true}}; }

  std::vector<TrainedTensor> trained() const override {
    std::vector<TrainedTensor> found = shard::whole_parameters(*module_, 1);
    for (TrainedTensor& trained : found) {
      if (cut_of(trained.tensor)) trained.replicated_over.clear();
    }
    return found;
  }

  std::vector<StateSlice> state_slices() const override { return shard::whole_state(*module_); }

  void hold(const GatherOptions& options) override {
    kept_error_.raise();
    const at::NoGradGuard no_grad;
    for (const at::Tensor& tensor : named_by(options)) {
      const auto known = held_.find(tensor.unsafeGetTensorImpl());
      if (known != held_.end()) {
        ++known->second.count;
        continue;
      }
      const CutDataPtr cut = cut_of(tensor);
      if (!cut) continue;
      const at::Tensor part = intercept::held_part(tensor);
      const at::Tensor gathered = gather_parts(part, cut->cut(), cut->size(), axis_->comm());
      const at::Tensor whole = gathered.is_same(part) ? part.clone() : gathered;
      HollowStorage memory(whole.numel(), whole.scalar_type(), whole.device(), why_over(*cut));
      memory.give(bytes_of(whole.contiguous()));
      intercept::unmark_part(tensor, memory.view(0, whole.sizes()));
      set_global_slice(tensor, Slice::whole(tensor.sizes().vec()));
      held_.emplace(tensor.unsafeGetTensorImpl(), Held{tensor, part, cut, std::move(memory), 1});
      axis_->hold_whole(cut->parameter());
    }
  }
  void require_not_held() const override {
    kept_error_.raise();
    axis_->require_none_held("gradients are asked for");
  }
  bool is_held() const override { return axis_->is_held(); }
  void before_part_write(std::function<void(const at::Tensor& part)> prepare) override {
    prepare_ = std::move(prepare);
  }
  void let_go(const GatherOptions& options) noexcept override {
    for (const at::Tensor& tensor : named_by(options)) {
      const auto known = held_.find(tensor.unsafeGetTensorImpl());
      if (known == held_.end() || --known->second.count > 0) continue;
      axis_->let_go(known->second.cut->parameter());
      cut_again(known->second);
      known->second.memory.take(why_over(*known->second.cut));
      held_.erase(known);
    }
  }

  /// Gradients that come from now on are cut as their parameters are.
  void fit_gradients() const {
    for (const at::Tensor& parameter : parameters_of(*module_).tensors) {
      if (!parameter.is_floating_point() && !parameter.is_complex()) continue;
      // Also of one that is frozen: it may be trained later, and only a tensor that requires a gradient takes a hook.
      const bool is_trained = parameter.requires_grad();
      parameter.set_requires_grad(true);
      intercept::register_own_hook(parameter, [fit = GradientFit(parameter), axis = axis_](const at::Tensor& gradient) {
        axis->require_none_held("a backward pass reaches a parameter");
        return fit(gradient);
      });
      parameter.set_requires_grad(is_trained);
    }
  }

  /// So are those that a program has set, or that came for a parameter that was frozen before.
  void settle_gradients() override {
    require_not_held();
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters_of(*module_).tensors) {
      at::Tensor& gradient = at::Tensor(parameter).mutable_grad();
      if (!gradient.defined()) continue;
      if (at::Tensor fit = GradientFit(parameter)(gradient.detach()); fit.defined()) gradient = std::move(fit);
    }
  }

 private:
  /// A tensor that is whole for a time, and its part.
  struct Held {
    at::Tensor tensor;
    at::Tensor part;
    CutDataPtr cut;
    HollowStorage memory;  // of the whole
    int count;             // of those who hold it
  };

  /// Why a view of what was whole has no bytes any more: it would not see what is written to the part, nor the other
  /// way round.
  std::string why_over(const CutData& cut) const {
    return "a view of " + *cut.parameter() + " that was made while gather() held it whole is used after that (rank " +
           std::to_string(axis_->comm().world_rank()) + "): clone() it inside, or make the view anew";
  }

  /// Which elements of the whole a tensor has from now on.
  void note_slice(const at::Tensor& tensor, const std::vector<std::int64_t>& shape, const CutData& cut) const {
    set_global_slice(tensor, slice_at(shape, {cut.cut()}, {{axis_->size()}, {axis_->rank()}}));
  }

  /// The tensors that hold() and let_go() are about.
  std::vector<at::Tensor> named_by(const GatherOptions& options) const {
    return state_of(options.module() ? *options.module() : *module_).tensors;
  }

  void cut_again(const Held& held) {
    const at::NoGradGuard no_grad;
    const std::vector<std::int64_t> sizes = held.tensor.sizes().vec();
    const std::vector<std::int64_t> strides = held.tensor.strides().vec();
    try {
      const at::Tensor now = take_part(held.tensor.detach(), held.cut->cut(), axis_->size(), axis_->rank());
      // Who keeps the bytes of the part may forbid writes, so only if there is something to write.
      if (!at::equal(now, held.part)) {
        if (prepare_) prepare_(held.part);
        at::Tensor(held.part).copy_(now);
      }
    } catch (...) {
      kept_error_.keep(std::current_exception());  // let_go() must not throw
    }
    intercept::mark_part(held.tensor, held.part, held.cut, sizes, strides);
    note_slice(held.tensor, sizes, *held.cut);
  }

  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<TensorAxis> axis_;
  std::weak_ptr<ModelState> outer_;
  std::unordered_map<const c10::TensorImpl*, Held> held_;
  std::function<void(const at::Tensor& part)> prepare_;
  mutable intercept::KeptError kept_error_;  // of let_go(): for the next call
};

}  // namespace tp

namespace {

using tp::TensorAxis;
using tp::TensorParallelState;

/// A line for each option, cut and tensor that must be the same on every rank.
std::vector<std::string> lines_of(const torch::nn::Module& model, const TensorPlan& plan,
                                  const TensorParallelOptions& options) {
  std::vector<std::string> lines;
  for (const auto& field : TensorParallelOptions::fields().fields()) {
    lines.push_back("option " + field.key + " = " + TensorParallelOptions::fields().get_text(options, field.key));
  }
  for (const std::string& line : plan.lines()) lines.push_back("split " + line);
  const auto tensors = described(state_of(model));
  lines.insert(lines.end(), tensors.begin(), tensors.end());
  return lines;
}

void require_plain(const torch::nn::Module& model) {
  const NamedTensors state = state_of(model);
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    if (!intercept::acting_data(state.tensors[i]) && global_slice(state.tensors[i]).is_whole()) continue;
    throw ConfigError(
        state.names[i] +
        " is cut already: call tensor_parallel() once for a model, and before fully_shard() or distribute()");
  }
  if (shard::find_shared(model)) {
    throw ConfigError("the model is shared already: call tensor_parallel() before fully_shard() or distribute()");
  }
}

/// Two parameters with the same bytes, as `set_data` makes them, would no longer share them.
void refuse_shared_bytes(const torch::nn::Module& model, const std::vector<PlannedCut>& cuts) {
  const NamedTensors state = state_of(model);
  for (const PlannedCut& cut : cuts) {
    if (is_deferred(cut.tensor) || !cut.tensor.has_storage() || cut.tensor.numel() == 0) continue;
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
      const at::Tensor& other = state.tensors[i];
      if (other.is_same(cut.tensor) || is_deferred(other) || !other.has_storage()) continue;
      if (!other.is_alias_of(cut.tensor)) continue;
      throw ConfigError(cut.name + " shares its memory with " + state.names[i] +
                        ", and a part would have memory of its own: register one tensor in both places instead");
    }
  }
}

std::string bytes_text(std::int64_t bytes) {
  std::ostringstream text;
  if (bytes < 10'000) {
    text << bytes << " B";
  } else {
    text << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / 1e6 << " MB";
  }
  return text.str();
}

const char* kind_text(TensorTransfer::Kind kind) {
  switch (kind) {
    case TensorTransfer::Kind::kAllReduce:
      return "all-reduce";
    case TensorTransfer::Kind::kBackwardAllReduce:
      return "all-reduce, backward";
    case TensorTransfer::Kind::kAllGather:
      return "all-gather";
    case TensorTransfer::Kind::kBackwardAllGather:
      return "all-gather, backward";
  }
  return "";
}

}  // namespace

const FieldList<TensorParallelOptions>& TensorParallelOptions::fields() {
  static const auto kList =
      FieldList<TensorParallelOptions>("tensor_parallel")
          .add("strict", &TensorParallelOptions::strict_, "Refuse operators without a rule instead of gathering.")
          .add("init_sync", &TensorParallelOptions::init_sync_,
               "At the start every rank takes rank 0's parameters and buffers.")
          .add("num_checked_inputs", &TensorParallelOptions::num_checked_inputs_,
               "So many tensors that enter cut layers are compared between the ranks.");
  return kList;
}

std::int64_t TensorReport::num_bytes() const {
  std::int64_t bytes = 0;
  for (const TensorTransfer& transfer : transfers) bytes += transfer.num_bytes;
  return bytes;
}

std::int64_t TensorReport::num_bytes(TensorTransfer::Kind kind) const {
  std::int64_t bytes = 0;
  for (const TensorTransfer& transfer : transfers) bytes += transfer.kind == kind ? transfer.num_bytes : 0;
  return bytes;
}

std::string TensorReport::text() const {
  std::ostringstream text;
  text << std::left << std::setw(22) << "what" << std::right << std::setw(6) << "calls" << std::setw(12) << "bytes"
       << "  operator, and the parameter that cut its input\n";
  for (const TensorTransfer& transfer : transfers) {
    text << std::left << std::setw(22) << kind_text(transfer.kind) << std::right << std::setw(6) << transfer.num_calls
         << std::setw(12) << bytes_text(transfer.num_bytes) << "  " << transfer.op << ", " << transfer.parameter
         << (transfer.has_rule ? "" : "  <- no rule: the plan leaks here") << "\n";
  }
  return text.str() + "all: " + bytes_text(num_bytes()) + "\n";
}

TensorParallelModel::TensorParallelModel(std::shared_ptr<TensorParallelState> state)
    : ParallelModel(state), state_(std::move(state)) {}

TensorReport TensorParallelModel::report() const {
  TensorReport report;
  for (const TensorAxis::Entry& entry : state_->axis().take_log()) {
    report.transfers.push_back({static_cast<TensorTransfer::Kind>(entry.transfer), entry.site.op, entry.site.parameter,
                                entry.traffic.num_calls, entry.traffic.num_bytes, entry.has_rule});
  }
  std::ranges::stable_sort(report.transfers, [](const auto& a, const auto& b) { return a.num_bytes > b.num_bytes; });
  return report;
}

TensorParallelModel tensor_parallel(const std::shared_ptr<torch::nn::Module>& model, const Ranks& ranks,
                                    const TensorPlan& plan, const TensorParallelOptions& options) {
  if (!model) throw ConfigError("there is no model to cut: the pointer is null");
  std::string fault;
  std::vector<PlannedCut> cuts;
  try {
    require_plain(*model);
    cuts = PlanMatcher(*model).match(plan);
    if (cuts.empty()) throw ConfigError("the plan of tensor parallelism cuts nothing");
    refuse_shared_bytes(*model, cuts);
  } catch (const ConfigError& error) {
    fault = error.what();
  }
  // If one rank finds a fault, the others must throw too instead of waiting for it.
  std::vector<std::string> lines{"fault: " + fault};
  std::ranges::replace(lines.back(), '\n', ' ');
  if (fault.empty()) lines = lines_of(*model, plan, options);
  require_same_lines(ranks.comm(), lines, "do not cut the same model");
  if (!fault.empty()) throw ConfigError(fault + " (rank " + std::to_string(ranks.comm().world_rank()) + ")");

  auto axis = std::make_shared<TensorAxis>(ranks.comm(), options.strict(), options.num_checked_inputs());
  auto state = std::make_shared<TensorParallelState>(model, axis);
  std::unordered_map<const c10::TensorImpl*, const PlannedCut*> planned;
  for (const PlannedCut& cut : cuts) planned[cut.tensor.unsafeGetTensorImpl()] = &cut;
  // One by one, so that no more than one tensor of a model without bytes is ever whole.
  for (const at::Tensor& tensor : state_of(*model).tensors) {
    materialize(tensor);
    if (options.init_sync()) broadcast_all(ranks.comm(), {tensor.detach()}, 0);
    const auto found = planned.find(tensor.unsafeGetTensorImpl());
    if (found != planned.end()) state->cut(*found->second);
  }
  state->fit_gradients();
  shard::note_shared(state);
  return TensorParallelModel(std::move(state));
}

}  // namespace tessera
