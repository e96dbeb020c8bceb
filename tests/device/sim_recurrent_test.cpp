#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "support/sim_device/sim_device.h"

// Recurrent layers on the simulated device, whose cells are kernels that the CPU does not have, beside the CPU.

namespace tessera::testing::sim {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using Named = std::map<std::string, Tensor>;

constexpr std::int64_t kWidth = 5;
constexpr std::int64_t kHidden = 7;  // ends of rows that no vector instruction fills
constexpr std::int64_t kSteps = 4;
/// What sums in another order leave, relative to a tensor's largest value.
constexpr double kOtherOrderDouble = 1e-13;
constexpr double kOtherOrderFloat = 1e-5;

/// On the device or the CPU: results by name, without gradients.
using Run = std::function<Named(const c10::Device&)>;

/// Adds what `module` has as gradients, and those of `inputs`.
void add_gradients(Named& found, const nn::Module& module, const Named& inputs) {
  for (const auto& entry : module.named_parameters()) found["gradient of " + entry.key()] = entry.value().grad();
  for (const auto& [name, input] : inputs) found["gradient of " + name] = input.grad();
}

double largest_difference(const Tensor& found, const Tensor& expected) {
  if (expected.numel() == 0) return 0;
  const double largest = expected.abs().max().item<double>();
  return (found - expected).abs().max().item<double>() / std::max(largest, 1e-30);
}

/// `tolerance_of` tells by the name how far a result may be from the CPU's; 0: the same bits.
void expect_as_on_cpu(const std::string& what, const Run& run,
                      const std::function<double(const std::string& name)>& tolerance_of) {
  at::set_num_threads(1);
  const Named expected = run(at::kCPU);
  const Named found = run(device());
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, wanted] : expected) {
    const Tensor& on_device = found.at(name);
    ASSERT_EQ(on_device.defined(), wanted.defined()) << what << ": " << name;
    if (!wanted.defined()) continue;
    EXPECT_EQ(on_device.device(), device()) << what << ": " << name;
    const Tensor same = on_device.detach().cpu();
    ASSERT_EQ(same.sizes(), wanted.sizes()) << what << ": " << name;
    const double allowed = tolerance_of(name);
    if (allowed == 0) {
      EXPECT_TRUE(at::equal(same, wanted.detach()))
          << what << ": " << name << " differs by " << largest_difference(same, wanted.detach());
    } else {
      EXPECT_LE(largest_difference(same, wanted.detach()), allowed) << what << ": " << name;
    }
  }
}

double same_bits(const std::string& /*name*/) { return 0; }

/// A leaf with numbers that are the same on each device.
Tensor leaf(std::int64_t seed, at::IntArrayRef sizes, const at::TensorOptions& options) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
  const Tensor values = at::randn(sizes, generator, at::TensorOptions().dtype(options.dtype()));
  return values.to(options.device()).requires_grad_();
}

void fill(nn::Module& module, const at::TensorOptions& options) {
  module.to(at::kCPU, c10::typeMetaToScalarType(options.dtype()));
  std::int64_t seed = 100;
  const torch::NoGradGuard no_grad;
  for (Tensor& one : module.parameters()) one.copy_(leaf(++seed, one.sizes(), one.options()).mul(0.5));
  module.to(options.device());
}

/// Some steps of a cell. Of an LSTM's two states each is used, or one alone.
Named run_lstm_cell(const at::TensorOptions& options, bool has_bias, std::int64_t batch, const std::string& used) {
  nn::LSTMCell cell(nn::LSTMCellOptions(kWidth, kHidden).bias(has_bias));
  fill(*cell, options);
  Named inputs{{"state", leaf(1, {batch, kHidden}, options)}, {"memory", leaf(2, {batch, kHidden}, options)}};
  Tensor state = inputs["state"];
  Tensor memory = inputs["memory"];
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Tensor input = inputs["input " + std::to_string(step)] = leaf(10 + step, {batch, kWidth}, options);
    std::tie(state, memory) = cell(input, std::make_tuple(state, memory));
  }
  Tensor loss = torch::zeros({}, options);
  if (used != "memory") loss = loss + state.square().sum();
  if (used != "state") loss = loss + memory.pow(3).sum();
  loss.backward();
  Named found{{"state", state}, {"memory", memory}};
  add_gradients(found, *cell, inputs);
  return found;
}

