#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <functional>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "support/sim_device/boxed.h"
#include "support/sim_device/runtime.h"

// Note [Cells of recurrent layers]
// On every device but the CPU LibTorch computes the cells of LSTM and GRU by fused kernels, for which the CPU has none.
// Here they are the operators that LibTorch's cells and autograd run on the CPU, in their order and on tensors of the
// same layouts, so the bits are the CPU's. The shapes of results are CUDA's. What a forward keeps for its backward are
// the activated gates, of a GRU also the state and what the state gives to the new gate.
//
// Around the cells LibTorch goes another way than on the CPU: a layer's input is multiplied step by step, not in one
// product, which rounds otherwise. So a layer has the bits of cells on the CPU, not of a layer there.

namespace tessera::testing::sim {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

constexpr std::int64_t kLstmGates = 4;  // in, forget, cell, out
constexpr std::int64_t kGruGates = 3;   // reset, update, new
constexpr std::int64_t kGruKept = 5;    // these, the state, and what the state gives to the new gate

bool is_given(const MaybeTensor& tensor) { return tensor && tensor->defined(); }

MaybeTensor on_host_if_given(const MaybeTensor& tensor) {
  return is_given(tensor) ? MaybeTensor(on_host(*tensor)) : std::nullopt;
}

/// A kernel with what it reads, and what it writes.
class CellLaunch {
 public:
  explicit CellLaunch(const char* op) : op_(op) {}

  CellLaunch& reads(std::initializer_list<MaybeTensor> tensors) { return add(tensors, false); }
  CellLaunch& writes(std::initializer_list<MaybeTensor> tensors) { return add(tensors, true); }
  void run(const c10::Stream& stream, std::function<void()> kernel) const {
    launch(stream, op_, accesses_, [kernel = std::move(kernel)] {
      const Below below;
      kernel();
    });
  }

 private:
  CellLaunch& add(std::initializer_list<MaybeTensor> tensors, bool are_written) {
    for (const MaybeTensor& one : tensors) {
      if (is_given(one)) accesses_.push_back({*one, are_written});
    }
    return *this;
  }

