#include <tessera/optim/late_numbers.h>
#include <tessera/shard/stream_order.h>

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <optional>
#include <utility>

namespace tessera::optim {

struct LateNumbers::State {
  at::Tensor numbers;
  at::Tensor copy;                  // in host memory
  std::optional<c10::Event> event;  // the copy is complete
  std::vector<float> values;        // empty: not read yet
};

LateNumbers::LateNumbers(at::Tensor numbers) : state_(std::make_shared<State>()) {
  State& state = *state_;
  state.numbers = numbers.detach();
  const at::Device device = numbers.device();
  if (device.is_cpu()) {
    state.copy = state.numbers.to(at::kFloat);
    return;
  }
  state.copy = at::empty(numbers.sizes(), at::TensorOptions(at::kFloat).pinned_memory(true));
  state.copy.copy_(state.numbers, /*non_blocking=*/true);
  state.event.emplace(device.type());
  state.event->record(*current_stream(device));
}

const at::Tensor& LateNumbers::on_device() const { return state_->numbers; }

bool LateNumbers::are_here() const { return !state_->event || state_->event->query(); }

const std::vector<float>& LateNumbers::values() const {
  State& state = *state_;
  if (state.values.empty()) {
    if (!are_here()) state.event->synchronize();
    const auto* const begin = state.copy.const_data_ptr<float>();
    state.values.assign(begin, begin + state.copy.numel());
  }
  return state.values;
}

}  // namespace tessera::optim
