#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>
#include <vector>

namespace tessera::intercept {

/// An operator that is about to take a watched tensor.
class Use {
 public:
  virtual ~Use() = default;
  virtual const at::Tensor& tensor() const = 0;
  /// "aten::linear"
  virtual std::string_view operator_name() const = 0;
  /// Whether it changes the tensor, as its schema says.
  virtual bool writes() const = 0;
  /// An input of the operator. Throws where that is no tensor.
  virtual const at::Tensor& input(std::size_t index) const = 0;
};

/// Hears of operators before they run, on the thread that calls them, in forward and in backward.
///
/// What a listener throws never reaches the caller of the operator: LibTorch drops it with a warning. A listener keeps
/// its error and raises it where it is called otherwise, from a hook of autograd say. Operators that a listener calls
/// are not reported again.
/// Thread-safety: calls come from any thread, also several at once.
class Listener {
 public:
  virtual ~Listener() = default;
  /// An operator is about to take a tensor whose storage is watched.
  virtual void on_use(const Use& use) = 0;
  /// An operator for which `on_use` was called has ended, by an exception or otherwise: one call for each of `on_use`.
  /// Operators are nested: one that calls others ends after them. Only for watches that ask for it.
  virtual void on_done() {}
  /// Any operator is about to run. Only for watches that ask for it.
  virtual void on_operator(std::string_view /*operator_name*/) {}
};

/// What a watch wants to hear.
enum class Interest {
  kUses,
  kUsesAndEnds,
  kUsesAndEveryOperator,
  kWritesAndEnds,  ///< of uses, those by operators that change the tensor
};

/// Tells a listener of every use of some tensors' storages, as long as it lives. While no watch of the process is
/// active, operators cost what they cost without us.
/// Thread-safety: one thread at a time for each watch.
class Watch {
 public:
  Watch() = default;
  /// Of these tensors and all views of them, also after they were given other storages. Keeps the tensors alive.
  Watch(const std::vector<at::Tensor>& tensors, std::weak_ptr<Listener> listener, Interest interest = Interest::kUses);
  ~Watch();
  Watch(Watch&& other) noexcept;
  Watch& operator=(Watch&& other) noexcept;

  /// A new watch is active. A paused one hears nothing and costs nothing.
  void pause();
  void resume();

 private:
  struct Entry;
  friend class Registry;
  void close() noexcept;

  std::shared_ptr<Entry> entry_;
};

}  // namespace tessera::intercept
