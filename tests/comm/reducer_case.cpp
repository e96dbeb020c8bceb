// The one file of these tests that pays for the headers of torch::nn.
#include "comm/reducer_case.h"

#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "support/require.h"

namespace tessera::testing {
namespace {

struct TwoLayers : torch::nn::Module {
  TwoLayers()
      : first(register_module("first", torch::nn::Linear(7, 9))),
        second(register_module("second", torch::nn::Linear(9, 3))) {
    // Ranks that are threads share one random generator: the weights come from a formula instead.
    const torch::NoGradGuard guard;
    double phase = 0;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::sin(torch::arange(parameter.numel()) * 0.7 + ++phase).view(parameter.sizes()));
    }
  }
  torch::Tensor loss(int rank, int step) {
    const torch::Tensor input = torch::cos(torch::arange(5 * 7) * 0.3 + (10 * rank + step)).view({5, 7});
    return second(torch::tanh(first(input))).square().mean();
  }

  torch::nn::Linear first;
  torch::nn::Linear second;
};

std::vector<at::Tensor> gradients_alone(int rank, int step) {
  TwoLayers model;
  model.loss(rank, step).backward();
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

std::shared_ptr<c10d::Reducer> make_reducer(const std::vector<at::Tensor>& parameters, const Communicator& comm) {
  constexpr std::size_t kBucketBytes = 128;  // several buckets even here
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, {kBucketBytes}));
  std::reverse(buckets.begin(), buckets.end());
  return std::make_shared<c10d::Reducer>(
      parameters, std::move(buckets), comm.process_group(), std::vector<bool>(parameters.size(), false), kBucketBytes,
      /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/false,
      std::unordered_map<std::size_t, std::string>(), kBucketBytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<std::int64_t>());
}

}  // namespace

void check_reducer(const Communicator& comm) {
  TwoLayers model;
  const auto reducer = make_reducer(model.parameters(), comm);
  const auto logger = std::make_shared<c10d::Logger>(reducer);
  reducer->set_logger(logger);
  for (int step = 0; step < 3; ++step) {
    model.zero_grad();
    reducer->rebuild_buckets();  // after the first step, in the order in which gradients came
    reducer->prepare_for_forward();
    const auto loss = model.loss(comm.rank(), step);
    reducer->prepare_for_backward({});
    loss.backward();
    const auto parameters = model.parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      at::Tensor expected = at::zeros_like(parameters[p]);
      for (int rank = 0; rank < comm.size(); ++rank) expected += gradients_alone(rank, step)[p];
      expected /= comm.size();
      require(at::allclose(parameters[p].grad(), expected, 1e-5, 1e-7),
              "the gradient of parameter " + std::to_string(p) + " is not the average at step " + std::to_string(step));
      require(!at::allclose(expected, gradients_alone(comm.rank(), step)[p], 1e-5, 1e-7) || comm.size() == 1,
              "the ranks' gradients do not differ: the test says nothing");
    }
  }
}

}  // namespace tessera::testing