Named run_gru_cell(const at::TensorOptions& options, bool has_bias, std::int64_t batch) {
  nn::GRUCell cell(nn::GRUCellOptions(kWidth, kHidden).bias(has_bias));
  fill(*cell, options);
  Named inputs{{"state", leaf(1, {batch, kHidden}, options)}};
  Tensor state = inputs["state"];
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Tensor input = inputs["input " + std::to_string(step)] = leaf(10 + step, {batch, kWidth}, options);
    state = cell(input, state);
  }
  state.square().sum().backward();
  Named found{{"state", state}};
  add_gradients(found, *cell, inputs);
  return found;
}

TEST(SimRecurrent, CellsHaveTheBitsOfTheCpu) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    for (const bool has_bias : {true, false}) {
      for (const std::int64_t batch : {3, 1, 0}) {
        const std::string what = std::string(c10::toString(dtype)) + (has_bias ? ", bias, " : ", no bias, ") +
                                 std::to_string(batch) + " rows";
        const auto options = [dtype](const c10::Device& on) { return at::TensorOptions().dtype(dtype).device(on); };
        for (const std::string used : {"both", "state", "memory"}) {
          const auto run = [&](const c10::Device& on) { return run_lstm_cell(options(on), has_bias, batch, used); };
          expect_as_on_cpu("LSTMCell, uses " + used + ", " + what, run, same_bits);
        }
        const auto run = [&](const c10::Device& on) { return run_gru_cell(options(on), has_bias, batch); };
        expect_as_on_cpu("GRUCell, " + what, run, same_bits);
      }
    }
  }
}

/// A layer of some kind: LSTM or GRU by their options.
struct LayerCase {
  bool has_bias = true;
  std::int64_t num_layers = 1;
  bool is_bidirectional = false;
  bool is_packed = false;
  at::ScalarType dtype = at::kDouble;

  std::string text() const {
    return std::to_string(num_layers) + " layers" + (has_bias ? ", bias" : "") +
           (is_bidirectional ? ", bidirectional" : "") + (is_packed ? ", packed, " : ", ") + c10::toString(dtype);
  }
};

std::vector<LayerCase> layer_cases(at::ScalarType dtype) {
  std::vector<LayerCase> all;
  for (const bool has_bias : {true, false}) {
    for (const std::int64_t num_layers : {1, 3}) {
      for (const bool is_bidirectional : {false, true}) {
        for (const bool is_packed : {false, true}) {
          all.push_back({has_bias, num_layers, is_bidirectional, is_packed, dtype});
        }
      }
    }
  }
  return all;
}

struct Outputs {
  Tensor of_steps;
  std::vector<Tensor> last;  // the state, and an LSTM's memory
};

std::vector<Tensor> list_of(const Tensor& state) { return {state}; }
std::vector<Tensor> list_of(const std::tuple<Tensor, Tensor>& both) { return {std::get<0>(both), std::get<1>(both)}; }

/// Sequences of 4, 3 and 1 steps where they are packed, else all of 4.
template <class Layer>
Outputs layer_by_itself(const LayerCase& one, Layer& layer, const Tensor& input) {
  if (!one.is_packed) {
    const auto [of_steps, last] = layer->forward(input);
    return {of_steps, list_of(last)};
  }
  const auto packed = nn::utils::rnn::pack_padded_sequence(input, torch::tensor({4, 3, 1}));
  const auto [of_steps, last] = layer->forward_with_packed_input(packed);
  return {std::get<0>(nn::utils::rnn::pad_packed_sequence(of_steps)), list_of(last)};
}

