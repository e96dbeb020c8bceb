#include "support/sim_device/shapes.h"

#include <ATen/ATen.h>

#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include "support/sim_device/boxed.h"

namespace tessera::testing::sim {
namespace {

using torch::jit::Stack;

std::string key_of(const c10::OperatorHandle& op, const Stack& arguments) {
  std::ostringstream key;
  key << op.operator_name();
  for (const c10::IValue& argument : arguments) {
    bool has_tensors = false;
    for_each_tensor(argument, [&](const at::Tensor& one) {
      has_tensors = true;
      key << '|' << one.sizes() << one.strides() << one.storage_offset() << one.scalar_type() << one.device().type();
    });
    if (has_tensors) continue;
    if (argument.isGenerator()) {
      key << "|generator";
    } else {
      key << '|' << argument;
    }
  }
  return key.str();
}

/// The same place in a storage of the same size, without bytes.
at::Tensor without_bytes(const at::Tensor& tensor) {
  at::Tensor meta = at::empty({0}, tensor.options().device(at::kMeta).pinned_memory(false));
  auto* const impl = meta.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(
      c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), c10::GetAllocator(at::kMeta), true));
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return meta;
}

/// Shapes of results on `device`, where the operator is computed with `value` everywhere.
Stack tried(const c10::OperatorHandle& op, const Stack& arguments, at::DeviceType device, bool makes_views,
            double value = 0) {
  const auto stand_in = [&](const at::Tensor& one) {
    if (!is_on_sim(one) && one.dim() == 0) return one;
    if (makes_views && device == at::kMeta) return without_bytes(one);
    at::Tensor made = at::empty_strided(one.sizes(), one.strides(), one.options().device(device).pinned_memory(false));
    return device == at::kMeta ? made : made.fill_(value);
  };
  Stack stack;
  Stack written;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue argument = with_tensors(arguments[i], stand_in);
    if (argument.isDevice()) argument = c10::Device(device);
    if (argument.isGenerator()) argument = c10::IValue();
    if (writes(op.schema().arguments()[i])) written.push_back(argument);
    stack.push_back(std::move(argument));
  }
  op.callBoxed(&stack);
  stack.insert(stack.end(), written.begin(), written.end());
  if (device == at::kMeta) return stack;
  for (c10::IValue& result : stack) {
    result = with_tensors(result, [](const at::Tensor& one) {
      return at::empty_strided(one.sizes(), one.strides(), one.options().device(at::kMeta));
    });
  }
  return stack;
}

}  // namespace

Stack shapes_of(const c10::OperatorHandle& op, const Stack& arguments, bool makes_views) {
  static std::mutex mutex;
  static std::map<std::string, Stack> known;
  const std::string key = key_of(op, arguments);
  {
    const std::lock_guard lock(mutex);
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
  }
  const Below below;
  Stack shapes;
  bool has_meta = op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
  if (has_meta) {
    try {
      shapes = tried(op, arguments, at::kMeta, makes_views);
    } catch (const c10::NotImplementedError&) {
      has_meta = false;  // a composite of operators of which one has none
    }
  }
  if (!has_meta) {
    try {
      shapes = tried(op, arguments, at::kCPU, makes_views);
    } catch (const c10::Error&) {
      shapes = tried(op, arguments, at::kCPU, makes_views, 1);  // of chances, say
    }
  }
  const std::lock_guard lock(mutex);
  return known[key] = std::move(shapes);
}

}  // namespace tessera::testing::sim
