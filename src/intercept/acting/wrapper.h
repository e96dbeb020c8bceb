#pragma once

#include <tessera/intercept/acting_tensor.h>

#include <c10/core/DispatchKey.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <torch/csrc/autograd/function.h>

namespace tessera::intercept {

/// Free outside of LibTorch, and above autocast, autograd and functorch. `DeferredInit` is taken by deferred
/// construction, which must see what a kind does below.
constexpr c10::DispatchKey kActingKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

inline bool acts(const at::TensorBase& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kActingKey);
}

/// Stands for `inner`, with sizes of its own and no bytes.
class Wrapper : public c10::TensorImpl {
 public:
  Wrapper(at::Tensor inner, ActingDataPtr data, at::IntArrayRef sizes, at::IntArrayRef strides);
  /// Null for tensors that are none.
  static Wrapper* of(const at::TensorBase& tensor);

  const at::Tensor& inner() const { return inner_; }
  const ActingDataPtr& data() const { return data_; }
  void set(at::Tensor inner, at::IntArrayRef sizes, at::IntArrayRef strides);
  void set_data(ActingDataPtr data) { data_ = std::move(data); }

  bool has_history() const { return data_->kind().has_history(*data_); }
  /// Without a history: it leads to the inner tensor, whatever a custom function has said.
  void lead_to_inner();
  /// Whether gradients of this tensor are those of `inner`: it is no leaf of its own, and no custom function made it.
  bool is_joined() const;
  /// Gives it the node that leads to `inner`, if that requires a gradient and there is none yet. Requires: is_joined().
  void join();

  /// The inner tensor of a leaf, or of a result of a custom function, with a history that leads back to this one. Of
  /// the latter the same each time, so that a write through a view is in the history of all uses. Requires: not
  /// is_joined().
  at::Tensor entered();

  void release_resources() override;
  c10::SymBool sym_is_contiguous_custom(at::MemoryFormat /*format*/) const override { return false; }

  bool retains_grad = false;  ///< by a hook on `inner`

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                              bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                              bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) override;

 protected:
  const char* tensorimpl_type_name() const override { return "tessera::intercept::Wrapper"; }

 private:
  c10::intrusive_ptr<c10::TensorImpl> copy(c10::VariableVersion version, bool allow_change) const;
  void set_sizes(at::IntArrayRef sizes, at::IntArrayRef strides);
  /// Changes in place are counted for `inner`, and so for its views and what detach() gives: as of an ordinary tensor.
  void share_version();

  at::Tensor inner_;
  // Of a leaf. Weak: its history refers to this tensor.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> entered_{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  ActingDataPtr data_;
  c10::intrusive_ptr<torch::autograd::Node> bridge_;  // that join() gave it
};

}  // namespace tessera::intercept