  const char* op_;
  std::vector<Access> accesses_;
};

c10::Stream stream_of(const Tensor& tensor) { return current_stream(tensor.device().index()); }

Tensor like(const Tensor& tensor) { return at::empty_like(tensor, at::MemoryFormat::Contiguous); }

void check_cell(const char* op, std::int64_t num_gates, const Tensor& input_gates, const Tensor& hidden_gates,
                const Tensor& state, const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  TORCH_CHECK(input_gates.dim() == 2 && state.dim() == 2, op, " expects matrices");
  TORCH_CHECK(input_gates.sizes() == hidden_gates.sizes(), op, " got gates of different sizes");
  TORCH_CHECK(state.size(0) == input_gates.size(0) && state.size(1) * num_gates == input_gates.size(1), op,
              " got a state that does not fit the gates");
  TORCH_CHECK(is_given(input_bias) == is_given(hidden_bias), op, " got one bias of two");
  for (const auto& one : {MaybeTensor(hidden_gates), MaybeTensor(state), input_bias, hidden_bias}) {
    if (!is_given(one)) continue;
    TORCH_CHECK(one->device() == input_gates.device(), op, " got tensors on different devices");
    TORCH_CHECK(one->dim() == 2 || one->sizes() == input_gates.sizes().slice(1), op, " got a bias of another size");
  }
}

/// As the product with the bias gives it.
Tensor with_bias(const Tensor& product, const MaybeTensor& bias) {
  return is_given(bias) ? product.add(*bias) : product.clone(at::MemoryFormat::Contiguous);
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const Below below;
  const c10::DeviceGuard guard(input_gates.device());
  check_cell("_thnn_fused_lstm_cell", kLstmGates, input_gates, hidden_gates, cx, input_bias, hidden_bias);
  const Tensor hy = like(cx);
  const Tensor cy = like(cx);
  const Tensor kept = like(input_gates);
  CellLaunch("_thnn_fused_lstm_cell")
      .reads({input_gates, hidden_gates, cx, input_bias, hidden_bias})
      .writes({hy, cy, kept})
      .run(stream_of(cx), [input = on_host(input_gates), hidden = on_host(hidden_gates), before = on_host(cx),
                           of_input = on_host_if_given(input_bias), of_hidden = on_host_if_given(hidden_bias),
                           state = on_host(hy), cell = on_host(cy), activated = on_host(kept)] {
        const Tensor gates = with_bias(hidden, of_hidden).add_(with_bias(input, of_input));
        const auto chunks = gates.unsafe_chunk(kLstmGates, 1);
        for (const int sigmoid : {0, 1, 3}) chunks[sigmoid].sigmoid_();
        chunks[2].tanh_();
        cell.copy_((chunks[1] * before).add_(chunks[0] * chunks[2]));
        state.copy_(chunks[3] * cell.tanh());
        activated.copy_(gates);
      });
  return {hy, cy, kept};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy, const MaybeTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& kept,
                                                      bool has_bias) {
  if (!is_given(grad_hy) && !is_given(grad_cy)) return {};
  const Below below;
  const c10::DeviceGuard guard(cx.device());
  const Tensor grad_gates = like(kept);
  const Tensor grad_cx = like(cx);
  CellLaunch("_thnn_fused_lstm_cell_backward_impl")
      .reads({grad_hy, grad_cy, cx, cy, kept})
      .writes({grad_gates, grad_cx})
      .run(stream_of(cx), [of_state = on_host_if_given(grad_hy), of_cell = on_host_if_given(grad_cy),
                           before = on_host(cx), cell = on_host(cy), activated = on_host(kept),
                           of_gates = on_host(grad_gates), of_before = on_host(grad_cx)] {
        const auto chunks = activated.unsafe_chunk(kLstmGates, 1);
        const auto of_chunks = of_gates.unsafe_chunk(kLstmGates, 1);
        Tensor gradient = of_cell ? *of_cell : Tensor();
        if (of_state) {
          const Tensor curved = cell.tanh();
          const Tensor through = at::tanh_backward(*of_state * chunks[3], curved);
          gradient = of_cell ? *of_cell + through : through;
          of_chunks[3].copy_(at::sigmoid_backward(*of_state * curved, chunks[3]));
        } else {
          of_chunks[3].zero_();
        }
        of_chunks[0].copy_(at::sigmoid_backward(gradient * chunks[2], chunks[0]));
        of_chunks[1].copy_(at::sigmoid_backward(gradient * before, chunks[1]));
        of_chunks[2].copy_(at::tanh_backward(gradient * chunks[0], chunks[2]));
        of_before.copy_(gradient * chunks[1]);
      });
  return {grad_gates, grad_cx, has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const Below below;
  const c10::DeviceGuard guard(input_gates.device());
  check_cell("_thnn_fused_gru_cell", kGruGates, input_gates, hidden_gates, hx, input_bias, hidden_bias);
  const Tensor hy = like(hx);
  const Tensor kept = at::empty({hx.size(0), hx.size(1) * kGruKept}, hx.options());
  CellLaunch("_thnn_fused_gru_cell")
      .reads({input_gates, hidden_gates, hx, input_bias, hidden_bias})
      .writes({hy, kept})
      .run(stream_of(hx), [input = on_host(input_gates), hidden = on_host(hidden_gates), before = on_host(hx),
                           of_input = on_host_if_given(input_bias), of_hidden = on_host_if_given(hidden_bias),
                           state = on_host(hy), all = on_host(kept)] {
        const auto from_input = with_bias(input, of_input).unsafe_chunk(kGruGates, 1);
        const auto from_state = with_bias(hidden, of_hidden).unsafe_chunk(kGruGates, 1);
        const auto places = all.unsafe_chunk(kGruKept, 1);
        places[3].copy_(before);
        places[4].copy_(from_state[2]);
        const Tensor reset = from_state[0].add_(from_input[0]).sigmoid_();
        const Tensor update = from_state[1].add_(from_input[1]).sigmoid_();
        const Tensor fresh = from_input[2].add(from_state[2].mul_(reset)).tanh_();
        state.copy_((before - fresh).mul_(update).add_(fresh));
        places[0].copy_(reset);
        places[1].copy_(update);
        places[2].copy_(fresh);
      });
  return {hy, kept};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& kept,
                                                                     bool has_bias) {
  const Below below;
  const c10::DeviceGuard guard(grad_hy.device());
  TORCH_CHECK(grad_hy.dim() == 2 && kept.size(1) == grad_hy.size(1) * kGruKept,
              "_thnn_fused_gru_cell_backward got a gradient that does not fit its workspace");
  const Tensor grad_input_gates = at::empty({kept.size(0), grad_hy.size(1) * kGruGates}, kept.options());
  const Tensor grad_hidden_gates = like(grad_input_gates);
  const Tensor grad_hx = like(grad_hy);
  CellLaunch("_thnn_fused_gru_cell_backward")
      .reads({grad_hy, kept})
      .writes({grad_input_gates, grad_hidden_gates, grad_hx})
      .run(stream_of(grad_hy), [gradient = on_host(grad_hy), all = on_host(kept), of_input = on_host(grad_input_gates),
                                of_hidden = on_host(grad_hidden_gates), of_before = on_host(grad_hx)] {
        const auto places = all.unsafe_chunk(kGruKept, 1);
        const Tensor& reset = places[0];
        const Tensor& update = places[1];
        const Tensor fresh = places[2].contiguous();  // as the CPU has it: kernels round by the layout
        const auto of_input_gates = of_input.unsafe_chunk(kGruGates, 1);
        const auto of_hidden_gates = of_hidden.unsafe_chunk(kGruGates, 1);
        const Tensor kept_back = gradient * update;
        const Tensor of_fresh = at::tanh_backward(gradient - kept_back, fresh);
        of_before.copy_(kept_back);
        of_input_gates[0].copy_(at::sigmoid_backward(of_fresh * places[4], reset));
        of_input_gates[1].copy_(at::sigmoid_backward(gradient * (places[3] - fresh), update));
        of_input_gates[2].copy_(of_fresh);
        of_hidden_gates[0].copy_(of_input_gates[0]);
        of_hidden_gates[1].copy_(of_input_gates[1]);
        of_hidden_gates[2].copy_(of_fresh * reset);
      });
  if (!has_bias) return {grad_input_gates, grad_hidden_gates, grad_hx, Tensor(), Tensor()};
  return {grad_input_gates, grad_hidden_gates, grad_hx, grad_input_gates.sum(0), grad_hidden_gates.sum(0)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", &gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace tessera::testing::sim
