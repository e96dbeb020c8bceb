#include "intercept/acting/autograd_front.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <mutex>
#include <sstream>
#include <utility>

#include "intercept/acting/wrapper.h"

namespace tessera::intercept {
namespace {

/// Whose gradients are those of its inner tensor; null for others.
Wrapper* joined_wrapper(const at::TensorBase& tensor) {
  Wrapper* const wrapper = Wrapper::of(tensor);
  return wrapper && wrapper->is_joined() && wrapper->inner().requires_grad() ? wrapper : nullptr;
}

/// Whose gradients are another process's.
bool is_without_history(const at::TensorBase& tensor) {
  const Wrapper* const wrapper = Wrapper::of(tensor);
  return wrapper && !wrapper->has_history();
}

void keep_gradient(Wrapper& wrapper, const at::Tensor& gradient) {
  at::Tensor& kept = wrapper.mutable_grad();
  kept = kept.defined() ? kept + gradient : gradient.clone();
}

}  // namespace

void AutogradFront::install() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto* const current = at::impl::GetVariableHooks();
  if (dynamic_cast<AutogradFront*>(current)) return;
  at::impl::SetVariableHooks(new AutogradFront(*current));  // never destroyed: LibTorch keeps the pointer
}

const c10::intrusive_ptr<torch::autograd::Node>& AutogradFront::grad_fn(const at::TensorBase& self) const {
  Wrapper* const without_history = Wrapper::of(self);
  if (without_history && !without_history->has_history()) {
    without_history->lead_to_inner();
    return behind_->grad_fn(self);
  }
  // Made now, or made anew: the inner tensor may have been written to since, through a view of it.
  if (Wrapper* const wrapper = joined_wrapper(self)) wrapper->join();
  return behind_->grad_fn(self);
}

bool AutogradFront::is_leaf(const at::TensorBase& self) const {
  return !joined_wrapper(self) && behind_->is_leaf(self);
}

unsigned AutogradFront::_register_hook(const at::TensorBase& self,
                                       std::function<at::TensorBase(const at::TensorBase&)> hook) const {
  if (const Wrapper* const any = Wrapper::of(self)) any->data()->kind().require_hookable(*any->data());
  if (is_without_history(self)) return 0;
  const Wrapper* const wrapper = joined_wrapper(self);
  if (!wrapper) return behind_->_register_hook(self, std::move(hook));
  auto of_inner = [hook = std::move(hook), data = wrapper->data()](const at::TensorBase& gradient) -> at::TensorBase {
    const at::Tensor changed(hook(data->kind().outer_gradient(at::Tensor(gradient), data)));
    if (!changed.defined()) return at::TensorBase();
    return data->kind().inner_gradient(changed, *data);
  };
  return at::impl::GetVariableHooks()->_register_hook(wrapper->inner(), std::move(of_inner));
}

void AutogradFront::remove_hook(const at::TensorBase& self, unsigned position) const {
  if (is_without_history(self)) return;
  const Wrapper* const wrapper = joined_wrapper(self);
  if (!wrapper) return behind_->remove_hook(self, position);
  at::impl::GetVariableHooks()->remove_hook(wrapper->inner(), position);
}

void AutogradFront::set_data(const at::TensorBase& self, const at::TensorBase& data) const {
  const ActingDataPtr mark = acts(self) && !Wrapper::of(self) ? acting_data(at::Tensor(self)) : nullptr;
  const bool is_computed = mark && Wrapper::of(data) && self.sizes() == data.sizes() && !self.has_storage();
  if (!mark || (acts(data) && !is_computed)) return behind_->set_data(self, data);
  if (self.sizes() == data.sizes() && !self.has_storage()) {
    const at::NoGradGuard no_grad;
    at::Tensor part = mark->kind().inner_gradient(at::Tensor(data).detach(), *mark).clone();
    return behind_->set_data(self, make_part(std::move(part), mark, self.sizes(), self.strides()));
  }
  if (self.sizes() != data.sizes()) {
    std::ostringstream text;
    text << "a " << mark->kind().name() << " of " << self.sizes() << " is to get data of " << data.sizes();
    throw ConfigError(text.str());
  }
  behind_->set_data(self, data);
  mark_acting(at::Tensor(self), mark);
}

void AutogradFront::retain_grad(const at::TensorBase& self) const {
  if (is_without_history(self)) return;
  Wrapper* const wrapper = joined_wrapper(self);
  if (!wrapper) return behind_->retain_grad(self);
  if (std::exchange(wrapper->retains_grad, true)) return;
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(self.getIntrusivePtr());
  auto keep = [weak](const at::TensorBase& gradient) {
    const auto alive = weak.lock();
    if (alive) keep_gradient(static_cast<Wrapper&>(*alive), at::Tensor(gradient));
    return at::TensorBase();
  };
  _register_hook(self, std::move(keep));
}

bool AutogradFront::retains_grad(const at::TensorBase& self) const {
  const Wrapper* const wrapper = Wrapper::of(self);
  return (wrapper && wrapper->retains_grad) || behind_->retains_grad(self);
}

void AutogradFront::_backward(const at::Tensor& self, at::TensorList inputs, const std::optional<at::Tensor>& gradient,
                              std::optional<bool> keep_graph, bool create_graph) const {
  behind_->_backward(self, inputs, gradient, keep_graph, create_graph);
}

void AutogradFront::basic_autograd_not_implemented_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                                            torch::jit::Stack* stack) const {
  behind_->basic_autograd_not_implemented_fallback(op, keys, stack);
}

}  // namespace tessera::intercept
