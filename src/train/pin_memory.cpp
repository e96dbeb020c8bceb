#include <tessera/train/pin_memory.h>

#include <ATen/Functions.h>

namespace tessera::train {

void pin_tensor(at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (tensor.layout() != at::kStrided || tensor.is_non_overlapping_and_dense()) {
    tensor = tensor.pin_memory();
    return;
  }
  tensor = at::empty(tensor.sizes(), tensor.options().pinned_memory(true)).copy_(tensor);
}

}  // namespace tessera::train
