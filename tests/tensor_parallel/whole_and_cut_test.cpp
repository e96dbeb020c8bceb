// Programs in which tensors that are whole meet tensors that are cut. Random trees (random_trees) found what each is
// about.
#include <tessera/comm/world.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/recompute/recompute.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "parity/models.h"
#include "support/require_tensors.h"
#include "support/whole_copy.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kFeatures = 6;

/// Layers to cut, and parameters that are whole.
struct PartlyCut : torch::nn::Module {
  PartlyCut()
      : layer(register_module("layer", torch::nn::Linear(kFeatures, kFeatures))),
        norm(register_module("norm", torch::nn::BatchNorm1d(kFeatures))),
        weight(register_parameter("weight", at::zeros({kFeatures, kFeatures}))),
        gain(register_parameter("gain", at::zeros({}))) {
    to(at::kDouble);
    fill_by_formula(*this);
  }
  torch::nn::Linear layer;
  torch::nn::BatchNorm1d norm;
  at::Tensor weight;
  at::Tensor gain;
};

at::Tensor some_input() { return formula({3, kFeatures}, 1, at::kDouble); }

using Program = std::function<at::Tensor(PartlyCut&)>;

/// Runs a program and its backward pass with the layer whole, then cut, and compares what it returns and all gradients.
void expect_same_when_cut(const Program& program, const TensorPlan& plan = {{"layer", split_columns()}}) {
  PartlyCut alone;
  const at::Tensor expected = program(alone);
  expected.square().sum().backward();
  for (const int num_ranks : {1, 2, 4}) {
    run_threads(num_ranks, [&](const World& world) {
      const auto model = std::make_shared<PartlyCut>();
      tensor_parallel(model, world, plan);
      const at::Tensor found = program(*model);
      found.square().sum().backward();
      require(at::allclose(whole_copy(found), expected, 1e-12, 1e-12), "what the program returns");
      const auto wanted = alone.named_parameters();
      for (const auto& item : model->named_parameters()) {
        const at::Tensor& gradient = wanted[item.key()].grad();
        require_equal(item.value().grad().defined(), gradient.defined(), "there is a gradient of " + item.key());
        if (!gradient.defined()) continue;
        require(at::allclose(whole_copy(item.value().grad()), gradient, 1e-12, 1e-12), "the gradient of " + item.key());
      }
    });
  }
}

TEST(WholeAndCut, AWholeTensorTakesTheShapeOfACutOne) {
  expect_same_when_cut([](PartlyCut& model) {
    const at::Tensor cut = model.layer(some_input());
    const at::Tensor row = model.weight.select(0, 0);
    return cut + row.expand_as(cut) + some_input().flatten().view_as(cut) * row.expand({3, -1}).t().reshape_as(cut);
  });
}

TEST(WholeAndCut, AViewThatWasGatheredMeetsACutTensor) {
  expect_same_when_cut(
      [](PartlyCut& model) { return model.layer(some_input()) + model.layer->weight.narrow(0, 1, 3); });
}

TEST(WholeAndCut, NormalisesBothBeforeOneBackward) {
  expect_same_when_cut(
      [](PartlyCut& model) { return model.norm(model.layer(some_input())) + model.norm(some_input()); },
      {{"layer", split_columns()}, {"norm", split_columns()}});
}

TEST(WholeAndCut, RecomputesFromATensorThatWasWrittenTo) {
  expect_same_when_cut([](PartlyCut& model) {
    const at::Tensor input = model.layer(some_input()).mul_(0.5).relu_();
    return recompute([&model](const at::Tensor& x) { return x.tanh().matmul(model.weight); }, input);
  });
}

TEST(WholeAndCut, RecomputesOnRanksThatHaveNothing) {
  // Three rows, classes or heads on four ranks.
  expect_same_when_cut(
      [](PartlyCut& model) {
        const at::Tensor ids = at::arange(kFeatures, at::kLong);
        const auto words = [ids, &model](const at::Tensor& x) { return x + at::embedding(model.layer->weight, ids); };
        const auto classes = [ids, &model](const at::Tensor& x) {
          return x * at::cross_entropy_loss(torch::linear(x, model.layer->weight), ids);
        };
        const auto attention = [&model](const at::Tensor& x) {
          const at::Tensor heads = model.layer(x).view({1, kFeatures, 3, 2}).transpose(1, 2);
          return at::scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2).squeeze(0);
        };
        return recompute(attention, recompute(classes, recompute(words, model.weight.tanh())));
      },
      {{"layer", split_columns().heads(3)}});
}

at::Tensor loss_of_classes(PartlyCut& model, const at::Tensor& x, std::int64_t reduction) {
  const at::Tensor classes = at::tensor({5, 0, -100, 3, 2, 1}, at::kLong);
  return at::cross_entropy_loss(torch::linear(x, model.layer->weight, model.layer->bias), classes, {}, reduction);
}

