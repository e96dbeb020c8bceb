#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>

namespace tessera::intercept {

/// An operator of LibTorch, and what is known about it before it is called. Lives as long as the process.
struct TracedOperator {
  c10::OperatorHandle handle;
  std::uint64_t written;  ///< a bit for each argument that the schema says is changed; those beyond 64 do not count
  std::size_t num_arguments;
  std::size_t num_results;
  bool draws;  ///< random numbers, always

  const std::string& name() const { return handle.schema().name(); }
  bool writes(std::size_t argument) const { return argument < 64 && (written >> argument & 1) != 0; }
};

/// Sees the operators that build graphs: arguments before they run, results after. Nothing that it does changes what
/// they compute. Not reported are operators of a backward pass, those inside of recompute(), those below autograd, and
/// those that it calls itself.
/// Thread-safety: calls come from any thread, also several at once; those of one operator from one thread.
class OperatorTracer {
 public:
  enum class Depth {
    kWhole,   ///< the operator is one: those that it calls are not reported, and on_end() follows
    kInside,  ///< those that it calls are reported instead
  };

  virtual ~OperatorTracer() = default;
  virtual Depth on_begin(const TracedOperator& op, c10::ArrayRef<c10::IValue> arguments) noexcept = 0;
  /// Before random numbers are drawn inside of the operator that is under way.
  virtual void on_draw() noexcept = 0;
  /// Without results: an exception has ended it.
  virtual void on_end(c10::ArrayRef<c10::IValue> results) noexcept = 0;
};

/// While one lives, the tracer sees operators. Requires: the only one of the process; the tracer lives for ever.
/// Operators of the process cost a callback with boxed arguments and results meanwhile.
class OperatorTrace {
 public:
  explicit OperatorTrace(OperatorTracer& tracer);
  ~OperatorTrace();
  OperatorTrace(const OperatorTrace&) = delete;
  OperatorTrace& operator=(const OperatorTrace&) = delete;
};

}  // namespace tessera::intercept
