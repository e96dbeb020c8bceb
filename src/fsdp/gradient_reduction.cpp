#include "fsdp/gradient_reduction.h"

#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>

namespace tessera::fsdp {
namespace {

// At most this many units are averaged at a time: two, so that small units follow each other without a gap. Above
// kMaxReducingBytes only one, since the backward of the next unit usually hides its average.
constexpr std::size_t kMaxReducing = 2;
constexpr std::int64_t kMaxReducingBytes = std::int64_t{16} << 20;

}  // namespace

GradientReduction::GradientReduction(const std::vector<std::unique_ptr<Unit>>& units, const NamedTensors& replicated,
                                     UnitRanks ranks, SamePath& path)
    : units_(units), replicated_(replicated), ranks_(std::move(ranks)), path_(path), expected_(units.size(), 0) {}

void GradientReduction::hook(const std::weak_ptr<GradientListener>& listener) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!units_[u]->is_trained()) continue;
    const auto& parameters = units_[u]->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      hooked_.push_back({take_gradients_of(static_cast<int>(u), i, listener), static_cast<int>(u), i});
    }
  }
  // A pass may reach only these, in a small model or in one whose large parameters are frozen.
  for (std::size_t i = 0; i < replicated_.tensors.size(); ++i) {
    const at::Tensor& parameter = replicated_.tensors[i];
    notices_.emplace_back(parameter, [&parameter, listener, i] {
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined() && gradient.is_sparse()) gradient = gradient.to_dense();
      if (const auto alive = listener.lock()) alive->on_replicated_gradient(i);
    });
  }
}

intercept::GradientNode GradientReduction::take_gradients_of(int unit, std::size_t index,
                                                             const std::weak_ptr<GradientListener>& listener) {
  intercept::GradientNode node(units_[static_cast<std::size_t>(unit)]->parameters()[index]);
  node.take([this, listener, unit, index](const at::Tensor& gradient) {
    if (const auto alive = listener.lock()) take(*alive, unit, index, gradient);
  });
  return node;
}

void GradientReduction::hook_again(const std::weak_ptr<GradientListener>& listener) {
  for (Hooked& hooked : hooked_) {
    const at::Tensor& parameter = units_[static_cast<std::size_t>(hooked.unit)]->parameters()[hooked.index];
    if (intercept::holds_part(parameter) && parameter.requires_grad() && !hooked.node.is_of(parameter)) {
      hooked.node = take_gradients_of(hooked.unit, hooked.index, listener);
    }
  }
}

bool GradientReduction::other_graphs_live() const {
  std::vector<const intercept::GradientNode*> nodes;
  for (const Hooked& hooked : hooked_) nodes.push_back(&hooked.node);
  // A graph may lead to these alone.
  std::vector<intercept::GradientNode> of_replicated;
  for (const at::Tensor& parameter : trained_replicated()) of_replicated.emplace_back(parameter);
  for (const intercept::GradientNode& node : of_replicated) nodes.push_back(&node);
  return intercept::other_graphs_live(nodes, std::vector<std::size_t>(nodes.size(), 1));
}

void GradientReduction::start(bool averages) {
  averages_ = averages;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    // Promised gradients whose average is under way must not be cleared.
    const bool is_under_way = std::find(reducing_.begin(), reducing_.end(), static_cast<int>(i)) != reducing_.end();
    if (!is_under_way) units_[i]->drop_cleared_gradients();
  }
  std::fill(expected_.begin(), expected_.end(), 0);
  for (const Hooked& hooked : hooked_) {
    if (hooked.node.will_run()) ++expected_[static_cast<std::size_t>(hooked.unit)];
  }
}

void GradientReduction::take(GradientListener& listener, int unit, std::size_t index, const at::Tensor& gradient) {
  const auto dealing = listener.on_gradient(units_[static_cast<std::size_t>(unit)]->parameters()[index]);
  add(unit, index, gradient);
  if (--expected_[static_cast<std::size_t>(unit)] != 0) return;
  complete(unit);
  listener.on_unit_complete(unit);
}

void GradientReduction::add(int unit, std::size_t index, const at::Tensor& gradient) {
  units_[static_cast<std::size_t>(unit)]->take_gradient(index, gradient);
}

void GradientReduction::complete(int unit) {
  if (averages_) reduce(unit);
}

void GradientReduction::set_micro_batch(std::int64_t /*index*/) {
  throw ConfigError("set_micro_batch() is for FsdpOptions::reproducible(true): else micro-batches have no numbers");
}

