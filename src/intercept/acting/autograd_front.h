#pragma once

#include <ATen/core/VariableHooksInterface.h>

namespace tessera::intercept {

/// Note [A front for autograd's methods]
/// `register_hook`, `retain_grad`, `grad_fn` and other methods of a tensor are not operators: LibTorch calls a table of
/// functions that autograd has installed. Ours is a front to it: it answers for tensors that act, and forwards the
/// rest. It belongs to the process, like the table.
class AutogradFront : public at::impl::VariableHooksInterface {
 public:
  static void install();

  at::TensorBase tensor_data(const at::TensorBase& self) const override { return behind_->tensor_data(self); }
  at::TensorBase variable_data(const at::TensorBase& self) const override { return behind_->variable_data(self); }
  const c10::intrusive_ptr<torch::autograd::Node>& grad_fn(const at::TensorBase& self) const override;
  unsigned _register_hook(const at::TensorBase& self,
                          std::function<at::TensorBase(const at::TensorBase&)> hook) const override;
  void remove_hook(const at::TensorBase& self, unsigned position) const override;
  bool is_view(const at::TensorBase& self) const override { return behind_->is_view(self); }
  const at::TensorBase& base(const at::TensorBase& self) const override { return behind_->base(self); }
  const std::string& name(const at::TensorBase& self) const override { return behind_->name(self); }
  bool is_leaf(const at::TensorBase& self) const override;
  int64_t output_nr(const at::TensorBase& self) const override { return behind_->output_nr(self); }
  /// A marked tensor stays one. Throws ConfigError for data of another shape.
  void set_data(const at::TensorBase& self, const at::TensorBase& data) const override;
  at::TensorBase data(const at::TensorBase& self) const override { return behind_->data(self); }
  int64_t _version(const at::TensorBase& self) const override { return behind_->_version(self); }
  void retain_grad(const at::TensorBase& self) const override;
  bool retains_grad(const at::TensorBase& self) const override;
  void _backward(const at::Tensor& self, at::TensorList inputs, const std::optional<at::Tensor>& gradient,
                 std::optional<bool> keep_graph, bool create_graph) const override;
  void requires_grad_(const at::TensorBase& self, bool value) const override { behind_->requires_grad_(self, value); }
  void basic_autograd_not_implemented_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                               torch::jit::Stack* stack) const override;
  std::optional<c10::ScalarType> grad_dtype(const at::TensorBase& self) const override {
    return behind_->grad_dtype(self);
  }
  void set_grad_dtype(const at::TensorBase& self, const std::optional<c10::ScalarType>& dtype) const override {
    behind_->set_grad_dtype(self, dtype);
  }

 private:
  explicit AutogradFront(at::impl::VariableHooksInterface& behind) : behind_(&behind) {}

  at::impl::VariableHooksInterface* behind_;
};

}  // namespace tessera::intercept