/// One step, by LibTorch's function for it.
std::vector<Tensor> step_of(const nn::LSTM& /*layer*/, const Tensor& input, const std::vector<Tensor>& before,
                            const std::vector<Tensor>& weights) {
  return list_of(weights.size() == 2 ? at::lstm_cell(input, before, weights[0], weights[1])
                                     : at::lstm_cell(input, before, weights[0], weights[1], weights[2], weights[3]));
}
std::vector<Tensor> step_of(const nn::GRU& /*layer*/, const Tensor& input, const std::vector<Tensor>& before,
                            const std::vector<Tensor>& weights) {
  return {weights.size() == 2 ? at::gru_cell(input, before[0], weights[0], weights[1])
                              : at::gru_cell(input, before[0], weights[0], weights[1], weights[2], weights[3])};
}

/// The same layers, where every step is that of a cell.
template <class Layer>
Outputs layer_by_cells(const LayerCase& one, Layer& layer, const Tensor& input) {
  const std::size_t num_states = std::is_same_v<Layer, nn::LSTM> ? 2 : 1;
  const std::size_t num_weights = one.has_bias ? 4 : 2;
  const auto parameters = layer->parameters();
  auto next = parameters.begin();
  std::vector<std::vector<Tensor>> last(num_states);
  Tensor of_steps = input;
  for (std::int64_t number = 0; number < one.num_layers; ++number) {
    std::vector<Tensor> directions;
    for (const bool is_reverse : {false, true}) {
      if (is_reverse && !one.is_bidirectional) continue;
      const std::vector<Tensor> weights(next, next + static_cast<std::ptrdiff_t>(num_weights));
      next += static_cast<std::ptrdiff_t>(num_weights);
      std::vector<Tensor> states(num_states, torch::zeros({input.size(1), kHidden}, input.options()));
      auto inputs = of_steps.unbind(0);
      if (is_reverse) std::ranges::reverse(inputs);
      std::vector<Tensor> outputs;
      for (const Tensor& step : inputs) {
        states = step_of(layer, step, states, weights);
        outputs.push_back(states[0]);
      }
      if (is_reverse) std::ranges::reverse(outputs);
      directions.push_back(torch::stack(outputs));
      for (std::size_t i = 0; i < num_states; ++i) last[i].push_back(states[i]);
    }
    of_steps = directions.size() == 1 ? directions[0] : torch::cat(directions, -1);
  }
  Outputs found{of_steps, {}};
  for (const auto& states : last) found.last.push_back(torch::stack(states));
  return found;
}

template <class Layer, class Options>
Named run_layer(const LayerCase& one, const c10::Device& on, bool by_cells) {
  const auto options = at::TensorOptions().dtype(one.dtype).device(on);
  Layer layer(
      Options(kWidth, kHidden).bias(one.has_bias).num_layers(one.num_layers).bidirectional(one.is_bidirectional));
  fill(*layer, options);
  const Named inputs{{"input", leaf(1, {kSteps, 3, kWidth}, options)}};
  const Tensor& input = inputs.at("input");
  const Outputs outputs = by_cells ? layer_by_cells(one, layer, input) : layer_by_itself(one, layer, input);
  (outputs.of_steps.square().sum() + outputs.last[0].pow(3).sum()).backward();
  Named found{{"output", outputs.of_steps}, {"last state", outputs.last[0]}};
  if (outputs.last.size() > 1) found["last memory"] = outputs.last[1];
  add_gradients(found, *layer, inputs);
  return found;
}