void GradientReduction::reduce(int unit) {
  // A unit whose gradients came in two parts is averaged twice, one part after the other.
  while (std::find(reducing_.begin(), reducing_.end(), unit) != reducing_.end() || !has_room_for(unit)) finish_oldest();
  units_[static_cast<std::size_t>(unit)]->start_reduce();
  ++num_reduce_scatters_;
  path_.note(SamePath::Event::kAverage, unit);
  reducing_.push_back(unit);
}

void GradientReduction::average_complete(const shard::GradientPromise& promise) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const auto& parameters = units_[i]->parameters();
    const bool is_complete = std::all_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
      return !parameter.requires_grad() || promise.is_complete(parameter);
    });
    if (is_complete && units_[i]->has_unreduced_gradients()) reduce(static_cast<int>(i));
  }
}

bool GradientReduction::has_room_for(int unit) const {
  if (reducing_.empty()) return true;
  std::int64_t num_bytes = units_[static_cast<std::size_t>(unit)]->gradient_bytes();
  for (const int under_way : reducing_) num_bytes += units_[static_cast<std::size_t>(under_way)]->gradient_bytes();
  return reducing_.size() < kMaxReducing && num_bytes <= kMaxReducingBytes;
}

void GradientReduction::finish_oldest() {
  units_[static_cast<std::size_t>(reducing_.front())]->finish_reduce();
  reducing_.pop_front();
}

void GradientReduction::wait() {
  while (!reducing_.empty()) finish_oldest();
}

void GradientReduction::finish() {
  if (averages_) {
    // Gradients that earlier passes left and this one did not complete.
    for (std::size_t i = 0; i < units_.size(); ++i) {
      if (units_[i]->has_unreduced_gradients()) reduce(static_cast<int>(i));
    }
    wait();
    reduce_replicated();
    require_same_path();
    hand_out_slices();
  }
  mark_gradients();
}

void GradientReduction::mark_gradients() const {
  for (const auto& unit : units_) {
    if (unit->is_trained()) unit->mark_gradients();
  }
}

void GradientReduction::abandon() {
  reducing_.clear();
  for (const auto& unit : units_) unit->drop_gradients();
}

void GradientReduction::hand_out_slices() {
  std::vector<float> had;
  for (const auto& unit : units_) {
    if (!unit->is_trained() || unit->trained_slices().empty()) continue;
    for (std::size_t i = 0; i < unit->parameters().size(); ++i) had.push_back(unit->had_gradient(i) ? 1 : 0);
  }
  if (had.empty()) return;
  const at::Tensor on_some_rank = at::from_blob(had.data(), {static_cast<std::int64_t>(had.size())}).clone();
  ranks_.shards.all_reduce(on_some_rank, ReduceOp::kMax);
  if (ranks_.replicas) ranks_.replicas->all_reduce(on_some_rank, ReduceOp::kMax);
  const float* next = on_some_rank.const_data_ptr<float>();
  for (const auto& unit : units_) {
    if (!unit->is_trained() || unit->trained_slices().empty()) continue;
    unit->hand_out_gradients(next);
    next += unit->parameters().size();
  }
}

void GradientReduction::require_same_path() {
  const int no_unit = static_cast<int>(units_.size());
  const auto name_of = [&](int unit) {
    if (unit == no_unit) return std::string("others than the ranks of its own shards");
    const std::string& name = units_[static_cast<std::size_t>(unit)]->name();
    return name.empty() ? std::string("the model itself") : name;
  };
  ranks_.require_same([&](const Communicator& comm) { path_.require_agreement(comm, name_of); },
                      [&](const std::string&) { path_.note(SamePath::Event::kAverage, no_unit); });
  path_.forget();
}

std::vector<at::Tensor> GradientReduction::trained_replicated() const {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : replicated_.tensors) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  return trained;
}

void GradientReduction::reduce_replicated() {
  const std::vector<at::Tensor> trained = trained_replicated();
  if (trained.empty()) return;
  // A parameter that no rank used still gets no gradient: weight decay would act on zeros.
  const at::Tensor used = at::zeros({static_cast<std::int64_t>(trained.size())});
  for (std::size_t i = 0; i < trained.size(); ++i) {
    used[static_cast<std::int64_t>(i)] = trained[i].grad().defined() ? 1 : 0;
  }
  std::vector<at::Tensor> gradients{used};
  for (const at::Tensor& parameter : trained) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter));
  }
  average_all(ranks_.shards, gradients);
  if (ranks_.replicas) average_all(*ranks_.replicas, gradients);
  for (std::size_t i = 0; i < trained.size(); ++i) {
    if (used[static_cast<std::int64_t>(i)].item<float>() > 0) trained[i].mutable_grad() = gradients[i + 1];
  }
}

}  // namespace tessera::fsdp
