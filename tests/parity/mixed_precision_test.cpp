#include <tessera/comm/world.h>
#include <tessera/fsdp/fully_shard.h>

#include <torch/optim.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "parity/training.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

struct Types {
  torch::Dtype param;
  torch::Dtype reduce;
};

torch::optim::AdamWOptions rate() { return torch::optim::AdamWOptions(0.01); }

torch::Tensor loss_of(ParityModel& model, int step, int part) {
  return model.loss(model.forward(model.input(step, part)).to(torch::kFloat), step, part);
}

/// One process with exact masters, which casts where the ranks cast and adds up in their order.
State train_alone_mixed(const ParityCase& parity, Types types) {
  const auto model = make_parity_model(parity.model, torch::kFloat);
  std::vector<torch::Tensor> masters;
  for (auto& parameter : model->parameters()) {
    masters.push_back(parameter.detach().clone().set_requires_grad(true));
    parameter.set_data(parameter.to(types.param));
  }
  for (auto& buffer : model->buffers()) {
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(types.param));
  }
  torch::optim::AdamW optimizer(masters, rate());
  const auto parameters = model->parameters();
  for (int step = 0; step < kNumSteps; ++step) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < masters.size(); ++i) parameters[i].detach().copy_(masters[i]);
    std::vector<torch::Tensor> sums(masters.size());
    for (int part = 0; part < parity.num_ranks; ++part) {
      torch::AutoGradMode with_grad(true);
      model->zero_grad();
      loss_of(*model, step, part).backward();
      for (std::size_t i = 0; i < masters.size(); ++i) {
        const auto gradient = parameters[i].grad().detach().to(types.reduce);
        sums[i] = sums[i].defined() ? sums[i] + gradient : gradient.clone();
      }
    }
    for (std::size_t i = 0; i < masters.size(); ++i) {
      masters[i].mutable_grad() = (sums[i] / parity.num_ranks).to(torch::kFloat);
    }
    optimizer.step();
  }
  State state;
  const auto names = model->named_parameters().keys();
  for (std::size_t i = 0; i < names.size(); ++i) state[names[i]] = masters[i].detach();
  return state;
}

State train_sharded_mixed(const ParityCase& parity, const FsdpOptions& options, const Communicator& comm) {
  const auto model = make_parity_model(parity.model, torch::kFloat);
  const ShardedModel sharded = fully_shard(model, comm, options);
  torch::optim::AdamW optimizer(sharded.parameters(), rate());
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    loss_of(*model, step, comm.rank()).backward();
    optimizer.step();
  }
  State state = sharded.full_state_dict();
  for (const auto& name : model->named_buffers().keys()) state.erase(name);
  return state;
}

class MixedPrecision : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(MixedPrecision, EqualsOneProcessWithTheSameCasts) {
  ParityCase parity;
  std::tie(parity.model, parity.num_ranks) = GetParam();
  parity.dtype = torch::kFloat;
  for (const Types types : {Types{torch::kBFloat16, torch::kFloat}, Types{torch::kDouble, torch::kDouble}}) {
    const State expected = train_alone_mixed(parity, types);
    for (const bool shares : {true, false}) {
      FsdpOptions options;
      options.auto_wrap(wrap_by_size(100)).param_dtype(types.param).reduce_dtype(types.reduce);
      options.buffer_dtype(types.param).shared_copy(shares);
      run_threads(parity.num_ranks, [&](const World& world) {
        require_equal(train_sharded_mixed(parity, options, world.comm()), expected, parity,
                      shares ? "one copy" : "own copies");
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MixedPrecision,
                         ::testing::Combine(::testing::Values("gpt", "conv", "lstm"), ::testing::Values(1, 2, 4)),
                         [](const auto& one) {
                           return std::get<0>(one.param) + "On" + std::to_string(std::get<1>(one.param));
                         });

TEST(MixedPrecisionOptions, KeepGradientsLowAndBuffersAsAsked) {
  run_threads(2, [](const World& world) {
    const auto model = make_parity_model("conv", torch::kFloat);
    const ShardedModel sharded =
        fully_shard(model, world.comm(), FsdpOptions().param_dtype(torch::kBFloat16).buffer_dtype(torch::kDouble));
    for (const auto& buffer : model->buffers()) {
      require(!buffer.is_floating_point() || buffer.scalar_type() == torch::kDouble, "a buffer has another type");
    }
    for (const auto& parameter : model->parameters()) {
      require_equal(parameter.scalar_type(), torch::kBFloat16, "a parameter has another type");
    }
    const auto other = make_parity_model("lstm", torch::kFloat);
    const ShardedModel low =
        fully_shard(other, world.comm(), FsdpOptions().param_dtype(torch::kBFloat16).keep_low_precision_grads(true));
    loss_of(*other, 0, world.rank()).backward();
    for (const auto& shard : low.parameters()) {
      require_equal(shard.scalar_type(), torch::kFloat, "a master has another type");
      require(shard.numel() == 0 || shard.grad().scalar_type() == torch::kBFloat16, "a gradient has another type");
    }
  });
}

TEST(MixedPrecisionOptions, DifferByUnit) {
  run_threads(2, [](const World& world) {
    const auto model = make_parity_model("gpt", torch::kFloat);
    const auto only_first = [](const std::string& unit) {
      return unit == "first" ? UnitPrecision{.param_dtype = torch::kBFloat16} : UnitPrecision{};
    };
    const auto is_block = [](const torch::nn::Module&, const std::string& name, std::int64_t) {
      return name == "first" || name == "second";
    };
    const ShardedModel sharded = fully_shard(
        model, world.comm(), FsdpOptions().unit_precision(only_first).auto_wrap(WrapPolicy("blocks", is_block)));
    for (const auto& entry : model->named_parameters()) {
      const bool is_low = entry.key().starts_with("first.");
      require_equal(entry.value().scalar_type(), (is_low ? torch::kBFloat16 : torch::kFloat), entry.key());
    }
  });
}

}  // namespace
}  // namespace tessera::testing