TEST(WholeAndCut, DifferentiatesGradientsOfAClassLoss) {
  for (const auto reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    expect_same_when_cut(
        [reduction](PartlyCut& model) {
          const at::Tensor x = model.weight.tanh();
          const at::Tensor loss = loss_of_classes(model, x, reduction).square().sum();
          const auto gradients =
              torch::autograd::grad({loss}, {x, model.layer->weight}, {}, /*retain_graph=*/true, /*create_graph=*/true);
          return loss + gradients[0].square().sum() + gradients[1].pow(3).sum();
        },
        {{"layer", split_columns().heads(3)}});
  }
}

TEST(WholeAndCut, GoesBackTwiceThroughAClassLoss) {
  expect_same_when_cut([](PartlyCut& model) {
    const at::Tensor loss = loss_of_classes(model, model.weight.tanh(), at::Reduction::Mean);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward({}, /*retain_graph=*/true);
    return loss;
  });
}

TEST(WholeAndCut, CountsChangesInPlaceAsOneProcess) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<PartlyCut>();
    tensor_parallel(model, world, {{"layer", split_columns()}});
    const at::NoGradGuard no_grad;
    const at::Tensor cut = model->layer(some_input());
    const auto before = cut._version();
    const at::Tensor view = cut.select(0, 1);
    const at::Tensor detached = cut.detach();
    cut.mul_(2);
    view.add_(1);
    require_equal(cut._version() - before, 2, "changes of the tensor, of which one through a view");
    require_equal(detached._version(), cut._version(), "of what detach() gave");
  });
}

/// x W, with a backward of its own, whose gradients are cut as what they are computed from.
struct OwnProduct : torch::autograd::Function<OwnProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x.matmul(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients.front().matmul(saved[1].t()), saved[0].t().matmul(gradients.front())};
  }
};

TEST(WholeAndCut, ACustomFunctionReturnsGradientsThatAreCut) {
  // Of a whole parameter, of a whole tensor whose history begins with a gather, and of a parameter that is cut.
  expect_same_when_cut(
      [](PartlyCut& model) { return OwnProduct::apply(model.layer(some_input()), model.weight) * model.gain; });
  const Program gathers = [](PartlyCut& model) {
    return OwnProduct::apply(some_input() + model.layer->bias.sinh(), model.layer->weight) * model.gain;
  };
  expect_same_when_cut(gathers);
  expect_same_when_cut(gathers, {{"layer", split_columns().transposed()}});
}

TEST(WholeAndCut, AGradientThatIsCutPassesAWriteToAView) {
  expect_same_when_cut([](PartlyCut& model) {
    const at::Tensor x = some_input().matmul(model.weight);
    x.narrow(1, 1, 3).mul_(model.weight.select(0, 2).narrow(0, 0, 3));
    return OwnProduct::apply(x, model.layer->weight);
  });
}

TEST(WholeAndCut, GradientsOfCustomFunctionsAreCutAsTheirParameters) {
  const auto run = [](PartlyCut& model) {
    OwnProduct::apply(OwnProduct::apply(some_input(), model.layer->weight), model.weight).square().sum().backward();
  };
  PartlyCut alone;
  run(alone);
  const double norm = clip_grad_norm(alone.parameters(), 0.1);
  run_threads(3, [&](const World& world) {
    const auto model = std::make_shared<PartlyCut>();
    const auto parallel = tensor_parallel(model, world, {{"layer", split_rows()}});
    run(*model);
    require(!intercept::acting_data(model->weight.grad()), "the gradient of a whole parameter is whole");
    require_equal(intercept::held_part(model->layer->weight.grad()).sizes().vec(),
                  intercept::held_part(model->layer->weight).sizes().vec(), "the sizes of a part and of its gradient");
    require(std::abs(clip_grad_norm(parallel, 0.1) - norm) < 1e-12 * norm, "the norm");
    require(at::allclose(whole_copy(model->weight.grad()), alone.weight.grad(), 1e-12, 1e-12), "what was clipped");
  });
}

TEST(WholeAndCut, AFusedStepTakesParametersOfOneElement) {
  const auto step = [](PartlyCut& model) {
    // First the one without dimensions: the others must not be taken for their neighbours.
    optim::AdamW optimizer({model.gain, model.layer->weight, model.weight}, torch::optim::AdamWOptions(1e-2));
    (model.layer(some_input()).matmul(model.weight) * model.gain).square().sum().backward();
    optimizer.step();
  };
  PartlyCut alone;
  step(alone);
  run_threads(2, [&](const World& world) {
    const auto model = std::make_shared<PartlyCut>();
    tensor_parallel(model, world, {{"layer", split_columns()}});
    step(*model);
    const auto wanted = alone.named_parameters();
    for (const auto& item : model->named_parameters()) {
      require(at::allclose(whole_copy(item.value()), wanted[item.key()], 1e-10, 1e-10), item.key());
    }
  });
}

/// As LibTorch's formula for the second gradients of a GroupNorm does.
TEST(WholeAndCut, ChangesOfShapeInPlace) {
  expect_same_when_cut([](PartlyCut& model) {
    at::Tensor y = model.layer(some_input());
    y.unsqueeze_(1);
    y.unsqueeze_(0).mul_(2);
    return (y * model.gain + y.sum({0, 1})).unsqueeze_(-1);
  });
}

}  // namespace
}  // namespace tessera::testing
