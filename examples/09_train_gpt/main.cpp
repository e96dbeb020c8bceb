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

/// Matrices decay towards zero, biases and norms do not. Where ranks share the model, a tensor that is trained is a
/// part of one of its parameters, or of several.
std::vector<torch::optim::OptimizerParamGroup> parameter_groups(const tessera::ParallelModel& model,
                                                                const TrainGptOptions& options) {
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> vectors;
  const auto is_matrix = [](const tessera::ParameterPart& part) { return part.slice.shape().size() > 1; };
  for (const auto& [name, tensor, parts, axes] : model.trained()) {
    const auto num_matrices = std::count_if(parts.begin(), parts.end(), is_matrix);
    if (num_matrices != 0 && num_matrices != std::ssize(parts)) {
      throw tessera::ConfigError("matrices decay and vectors do not, and " + name +
                                 " holds both: set parallel.fsdp.use_orig_params");
    }
    (num_matrices != 0 ? matrices : vectors).push_back(tensor);
  }
  const auto with_decay = [&](double decay) {
    return std::make_unique<tessera::optim::AdamWOptions>(
        tessera::optim::AdamWOptions(options.learning_rate()).betas({0.9, 0.95}).weight_decay(decay));
  };
  return {{std::move(matrices), with_decay(options.weight_decay())}, {std::move(vectors), with_decay(0)}};
}

using Batch = std::pair<at::Tensor, at::Tensor>;  // tokens, and the tokens behind them

/// In nats a token, of the first samples of `data`, which the ranks share.
double validate(Gpt2& model, const tessera::ParallelizedModel& parallel, const tessera::TokenDataset& data,
                const tessera::BatchRanks& ranks, const TrainGptOptions& options) {
  parallel.sync_buffers();
  model->eval();
  const auto num_samples = std::min(options.validation_samples(), data.size());
  const auto global_batch = options.micro_batch() * ranks.size;
  tessera::Sampler sampler(num_samples, ranks.rank, ranks.size,
                           tessera::SamplerOptions().order("sequential").last_batch("keep").global_batch(global_batch));
  double sum = 0;
  for (std::int64_t done = 0; const auto part = sampler.next(); done += global_batch) {
    // Ranks that share weights compute together: who has no sample left takes one that does not count.
    const auto weight = static_cast<double>(part->samples.size());
    const auto samples = part->samples.empty() ? std::vector<std::int64_t>{0} : part->samples;
    const auto [input, target] = data.batch(samples);
    const auto loss = parallel.evaluate(
        Batch(input, target), [&](const Batch& micro) { return model->loss(micro.first, micro.second); },
        [&](const Batch& /*micro*/) { return weight; });
    sum += loss.item<double>() * static_cast<double>(std::min(global_batch, num_samples - done));
  }
  model->train();
  return sum / static_cast<double>(num_samples);
}

class Training {
 public:
  Training(Gpt2& model, const tessera::World& world, const TrainGptOptions& options);
  /// From the step that the checkpoints hold, if they hold one, to the last.
  void run();
  const tessera::ParallelizedModel& parallel() const { return parallel_; }

 private:
  std::int64_t resume();
  tessera::observe::StepRecord step(std::int64_t number);
  bool is_due(std::int64_t number, std::int64_t every) const {
    return number % every == 0 || number == options_.steps();
  }

  const TrainGptOptions& options_;
  const tessera::World& world_;
  Gpt2& model_;
  tessera::DeviceMesh mesh_;
  tessera::TokenDataset data_;
  std::optional<tessera::TokenDataset> validation_;
  tessera::Loader<tessera::TokenBatch> loader_;
  tessera::ParallelizedModel parallel_;
  tessera::optim::AdamW optimizer_;
  tessera::LrSchedule schedule_;
  tessera::TrainingState state_;
  std::unique_ptr<tessera::observe::Observer> observer_;
  std::optional<tessera::CheckpointFolder> checkpoints_;
};

Training::Training(Gpt2& model, const tessera::World& world, const TrainGptOptions& options)
    : options_(options),
      world_(world),
      model_(model),
      mesh_(make_mesh(world, options.parallel())),
      data_(open_tokens(options.data(), options)),
      loader_(tessera::Sampler(data_.size(), batch_ranks(mesh_).rank, batch_ranks(mesh_).size,
                               tessera::SamplerOptions().seed(options.seed()).global_batch(options.global_batch())),
              [data = data_](const tessera::SampleBatch& part) { return data.batch(part.samples); }),
      parallel_(tessera::parallelize(model, mesh_, options.parallel())),
      optimizer_(parameter_groups(parallel_, options)),
      schedule_(optimizer_, options.schedule()),
      state_(world),
      observer_(tessera::make_observer(world, options.observe(),
                                       {.total_steps = options.steps(), .config = tessera::print_config(options)})) {
  if (!options.validation().empty()) validation_ = open_tokens(options.validation(), options);
  state_.model(parallel_).optimizer(optimizer_).schedule(schedule_).sampler(loader_);
}

/// How many steps are done: none at the first start.
std::int64_t Training::resume() {
  if (options_.checkpoints().empty()) return 0;
  checkpoints_.emplace(options_.checkpoints(), world_, options_.checkpoint());
  checkpoints_->show_on(observer_->terminal());
  const auto found = checkpoints_->load_newest([this](const tessera::SavedStep& step) { state_.restore(step); });
  if (found && world_.rank() == 0) observer_->print("goes on after step " + std::to_string(*found));
  return found.value_or(0);
}

tessera::observe::StepRecord Training::step(std::int64_t number) {
  auto batch = loader_.next();
  if (!batch) batch = loader_.next();  // the first of the next epoch
  const auto start = std::chrono::steady_clock::now();
  optimizer_.zero_grad();
  tessera::observe::StepRecord record{.step = number};
  const auto loss = [this](const Batch& micro) { return model_->loss(micro.first, micro.second); };
  record.loss = parallel_.step(Batch(batch->input, batch->target), loss).item<double>();
  record.gradient_norm = tessera::clip_grad_norm(parallel_, options_.clip());
  record.learning_rate = schedule_.factor() * options_.learning_rate();
  optimizer_.step();
  schedule_.advance();
  record.tokens = options_.global_batch() * options_.sequence_length();
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return record;
}

void Training::run() {
  for (std::int64_t number = resume() + 1; number <= options_.steps(); ++number) {
    auto record = step(number);
    const bool validates = validation_ && is_due(number, options_.validate_every());
    if (validates) {
      record.scalars.emplace_back("validation/loss",
                                  validate(model_, parallel_, *validation_, batch_ranks(mesh_), options_));
    }
    observer_->record(record);
    if (validates && world_.rank() == 0) {
      observer_->print("step " + std::to_string(number) + ": validation loss " +
                       std::to_string(record.scalars.front().second) + " nats a byte");
    }
    if (checkpoints_ && is_due(number, options_.save_every())) checkpoints_->save(number, state_.capture());
  }
  if (checkpoints_) {
    const auto report = checkpoints_->wait();
    if (!report.error.empty()) throw tessera::StorageError("the last step is not saved: " + report.error);
  }
  observer_->close();
}

void run(const TrainGptOptions& options) {
  const auto world = tessera::init();
  torch::manual_seed(options.seed());
  Gpt2 model(options.model());
  Training training(model, world, options);
  training.run();
  const auto whole = training.parallel().gather();  // rank 0 goes on alone
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
