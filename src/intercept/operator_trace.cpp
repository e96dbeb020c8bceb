#include <tessera/intercept/operator_trace.h>

#include <tessera/core/error.h>
#include <tessera/intercept/backward_pass.h>
#include <tessera/intercept/random_draws.h>
#include <tessera/intercept/saved_tensors.h>

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <memory>
#include <unordered_map>

#include "intercept/schema.h"

namespace tessera::intercept {
namespace {

std::atomic<OperatorTracer*> tracer_of_process = nullptr;

/// Of this thread.
struct TraceView {
  bool is_deaf = false;    // the tracer is at work, or the thread ends
  bool is_inside = false;  // of an operator that is reported as one
};
constinit thread_local TraceView trace_view;

/// Whether the reported operator is this one; there is nothing else to know at its end.
struct Reported : at::ObserverContext {};

struct TracerAtWork {
  TracerAtWork() { trace_view.is_deaf = true; }
  ~TracerAtWork() { trace_view.is_deaf = false; }
  TracerAtWork(const TracerAtWork&) = delete;
  TracerAtWork& operator=(const TracerAtWork&) = delete;
};

struct KnownOperators {
  KnownOperators() = default;
  ~KnownOperators() { trace_view.is_deaf = true; }
  KnownOperators(const KnownOperators&) = delete;
  KnownOperators& operator=(const KnownOperators&) = delete;

  std::unordered_map<const char*, std::unique_ptr<TracedOperator>> by_name;
};

/// Null: a record without an operator, as programs make them for profilers. See Note [What an operator writes].
const TracedOperator* traced(const at::RecordFunction& function) {
  thread_local KnownOperators known;
  if (const auto found = known.by_name.find(function.name()); found != known.by_name.end()) return found->second.get();
  const auto name = function.operator_name();
  if (!name || !function.operator_schema()) return nullptr;
  const auto handle = c10::Dispatcher::singleton().findSchema(*name);
  if (!handle) return nullptr;
  const c10::FunctionSchema& schema = handle->schema();
  auto op = std::make_unique<TracedOperator>(TracedOperator{
      *handle, 0, schema.arguments().size(), schema.returns().size(), draws_random_numbers(schema.name())});
  for (std::size_t i = 0; i < op->num_arguments && i < 64; ++i) {
    if (writes_argument(schema, i)) op->written |= std::uint64_t{1} << i;
  }
  return known.by_name.emplace(function.name(), std::move(op)).first->second.get();
}

bool is_below_autograd() {
  return c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::AutogradCPU);
}

template <typename Values>
c10::ArrayRef<c10::IValue> last_of(const Values& values, std::size_t count) {
  const c10::ArrayRef<c10::IValue> all(values);
  return all.size() > count ? all.slice(all.size() - count) : all;
}

std::unique_ptr<at::ObserverContext> before_traced(const at::RecordFunction& function) {
  TraceView& view = trace_view;
  if (view.is_deaf) return nullptr;
  OperatorTracer* const tracer = tracer_of_process.load(std::memory_order_acquire);
  if (!tracer) return nullptr;
  const TracedOperator* const op = traced(function);
  if (!op) return nullptr;
  if (view.is_inside) {
    const TracerAtWork at_work;
    if (op->draws) tracer->on_draw();
    return nullptr;
  }
  if (is_below_autograd() || in_backward() || SavedTensorScope::is_open()) return nullptr;
  const TracerAtWork at_work;
  if (tracer->on_begin(*op, last_of(function.inputs(), op->num_arguments)) == OperatorTracer::Depth::kInside) {
    return nullptr;
  }
  if (op->draws) tracer->on_draw();
  view.is_inside = true;
  return std::make_unique<Reported>();
}

void after_traced(const at::RecordFunction& function, at::ObserverContext* context) {
  if (!context) return;
  trace_view.is_inside = false;
  OperatorTracer* const tracer = tracer_of_process.load(std::memory_order_acquire);
  const TracedOperator* const op = traced(function);
  if (!tracer || !op || trace_view.is_deaf) return;
  const TracerAtWork at_work;
  tracer->on_end(last_of(function.outputs(), op->num_results));
}

/// LibTorch's callback stays registered once it was needed, as that of the watches.
void switch_callback(bool on) {
  static const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback(&before_traced, &after_traced)
                                .needsInputs(true)
                                .needsOutputs(true)
                                .scopes({at::RecordScope::FUNCTION}));
  static bool is_on = true;
  if (on == is_on) return;
  is_on = on;
  if (on) {
    at::reenableCallback(handle);
  } else {
    at::disableCallback(handle);
  }
}

}  // namespace

OperatorTrace::OperatorTrace(OperatorTracer& tracer) {
  OperatorTracer* none = nullptr;
  if (!tracer_of_process.compare_exchange_strong(none, &tracer)) {
    throw InternalError("there are two tracers of operators");
  }
  switch_callback(true);
}

OperatorTrace::~OperatorTrace() {
  switch_callback(false);
  tracer_of_process = nullptr;
}

}  // namespace tessera::intercept
