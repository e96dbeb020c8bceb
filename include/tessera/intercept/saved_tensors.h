#pragma once

#include <memory>

namespace torch::autograd {
struct SavedVariableHooks;
}  // namespace torch::autograd

namespace tessera::intercept {

/// Decides how a tensor is kept that autograd saves for backward.
class SavedTensorKeeper {
 public:
  virtual ~SavedTensorKeeper() = default;
  /// For the next tensor that is saved; null to keep it as usual. LibTorch may ask and then not use the answer.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;
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

}  // namespace tessera::intercept
