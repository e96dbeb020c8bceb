// From text to a trained model that continues it. See README.md.
#include <tessera/tessera.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>

#include "generation/byte_tokens.h"
#include "gpt2/generate.h"
#include "gpt2/gpt2.h"
#include "gpt2/hugging_face.h"
#include "options.h"

namespace {

using tessera::models::Gpt2;

tessera::TokenDataset open_tokens(const std::string& path, const TrainGptOptions& options) {
  return tessera::TokenDataset({tessera::TokenFile::open(path)},
                               tessera::TokenDatasetOptions().sequence_length(options.sequence_length()));
}

/// Matrices decay towards zero, biases and norms do not.
std::vector<torch::optim::OptimizerParamGroup> parameter_groups(const Gpt2& model, const TrainGptOptions& options) {
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> vectors;
  for (const at::Tensor& parameter : model->parameters())
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  const auto with_decay = [&](double decay) {
    return std::make_unique<tessera::optim::AdamWOptions>(
        tessera::optim::AdamWOptions(options.learning_rate()).betas({0.9, 0.95}).weight_decay(decay));
  };
  return {{std::move(matrices), with_decay(options.weight_decay())}, {std::move(vectors), with_decay(0)}};
}

at::Tensor loss_of(Gpt2& model, const tessera::TokenBatch& batch, const TrainGptOptions& options) {
  std::optional<tessera::Autocast> autocast;
  if (options.precision() == "bf16") autocast.emplace(at::kBFloat16);
  return model->loss(batch.input, batch.target);
}

/// One update's worth of backward passes; the loss of the step, over all ranks.
double backward(Gpt2& model, const tessera::DistributedModel& ddp, const tessera::TokenBatch& batch,
                const tessera::World& world, const TrainGptOptions& options) {
  const auto inputs = batch.input.split(options.micro_batch());
  const auto targets = batch.target.split(options.micro_batch());
  at::Tensor sum = at::zeros({});
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto weight = static_cast<double>(inputs[i].size(0)) / static_cast<double>(batch.input.size(0));
    const auto pass = [&] {
      const at::Tensor loss = loss_of(model, {inputs[i], targets[i]}, options) * weight;
      loss.backward();
      sum += loss.detach();
    };
    if (i + 1 == inputs.size()) {
      pass();
    } else {
      const auto alone = ddp.no_sync();  // gradients are averaged once, with the last micro-batch
      pass();
    }
  }
  world.comm().all_reduce(sum, tessera::ReduceOp::kAvg);
  return sum.item<double>();
}

/// In nats a token, of the first samples of `data`, which the ranks share.
double validate(Gpt2& model, const tessera::TokenDataset& data, const tessera::World& world,
                const TrainGptOptions& options) {
  const torch::NoGradGuard no_grad;
  model->eval();
  const auto num_samples = std::min(options.validation_samples(), data.size());
  tessera::Sampler sampler(num_samples, world.rank(), world.size(),
                           tessera::SamplerOptions()
                               .order("sequential")
                               .last_batch("keep")
                               .global_batch(options.micro_batch() * world.size()));
  at::Tensor sums = at::zeros({2}, at::kDouble);
  while (const auto part = sampler.next()) {
    if (part->samples.empty()) continue;
    const auto count = static_cast<double>(part->samples.size());
    sums[0] += loss_of(model, data.batch(part->samples), options).item<double>() * count;
    sums[1] += count;
  }
  world.comm().all_reduce(sums);
  model->train();
  return sums[0].item<double>() / sums[1].item<double>();
}

void train(Gpt2& model, const tessera::World& world, const TrainGptOptions& options) {
  const auto data = open_tokens(options.data(), options);
  std::optional<tessera::TokenDataset> validation;
  if (!options.validation().empty()) validation = open_tokens(options.validation(), options);
  tessera::Sampler sampler(data.size(), world.rank(), world.size(),
                           tessera::SamplerOptions().seed(options.seed()).global_batch(options.global_batch()));
  tessera::Loader loader(sampler, [data](const tessera::SampleBatch& part) { return data.batch(part.samples); });

  const auto ddp = tessera::distribute(model, world, options.ddp());
  tessera::optim::AdamW optimizer(parameter_groups(model, options));
  tessera::LrSchedule schedule(optimizer, options.schedule());
  const auto observer = tessera::make_observer(
      world, options.observe(), {.total_steps = options.steps(), .config = tessera::print_config(options)});

  for (std::int64_t step = 1; step <= options.steps(); ++step) {
    auto batch = loader.next();
    if (!batch) batch = loader.next();  // the first of the next epoch
    const auto start = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    const double loss = backward(model, ddp, *batch, world, options);
    const double norm = tessera::clip_grad_norm(model->parameters(), options.clip());
    const double rate = schedule.factor() * options.learning_rate();
    optimizer.step();
    schedule.advance();
    tessera::observe::StepRecord record{.step = step, .loss = loss, .learning_rate = rate, .gradient_norm = norm};
    record.tokens = options.global_batch() * options.sequence_length();
    record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const bool validates = validation && (step % options.validate_every() == 0 || step == options.steps());
    if (validates) record.scalars.emplace_back("validation/loss", validate(model, *validation, world, options));
    observer->record(record);
    if (validates && world.rank() == 0) {
      observer->print("step " + std::to_string(step) + ": validation loss " +
                      std::to_string(record.scalars.front().second) + " nats a byte");
    }
  }
  observer->close();
}

void run(const TrainGptOptions& options) {
  const auto world = tessera::init();
  torch::manual_seed(options.seed());
  Gpt2 model(options.model());
  train(model, world, options);
  if (world.rank() != 0) return;
  if (!options.out().empty()) tessera::models::save_gpt2(model, options.out());
  const auto text = generate(model, tessera::models::bytes_to_tokens(options.prompt()), options.sample());
  std::cout << tessera::models::tokens_to_bytes(text) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(TrainGptOptions::from_command_line(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return tessera::exit_code(error);
  }
  return 0;
}
