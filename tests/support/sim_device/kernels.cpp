#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/sim_device/boxed.h"
#include "support/sim_device/generator.h"
#include "support/sim_device/memory_operators.h"
#include "support/sim_device/runtime.h"
#include "support/sim_device/shapes.h"

// Note [Kernels of the simulated device]
// Every operator that has no kernel of its own here comes to one boxed function. It finds the shapes of the results,
// makes them on the device, tells the stream what is read and written, and launches a kernel: the same operator on CPU
// tensors with the same bytes. A result that the operator makes itself is copied to its place by the kernel.
//
// A result given as an out= argument is made anew and copied too: the operator may resize it on its way.
// Where shapes follow from values the host waits, as on real devices. Numbers that are drawn without looking at a
// tensor are drawn at the launch, from a generator that is the CPU's, so that they are the same.

namespace tessera::testing::sim {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

bool is_view(const c10::Argument& result) { return result.alias_info() && !result.alias_info()->isWrite(); }

bool takes_generator(const c10::Argument& argument) {
  return argument.type()->str().find("Generator") != std::string::npos;
}

/// A scalar of the host, by value: it may be written before the kernel runs.
Tensor taken(const Tensor& scalar) {
  Tensor copy = scalar.clone();
  copy.unsafeGetTensorImpl()->set_wrapped_number(scalar.unsafeGetTensorImpl()->is_wrapped_number());
  return copy;
}

/// The tensor that `shape` describes, in the memory of `base`.
Tensor view_in(const Tensor& base, const Tensor& shape) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                       base.key_set(), shape.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
  return view;
}

/// One call of an operator on the device.
class OperatorLaunch {
 public:
  OperatorLaunch(const c10::OperatorHandle& op, const Stack& stack)
      : op_(op), schema_(op.schema()), name_(schema_.name().substr(schema_.name().find("::") + 2)) {
    const auto arguments = torch::jit::last(stack, schema_.arguments().size());
    arguments_.assign(arguments.begin(), arguments.end());
    find_device();
  }

  Stack run() {
    const c10::DeviceGuard guard(device_);
    if (draws_without_looking()) return draw();
    const bool waits = op_.hasTag(at::Tag::data_dependent_output) || op_.hasTag(at::Tag::dynamic_output_shape);
    if (waits) return run_and_wait();
    find_shapes();
    take_arguments();
    Stack results;
    bool only_views = !schema_.returns().empty();
    for (std::size_t i = 0; i < schema_.returns().size(); ++i) {
      results.push_back(result(i));
      only_views = only_views && is_view(schema_.returns()[i]);
    }
    if (only_views) return results;
    launch(stream(), name_, accesses_, [op = op_, call = call_, own = own_results_, outs = outs_]() mutable {
      const Below below;
      op.callBoxed(&call);
      for (auto& out : outs) out.second.copy_(out.first);
      for (auto& one : own) {
        std::size_t next = 0;
        for_each_tensor(call[one.first], [&](const Tensor& made) { one.second[next++].copy_(made); });
      }
    });
    return results;
  }

 private:
  void find_device() {
    c10::DeviceIndex found = -1;
    for (const IValue& argument : arguments_) {
      for_each_tensor(argument, [&](const Tensor& one) {
        if (!is_on_sim(one)) return;
        TORCH_CHECK(found < 0 || found == one.device().index(), "Expected all tensors to be on the same device, but ",
                    schema_.name(), " has some on ", sim::device(found), " and on ", one.device());
        found = one.device().index();
      });
    }
    for (const IValue& argument : arguments_) {
      if (found < 0 && argument.isDevice() && argument.toDevice().type() == kSim) found = argument.toDevice().index();
    }
    device_ = sim::device(found < 0 ? current_device() : found);
  }

  c10::Stream stream() const { return current_stream(device_.index()); }

