#include "offload/kept_state.h"

#include <tessera/shard/tensor_bytes.h>

#include <ATen/ATen.h>

#include <cstring>
#include <span>
#include <utility>

namespace tessera::offload {

KeptState::KeptState(std::shared_ptr<Places> places, std::int64_t num_elements, at::ScalarType dtype, std::string what)
    : places_(std::move(places)),
      storage_(num_elements, dtype, c10::kCPU,
               what +
                   " lies in a file (OffloadOptions::states): only the step of tessera::optim::AdamW reads it there. "
                   "To save it, keep states in host memory") {
  const auto num_bytes = static_cast<std::size_t>(storage_.num_bytes());
  if (places_->options.states() == Tier::kFile) {
    block_ = places_->files->make_block(num_bytes, std::move(what));
    return;
  }
  const auto memory = places_->memory->take(num_bytes, Kind::kStates, what);
  std::memset(memory.get(), 0, num_bytes);
  storage_.give(bytes_of(tensor_in(memory, num_elements, dtype)));
}

at::Tensor KeptState::stand_in(std::int64_t first, at::IntArrayRef shape) const { return storage_.view(first, shape); }

void KeptState::set_values(std::int64_t first, const at::Tensor& values) {
  if (!block_) {
    storage_.flat().narrow(0, first, values.numel()).copy_(values.reshape({-1}));
    return;
  }
  const auto num_bytes = static_cast<std::size_t>(storage_.num_bytes());
  const auto memory = places_->memory->take(num_bytes, Kind::kBuffers, "a state that is loaded");
  const std::span bytes(memory.get(), num_bytes);
  places_->files->read(*block_, 0, bytes, memory).wait();
  const at::Tensor all = tensor_in(memory, storage_.flat().numel(), storage_.flat().scalar_type());
  all.narrow(0, first, values.numel()).copy_(values.reshape({-1}));
  places_->files->write(*block_, 0, bytes, memory).wait();
}

}  // namespace tessera::offload
