#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace tessera::intercept {

/// Stands for a tensor that autograd saves for backward. Belongs to the node that saved it.
class SavedTensorSlot {
 public:
  virtual ~SavedTensorSlot() = default;
  /// The tensor, once.
  virtual void pack(const at::Tensor& tensor) = 0;
  /// It is asked for, perhaps several times.
  virtual at::Tensor unpack() = 0;
};

/// Decides how a tensor is kept that autograd saves for backward.
class SavedTensorKeeper {
 public:
  virtual ~SavedTensorKeeper() = default;
  /// For the next tensor that is saved; null to keep it as usual. LibTorch may ask and then not use the answer.
  virtual std::unique_ptr<SavedTensorSlot> make_slot() = 0;
};

/// While one lives, the tensors that autograd saves on this thread go to `keeper`. Scopes nest, and only the innermost
/// is asked. Requires: `keeper` outlives the scope. Thread-safety: made and ended by one thread.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorKeeper& keeper);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  SavedTensorKeeper* outer_;
};

/// A tensor that is saved as a node would save it: the keeper of a scope is asked.
class SavedByHand {
 public:
  explicit SavedByHand(const at::Tensor& tensor);
  ~SavedByHand();
  SavedByHand(SavedByHand&& other) noexcept;
  SavedByHand& operator=(SavedByHand&& other) noexcept;

  at::Tensor unpack() const;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

}  // namespace tessera::intercept