  bool draws_without_looking() const {
    bool draws = false;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const c10::Argument& argument = schema_.arguments()[i];
      draws = draws || takes_generator(argument);
      bool reads = false;
      for_each_tensor(arguments_[i], [&](const Tensor& one) { reads = reads || is_on_sim(one); });
      if (reads && !writes(argument)) return false;
    }
    return draws && schema_.returns().size() == 1 && writes_result();
  }
  bool writes_result() const {
    const auto* const info = schema_.returns().front().alias_info();
    return info && info->isWrite();
  }

  at::Generator generator(const IValue& argument) const {
    return argument.isGenerator() ? argument.toGenerator() : default_generator(device_.index());
  }

  /// On the host, at once, with the numbers that the CPU would draw.
  Stack draw() {
    Stack call;
    Tensor written;
    Tensor drawn;
    at::Generator on_cpu;
    at::Generator from;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (takes_generator(schema_.arguments()[i])) {
        from = generator(arguments_[i]);
        on_cpu = at::make_generator<at::CPUGeneratorImpl>();
        const std::lock_guard lock(from.mutex());
        on_cpu.set_state(from.get_state());
        call.emplace_back(on_cpu);
      } else if (writes(schema_.arguments()[i])) {
        written = arguments_[i].toTensor();
        drawn = at::empty_strided(written.sizes(), written.strides(), written.options().device(at::kCPU));
        call.emplace_back(drawn);
      } else {
        call.push_back(arguments_[i].isDevice() ? IValue(c10::Device(at::kCPU)) : arguments_[i]);
      }
    }
    {
      const Below below;
      op_.callBoxed(&call);
    }
    {
      const std::lock_guard lock(from.mutex());
      from.set_state(on_cpu.get_state());
    }
    if (written.sizes() != drawn.sizes()) resize_on_sim(written, drawn.sizes(), std::nullopt);
    launch(stream(), name_, {{written, true}}, [drawn, place = on_host(written)]() mutable { place.copy_(drawn); });
    return {IValue(written)};
  }

  Stack run_and_wait() {
    take_arguments();
    const auto results = std::make_shared<Stack>(call_);
    launch(stream(), name_, accesses_, [op = op_, results] {
      const Below below;
      op.callBoxed(results.get());
    });
    Runtime::get().wait(Runtime::get().queue(stream()));
    Stack on_device;
    for (const IValue& value : *results) {
      on_device.push_back(with_tensors(value, [&](const Tensor& one) { return one.to(device_); }));
    }
    return on_device;
  }

  void find_shapes() {
    bool needed = std::ranges::any_of(schema_.returns(), [](const c10::Argument& result) {
      return !result.alias_info() || !result.alias_info()->isWrite();
    });
    bool makes_views = std::ranges::any_of(schema_.returns(), is_view);
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const bool is_out = schema_.arguments()[i].is_out() && arguments_[i].isTensor();
      needed = needed || (is_out && arguments_[i].toTensor().numel() == 0);
    }
    if (!needed) return;
    shapes_ = shapes_of(op_, arguments_, makes_views);
    // Arguments that the operator writes to may have to grow.
    std::size_t next = schema_.returns().size();
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!writes(schema_.arguments()[i])) continue;
      const IValue& shape = shapes_[next++];
      if (!arguments_[i].isTensor() || !is_on_sim(arguments_[i].toTensor())) continue;
      const Tensor tensor = arguments_[i].toTensor();
      if (tensor.sizes() != shape.toTensor().sizes()) resize_on_sim(tensor, shape.toTensor().sizes(), std::nullopt);
    }
  }

  void take_arguments() {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const bool is_written = writes(schema_.arguments()[i]);
      const bool is_out = schema_.arguments()[i].is_out();
      IValue value = with_tensors(arguments_[i], [&](const Tensor& one) {
        if (is_on_sim(one)) {
          accesses_.push_back({one, is_written});
          if (!is_out) return on_host(one);
          Tensor made = at::empty({0}, one.options().device(at::kCPU));
          outs_.emplace_back(made, on_host(one));
          return made;
        }
        const bool is_index = name_.starts_with("index") || name_.starts_with("_index");
        TORCH_CHECK(one.dim() == 0 || is_index, "Expected all tensors to be on the same device, but ", schema_.name(),
                    " has some on ", device_, " and on ", one.device());
        return taken(one);
      });
      if (value.isDevice()) value = c10::Device(at::kCPU);
      if (takes_generator(schema_.arguments()[i])) {
        // The order of launches decides, not the one in which kernels run.
        at::Generator from = generator(arguments_[i]);
        const std::lock_guard lock(from.mutex());
        value = at::make_generator<at::CPUGeneratorImpl>(from.get<at::CPUGeneratorImpl>()->random64());
      }
      call_.push_back(std::move(value));
    }
  }

  IValue result(std::size_t index) {
    const c10::Argument& described = schema_.returns()[index];
    if (described.alias_info()) {
      const IValue& same = aliased(*described.alias_info());
      if (!is_view(described)) return same;
      const Tensor base = same.toTensor();
      return with_tensors(shapes_[index], [&](const Tensor& shape) { return view_in(base, shape); });
    }
    std::vector<Tensor> places;
    IValue made = with_tensors(shapes_[index], [&](const Tensor& shape) {
      Tensor one = at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(device_));
      accesses_.push_back({one, true});
      places.push_back(on_host(one));
      return one;
    });
    if (!places.empty()) own_results_.emplace_back(index, std::move(places));
    return made;
  }

  const IValue& aliased(const c10::AliasInfo& info) const {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const auto* const other = schema_.arguments()[i].alias_info();
      if (other && other->beforeSets() == info.beforeSets()) return arguments_[i];
    }
    TORCH_CHECK(false, schema_.name(), " gives a result that none of its arguments is");
  }

  const c10::OperatorHandle op_;
  const c10::FunctionSchema& schema_;
  const std::string name_;
  Stack arguments_;
  c10::Device device_ = sim::device(0);
  Stack shapes_;
  Stack call_;  // the arguments for the kernel
  std::vector<Access> accesses_;
  std::vector<std::pair<Tensor, Tensor>> outs_;                           // what the kernel makes, and its place
  std::vector<std::pair<std::size_t, std::vector<Tensor>>> own_results_;  // which the kernel copies to their places
};

