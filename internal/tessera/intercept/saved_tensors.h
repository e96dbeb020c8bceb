#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace tessera::intercept {

/// Stands for a tensor that autograd saves for backward. Belongs to the node that saved it.
class SavedTensorSlot {
 public:
  virtual ~SavedTensorSlot() = default;
  /// Called once, with the tensor.
  virtual void pack(const at::Tensor& tensor) = 0;
  /// Returns the tensor. May be called several times.
  virtual at::Tensor unpack() = 0;
};

/// Decides how the tensors that autograd saves for backward are kept.
class SavedTensorKeeper {
 public:
  virtual ~SavedTensorKeeper() = default;
  /// The slot of the next tensor that is saved; null to keep it as usual. LibTorch may ask and not use the slot.
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

  /// Whether a scope of this thread lives, so that somebody else may have what is saved.
  static bool is_open();

 private:
  SavedTensorKeeper* outer_;
};

/// While one lives, the tensors that autograd saves where no scope is open go to `keeper`, on every thread.
/// Requires: the only one of the process; `keeper` lives for ever.
class SavedTensorDefault {
 public:
  explicit SavedTensorDefault(SavedTensorKeeper& keeper);
  ~SavedTensorDefault();
  SavedTensorDefault(const SavedTensorDefault&) = delete;
  SavedTensorDefault& operator=(const SavedTensorDefault&) = delete;
};

/// A tensor that is saved as a node would save it: through the keeper of the scope, if one is open.
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