/// On the CPU `by_cells`, on the device by the layer itself.
void expect_layers_as_on_cpu(const LayerCase& one, bool by_cells, double tolerance) {
  const auto allowed = [&](const std::string& /*name*/) { return tolerance; };
  const auto is_by_cells = [&](const c10::Device& on) { return by_cells && on == at::kCPU; };
  expect_as_on_cpu(
      "LSTM, " + one.text(),
      [&](const c10::Device& on) { return run_layer<nn::LSTM, nn::LSTMOptions>(one, on, is_by_cells(on)); }, allowed);
  expect_as_on_cpu(
      "GRU, " + one.text(),
      [&](const c10::Device& on) { return run_layer<nn::GRU, nn::GRUOptions>(one, on, is_by_cells(on)); }, allowed);
}

TEST(SimRecurrent, LayersHaveTheBitsOfCellsOnTheCpu) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    for (const LayerCase& one : layer_cases(dtype)) {
      if (!one.is_packed) expect_layers_as_on_cpu(one, /*by_cells=*/true, 0);
    }
  }
}

/// The CPU multiplies the inputs of all steps at once, and has kernels for whole LSTM layers in single precision.
TEST(SimRecurrent, LayersAreNearThoseOfTheCpu) {
  for (const LayerCase& one : layer_cases(at::kDouble)) expect_layers_as_on_cpu(one, false, kOtherOrderDouble);
  for (const LayerCase& one : layer_cases(at::kFloat)) expect_layers_as_on_cpu(one, false, kOtherOrderFloat);
}

/// Of gradients that are to be differentiated LibTorch makes graphs of plain operators.
TEST(SimRecurrent, GradientsOfGradientsAreTheCpus) {
  const auto run = [](const c10::Device& on) {
    const auto options = at::TensorOptions().dtype(torch::kDouble).device(on);
    nn::LSTMCell lstm(nn::LSTMCellOptions(kWidth, kHidden));
    nn::GRUCell gru(nn::GRUCellOptions(kWidth, kHidden));
    fill(*lstm, options);
    fill(*gru, options);
    const Tensor input = leaf(1, {3, kWidth}, options);
    const auto [state, memory] = lstm(input);
    const Tensor loss = (gru(input, state) * memory).square().sum();
    const Tensor gradient = torch::autograd::grad({loss}, {input}, {}, std::nullopt, /*create_graph=*/true)[0];
    gradient.square().sum().backward();
    Named found{{"gradient", gradient}};
    add_gradients(found, *lstm, {{"input", input}});
    for (const auto& entry : gru->named_parameters()) found["gradient of gru " + entry.key()] = entry.value().grad();
    return found;
  };
  expect_as_on_cpu("two cells", run, [](const std::string& /*name*/) { return kOtherOrderDouble; });
}

// ---- What the checker of the device knows of them ------------------------------------------------------------------

class SimRecurrentOrder : public ::testing::Test {
 protected:
  void TearDown() override {
    settings().longest_delay = {};
    try {
      synchronise();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a test that expects it has seen it
    }
  }

  /// Whether `second`, on a stream that waits for nothing, comes too near to `first`.
  static bool is_race(const std::function<void()>& first, const std::function<void()>& second) {
    synchronise();
    first();
    bool is_found = false;
    try {
      const c10::StreamGuard on_other(c10::impl::VirtualGuardImpl(kSim).getNewStream(device()));
      second();
    } catch (const Error&) {
      is_found = true;
    }
    synchronise();  // what is freed from here on is used no more
    return is_found;
  }

  static Tensor made(std::int64_t seed, std::int64_t columns) {
    return leaf(seed, {3, columns}, at::TensorOptions().device(device())).detach();
  }
  const Tensor input_gates_ = made(1, 4 * kHidden);
  const Tensor hidden_gates_ = made(2, 4 * kHidden);
  const Tensor state_ = made(3, kHidden);
  const Tensor bias_ = made(4, 4 * kHidden)[0].clone();
};