void run_on_sim(const c10::OperatorHandle& op, Stack& arguments) {
  const Below below;
  arguments = OperatorLaunch(op, arguments).run();
}

c10::OperatorHandle operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

/// LibTorch asks devices that it does not know for these two. They are what the CPU's are.
Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                   std::int64_t groups) {
  Stack stack;
  torch::jit::push(stack, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  run_on_sim(operator_named("aten::convolution"), stack);
  return stack.front().toTensor();
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& input,
                                                        const Tensor& weight, at::IntArrayRef stride,
                                                        at::IntArrayRef padding, at::IntArrayRef dilation,
                                                        bool transposed, at::IntArrayRef output_padding,
                                                        std::int64_t groups, std::array<bool, 3> mask) {
  const std::vector<std::int64_t> bias_sizes{gradient.size(1)};
  Stack stack;
  torch::jit::push(stack, gradient, input, weight, std::optional<std::vector<std::int64_t>>(bias_sizes), stride,
                   padding, dilation, transposed, output_padding, groups, mask);
  run_on_sim(operator_named("aten::convolution_backward"), stack);
  return {stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor()};
}

void call_on_sim(const c10::OperatorHandle& op, Stack* stack) {
  const Below below;
  Stack results = OperatorLaunch(op, *stack).run();
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->insert(stack->end(), results.begin(), results.end());
}

}  // namespace

Tensor on_host(const Tensor& tensor) {
  const c10::InferenceMode is_none(false);  // kernels write to it on threads that are not in that mode
  char* const address = tensor.numel() > 0 ? Runtime::get().for_kernels(tensor.const_data_ptr()) : nullptr;
  const auto options = tensor.options().device(at::kCPU).pinned_memory(false).requires_grad(false);
  Tensor same = at::from_blob(address, tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) same = same.conj();
  if (tensor.is_neg()) same = same._neg_view();
  return same;
}

void launch(const c10::Stream& stream, const std::string& op, const std::vector<Access>& accesses,
            std::function<void()> kernel) {
  std::vector<SpanAccess> spans;
  spans.reserve(accesses.size());
  for (const Access& access : accesses) spans.push_back({Span(access.tensor), access.writes});
  Runtime::get().launch(Runtime::get().queue(stream), op, spans, std::move(kernel));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&call_on_sim>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  // LibTorch would decompose these before the fallback.
  for (const char* const op : {"native_layer_norm", "native_layer_norm_backward"}) {
    library.impl(op, torch::CppFunction::makeFromBoxedFunction<&call_on_sim>());
  }
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace tessera::testing::sim
