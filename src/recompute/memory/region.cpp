#include "recompute/memory/region.h"

#include <tessera/core/error.h>
#include <tessera/intercept/backward_pass.h>
#include <tessera/intercept/operator_call.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <utility>

namespace tessera::recomputation {
namespace {

/// Takes the tensors that one operator saves when it runs again.
class Collector : public intercept::SavedTensorKeeper {
 public:
  std::unique_ptr<intercept::SavedTensorSlot> make_slot() override { return std::make_unique<CollectedSlot>(*this); }
  std::vector<at::Tensor> taken;

 private:
  /// Of the second graph, in which no backward runs.
  class CollectedSlot : public intercept::SavedTensorSlot {
   public:
    explicit CollectedSlot(Collector& collector) : collector_(collector) {}
    void pack(const at::Tensor& tensor) override { collector_.taken.push_back(tensor.tensor_data()); }
    at::Tensor unpack() override { throw InternalError("a graph that was made again is asked for its tensors"); }

   private:
    Collector& collector_;
  };
};

}  // namespace

Recomputed::~Recomputed() { region_->forget(number_); }
at::Tensor Recomputed::tensor() const { return region_->tensor(number_); }

Value Region::add_outside(const at::Tensor& tensor, bool is_of_model) {
  ValueSource source;
  source.is_leaf = tensor.is_leaf() && tensor.requires_grad();
  // Not with its history: what was before the region shall not live as long.
  source.outside = Kept(source.is_leaf ? tensor : tensor.detach(), is_of_model ? nullptr : tally_);
  sources_.push_back(std::move(source));
  return sources_.size() - 1;
}

Value Region::add_computed(std::shared_ptr<Recomputed> from) {
  ValueSource source;
  source.computed = std::move(from);
  sources_.push_back(std::move(source));
  return sources_.size() - 1;
}

Value Region::add_stand_in(const at::Tensor& like) {
  ValueSource source;
  source.options = like.options();
  source.geometry = Geometry(like);
  sources_.push_back(std::move(source));
  return sources_.size() - 1;
}

Value Region::add_inside() {
  ValueSource source;
  source.is_inside = true;
  sources_.push_back(std::move(source));
  return sources_.size() - 1;
}

std::size_t Region::add(RecordedOperator op) {
  const std::lock_guard lock(mutex_);
  operators_.push_back(std::move(op));
  return operators_.size() - 1;
}

std::size_t Region::want_saved(std::size_t saved) {
  const std::lock_guard lock(mutex_);
  wanted_.push_back({operators_.size() - 1, saved, std::nullopt});
  ++num_wanted_;
  tally_->drop();
  return wanted_.size() - 1;
}

std::size_t Region::want_given(std::size_t given, Geometry geometry) {
  const std::lock_guard lock(mutex_);
  wanted_.push_back({operators_.size() - 1, given, std::move(geometry)});
  ++num_wanted_;
  tally_->drop();
  return wanted_.size() - 1;
}

bool Region::has_from_outside(const c10::StorageImpl* memory) const {
  for (const ValueSource& source : sources_) {
    if (source.outside.tensor().defined() && memory_of(source.outside.tensor()) == memory) return true;
  }
  return false;
}

void Region::keep_copy_of(const c10::StorageImpl* memory) {
  const std::lock_guard lock(mutex_);
  at::Tensor copy;
  for (ValueSource& source : sources_) {
    const at::Tensor now = source.outside.tensor();
    if (!now.defined() || memory_of(now) != memory) continue;
    const at::NoGradGuard no_grad;
    const bool requires_grad = now.requires_grad();
    source.is_leaf = false;
    source.outside = Kept(now.detach().clone().set_requires_grad(requires_grad), tally_);
  }
}

void Region::spoil(std::string why) {
  const std::lock_guard lock(mutex_);
  if (spoilt_.empty()) spoilt_ = std::move(why);
}

bool Region::is_over() const {
  const std::lock_guard lock(mutex_);
  return was_asked_ || (!wanted_.empty() && num_wanted_ == 0);
}

at::Tensor Region::tensor(std::size_t number) {
  const std::lock_guard lock(mutex_);
  was_asked_ = true;
  const std::shared_ptr<Replayed> replayed = replayed_of_this_pass();
  if (number >= replayed->slots.size() || !replayed->slots[number].tensor.defined()) replay(*replayed);
  Replayed::Slot& slot = replayed->slots[number];
  if (!slot.tensor.defined()) throw InternalError("a tensor of " + name_ + " was not computed again");
  if (slot.tensor._version() != slot.version) {
    throw ConfigError("the forward changes a tensor of " + name_ +
                      " in place that its gradients need: use the form of the operator that is not in place");
  }
  // As in Segment::tensor().
  if (intercept::in_backward() && !intercept::keeps_graph()) return slot.tensor;
  return std::exchange(slot.tensor, at::Tensor());
}

std::shared_ptr<Replayed> Region::replayed_of_this_pass() {
  auto replayed = replayed_.lock();
  if (replayed) return replayed;
  replayed = std::make_shared<Replayed>();
  if (intercept::in_backward()) {
    intercept::at_end_of_backward([replayed] {});  // keeps it until the pass succeeds or fails
    replayed_ = replayed;
  }
  return replayed;
}

void Region::forget(std::size_t number) noexcept {
  const std::lock_guard lock(mutex_);
  wanted_[number].is_wanted = false;
  --num_wanted_;
  const auto replayed = replayed_.lock();
  if (replayed && number < replayed->slots.size()) replayed->slots[number].tensor.reset();
}

/// Which numbers each operator gives, of those that may still be asked for; `end`: where the operators end that do.
Region::Numbers Region::numbers_by_operator(std::size_t& end) const {
  Numbers numbers(operators_.size());
  end = 0;
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    if (!wanted_[i].is_wanted) continue;
    numbers[wanted_[i].op].push_back(i);
    end = std::max(end, wanted_[i].op + 1);
  }
  return numbers;
}

