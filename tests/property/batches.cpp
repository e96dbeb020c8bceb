#include "property/batches.h"

#include <tessera/shard/named_tensors.h>

#include <torch/torch.h>

#include "fsdp/random_models/random_model.h"

namespace tessera::testing {

using at::Tensor;

Tensor wave(double phase, at::IntArrayRef shape) {
  const auto count = c10::multiply_integers(shape);
  return torch::sin(torch::arange(count, torch::kDouble) * 1.7 + phase).view(shape);
}

Batch make_batch(const User& user, std::int64_t number, int part) {
  constexpr std::int64_t kBatchSize = 2;
  constexpr std::int64_t kLength = 3;
  Batch batch;
  batch.x = wave(static_cast<double>(number) * 0.9 + part * 2.3, {kBatchSize, kLength, kWidth});
  batch.ids = (torch::arange(kBatchSize * kLength, torch::kLong) * 3 + number + 2 * part)
                  .remainder(kNumWords)
                  .view({kBatchSize, kLength});
  // The same on every rank, and not from batch to batch.
  batch.switches = wave(static_cast<double>(number) * 2.1, {kNumSwitches});
  for (Tensor* const tensor : {&batch.x, &batch.ids, &batch.switches}) *tensor = tensor->to(user.device());
  batch.may_recompute = true;
  return batch;
}

Tensor loss_of(const Tensor& output) {
  return (output - wave(0.3, output.sizes()).to(output.device())).square().mean();
}

Tensor loss_of(User& user, std::int64_t number, int part) {
  const Batch batch = make_batch(user, number, part);
  return loss_of(user.forward(batch.x, batch));
}

Tensor output_of(User& user, std::int64_t number) {
  const Batch batch = make_batch(user, number, 0);
  user.model().eval();
  Tensor output = user.forward(batch.x, batch);
  user.model().train();
  return output;
}

std::vector<Tensor> parameters_of(User& user) { return tessera::parameters_of(user.model()).tensors; }

Tensor parameter_of(User& user, std::int64_t number) {
  const auto parameters = parameters_of(user);
  return parameters[static_cast<std::size_t>(number) % parameters.size()];
}

void clear(User& user) {
  for (const auto& [name, tensor] : user.trained()) tensor.mutable_grad() = Tensor();
  user.model().zero_grad();
}

}  // namespace tessera::testing
