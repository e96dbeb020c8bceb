#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::intercept {

/// An operator that is about to take a watched tensor.
class Use {
 public:
  virtual ~Use() = default;
  virtual const at::Tensor& tensor() const = 0;
  /// "aten::linear"
  virtual std::string_view operator_name() const = 0;
  /// Whether the operator changes the tensor, according to its schema.
  virtual bool writes() const = 0;
  /// An input of the operator. Throws if it is no tensor.
  virtual const at::Tensor& input(std::size_t index) const = 0;
};

/// Notified of operators before they run, on the thread that calls them, in forward and in backward.
///
/// An exception of a listener never reaches the caller of the operator: LibTorch drops it with a warning. So a listener
/// keeps its error and throws it from another call, such as a hook of autograd. Operators that a listener itself calls
/// are not reported.
/// Thread-safety: calls come from any thread, also several at once.
class Listener {
 public:
  virtual ~Listener() = default;
  /// An operator is about to take a tensor whose storage is watched.
  virtual void on_use(const Use& use) = 0;
  /// An operator for which `on_use` was called has ended, normally or by an exception. Called once for each `on_use`.
  /// Operators are nested: one that calls others ends after them. Only for watches that ask for it.
  virtual void on_done() {}
  /// Any operator is about to run. Only for watches that ask for it.
  virtual void on_operator(std::string_view /*operator_name*/) {}
};

/// Calls functions with the object `owner` points to, as long as that lives.
template <typename Owner, typename OnUse, typename OnDone>
class OwnedListener : public Listener {
 public:
  OwnedListener(std::weak_ptr<Owner> owner, OnUse on_use, OnDone on_done)
      : owner_(std::move(owner)), on_use_(std::move(on_use)), on_done_(std::move(on_done)) {}
  void on_use(const Use& use) override {
    if (const auto owner = owner_.lock()) on_use_(*owner, use);
  }
  void on_done() override {
    if (const auto owner = owner_.lock()) on_done_(*owner);
  }

 private:
  std::weak_ptr<Owner> owner_;
  OnUse on_use_;
  OnDone on_done_;
};

template <typename Owner, typename OnUse, typename OnDone>
std::shared_ptr<Listener> make_listener(std::weak_ptr<Owner> owner, OnUse on_use, OnDone on_done) {
  return std::make_shared<OwnedListener<Owner, OnUse, OnDone>>(std::move(owner), std::move(on_use), std::move(on_done));
}

template <typename Owner, typename OnUse>
std::shared_ptr<Listener> make_listener(std::weak_ptr<Owner> owner, OnUse on_use) {
  return make_listener(std::move(owner), std::move(on_use), [](Owner&) {});
}

/// What a watch reports.
enum class Interest {
  kUses,
  kUsesAndEnds,
  kUsesAndEveryOperator,
  kWritesAndEnds,  ///< only uses by operators that change the tensor
};

/// Reports every use of the storages of some tensors to a listener, as long as it lives. While no watch of the process
/// is active, operators have no extra cost.
/// Thread-safety: one thread at a time for each watch.
class Watch {
 public:
  Watch() = default;
  /// Watches these tensors and all views of them, also after they were given other storages. Keeps the tensors alive.
  Watch(const std::vector<at::Tensor>& tensors, std::weak_ptr<Listener> listener, Interest interest = Interest::kUses);
  ~Watch();
  Watch(Watch&& other) noexcept;
  Watch& operator=(Watch&& other) noexcept;

  /// A new watch is active. A paused one reports nothing and costs nothing.
  void pause();
  void resume();

 private:
  struct Entry;
  friend class Registry;
  void close() noexcept;

  std::shared_ptr<Entry> entry_;
};

/// As long as one lives, uses of watched tensors on this thread are not reported, or are again: operators that only ask
/// for shapes take parameters and read nothing of them.
class UseReports {
 public:
  explicit UseReports(bool are_on);
  ~UseReports();
  UseReports(const UseReports&) = delete;
  UseReports& operator=(const UseReports&) = delete;

 private:
  bool before_;
};

}  // namespace tessera::intercept