std::vector<std::size_t> Region::last_uses() const {
  std::vector<std::size_t> last(sources_.size(), 0);
  for (std::size_t i = 0; i < operators_.size(); ++i) {
    for (const auto& taken : operators_[i].taken) last[taken.value] = i;
    for (const Value value : operators_[i].given) last[value] = i;
  }
  return last;
}

void Region::replay(Replayed& replayed) {
  if (!spoilt_.empty()) throw ConfigError(spoilt_);
  replayed.slots.resize(wanted_.size());
  std::size_t end = 0;
  const Numbers numbers = numbers_by_operator(end);
  const std::vector<std::size_t> last = last_uses();
  std::vector<std::vector<Value>> freed(operators_.size());
  for (Value value = 0; value < last.size(); ++value) freed[last[value]].push_back(value);
  std::vector<at::Tensor> values(sources_.size());
  const at::AutoGradMode with_gradients(true);
  const AutocastState* current = nullptr;
  std::optional<AutocastScope> autocast;
  for (std::size_t i = 0; i < end; ++i) {
    const RecordedOperator& op = operators_[i];
    if (op.autocast.get() != current) {
      autocast.reset();
      autocast.emplace(*op.autocast);
      current = op.autocast.get();
    }
    run(op, numbers[i], values, replayed);
    for (const Value value : freed[i]) values[value].reset();
  }
  tally_->run_again(static_cast<std::int64_t>(end));
}

void Region::run(const RecordedOperator& op, const std::vector<std::size_t>& numbers, std::vector<at::Tensor>& values,
                 Replayed& replayed) const {
  torch::jit::Stack stack = op.arguments;
  intercept::OperatorCall call(op.handle, stack);
  std::size_t next = 0;
  call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return {};
    return value(op.taken[next++], values);
  });
  Collector collector;
  {
    const RandomScope random(op.random);
    const intercept::SavedTensorScope scope(collector);
    try {
      call.run();
    } catch (c10::Error& error) {
      error.add_context("while " + call.name() + " of " + name_ + " ran again in backward to save memory");
      throw;
    }
    if (op.random && op.random->now().digest() != op.random_digest_after) {
      throw ConfigError(call.name() + " of " + name_ +
                        " drew other random numbers when it ran again in backward: another thread used LibTorch's "
                        "default generator at the same time. Let one thread at a time use it");
    }
  }
  next = 0;
  call.for_each_result([&](std::size_t, const at::Tensor& result) -> at::Tensor {
    if (next < op.given.size()) values[op.given[next]] = result;
    ++next;
    return {};
  });
  bool is_same = next == op.given.size() && collector.taken.size() == op.saved.size();
  for (std::size_t i = 0; is_same && i < op.saved.size(); ++i) {
    is_same = collector.taken[i].sizes() == at::IntArrayRef(op.saved[i].sizes) &&
              collector.taken[i].scalar_type() == op.saved[i].dtype &&
              collector.taken[i].device() == op.saved[i].device;
  }
  if (!is_same) {
    throw ConfigError(call.name() + " of " + name_ +
                      " did something else when it ran again in backward: it saved other tensors for its gradients. "
                      "Something that it depends on was changed since forward, such as a setting of LibTorch");
  }
  for (const std::size_t number : numbers) {
    const Wanted& wanted = wanted_[number];
    at::Tensor found = wanted.geometry ? values[op.given[wanted.index]].tensor_data() : collector.taken[wanted.index];
    if (wanted.geometry) {
      const at::NoGradGuard no_grad;
      found = found.as_strided(wanted.geometry->sizes, wanted.geometry->strides, wanted.geometry->offset);
    }
    const auto version = found._version();
    replayed.slots[number] = {std::move(found), version};
  }
}

at::Tensor Region::load(const ValueSource& source) const {
  if (source.computed) return source.computed->tensor();
  if (source.geometry) return at::empty_strided(source.geometry->sizes, source.geometry->strides, *source.options);
  return source.outside.get();
}

at::Tensor Region::value(const RecordedOperator::Taken& taken, std::vector<at::Tensor>& values) const {
  const ValueSource& source = sources_[taken.value];
  at::Tensor& value = values[taken.value];
  if (!value.defined()) {
    if (source.is_inside) throw InternalError("a value of " + name_ + " is gone");
    value = load(source);
  }
  if (source.is_leaf || value.requires_grad() == taken.requires_grad) return value;
  value = value.detach().set_requires_grad(taken.requires_grad);
  return value;
}

}  // namespace tessera::recomputation