TEST_F(SimRecurrentOrder, CellsReadTheirArguments) {
  for (const Tensor& argument : {input_gates_, hidden_gates_, state_, bias_}) {
    EXPECT_TRUE(is_race([&] { argument.mul_(2); },
                        [&] { at::_thnn_fused_lstm_cell(input_gates_, hidden_gates_, state_, bias_, bias_); }));
  }
  const auto three = [](const Tensor& gates) { return gates.narrow(gates.dim() - 1, 0, 3 * kHidden).contiguous(); };
  const Tensor input_gates = three(input_gates_);
  const Tensor hidden_gates = three(hidden_gates_);
  const Tensor bias = three(bias_);
  for (const Tensor& argument : {input_gates, hidden_gates, state_, bias}) {
    EXPECT_TRUE(is_race([&] { argument.mul_(2); },
                        [&] { at::_thnn_fused_gru_cell(input_gates, hidden_gates, state_, bias, bias); }));
  }
}

TEST_F(SimRecurrentOrder, CellsWriteTheirResults) {
  std::vector<Tensor> lstm;
  std::vector<Tensor> gru;
  for (std::size_t result = 0; result < 3; ++result) {
    EXPECT_TRUE(is_race(
        [&] {
          const auto [state, memory, kept] =
              at::_thnn_fused_lstm_cell(input_gates_, hidden_gates_, state_, bias_, bias_);
          lstm = {state, memory, kept};
        },
        [&] { lstm[result].sum(); }));
  }
  const auto three = [](const Tensor& gates) { return gates.narrow(1, 0, 3 * kHidden).contiguous(); };
  const Tensor input_gates = three(input_gates_);
  for (std::size_t result = 0; result < 2; ++result) {
    EXPECT_TRUE(is_race(
        [&] {
          const auto [state, kept] = at::_thnn_fused_gru_cell(input_gates, input_gates, state_);
          gru = {state, kept};
        },
        [&] { gru[result].sum(); }));
  }
}

TEST_F(SimRecurrentOrder, BackwardsReadTheGradientsAndWriteTheirResults) {
  const auto [state, memory, kept] = at::_thnn_fused_lstm_cell(input_gates_, hidden_gates_, state_, bias_, bias_);
  const Tensor gradient = made(5, kHidden);
  const auto lstm_backward = [&, cy = memory, workspace = kept] {
    return at::_thnn_fused_lstm_cell_backward_impl(gradient, gradient, state_, cy, workspace, true);
  };
  EXPECT_TRUE(is_race([&] { gradient.mul_(2); }, [&] { lstm_backward(); }));
  Tensor of_gates;
  EXPECT_TRUE(is_race([&] { of_gates = std::get<0>(lstm_backward()); }, [&] { of_gates.sum(); }));
  const Tensor gates = input_gates_.narrow(1, 0, 3 * kHidden).contiguous();
  const Tensor of_gru = std::get<1>(at::_thnn_fused_gru_cell(gates, gates, state_));
  const auto gru_backward = [&] { return at::_thnn_fused_gru_cell_backward(gradient, of_gru, true); };
  EXPECT_TRUE(is_race([&] { gradient.mul_(2); }, [&] { gru_backward(); }));
  EXPECT_TRUE(is_race([&] { of_gates = std::get<1>(gru_backward()); }, [&] { of_gates.sum(); }));
}

TEST_F(SimRecurrentOrder, ArgumentsOfOtherSizesAreRefused) {
  const Tensor narrow = made(6, kHidden - 1);
  EXPECT_THROW(at::_thnn_fused_lstm_cell(input_gates_, hidden_gates_, narrow), c10::Error);
  EXPECT_THROW(at::_thnn_fused_lstm_cell(input_gates_, hidden_gates_, state_, bias_), c10::Error);
  EXPECT_THROW(at::_thnn_fused_gru_cell(input_gates_, hidden_gates_, state_), c10::Error);
  EXPECT_THROW(at::_thnn_fused_lstm_cell(input_gates_, hidden_gates_.cpu(), state_), c10::Error);
}

}  // namespace
}  // namespace tessera::testing::sim
