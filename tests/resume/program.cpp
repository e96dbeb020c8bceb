#include "resume/program.h"

#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/optim/grad_scaler.h>
#include <tessera/optim/schedule.h>

#include <ATen/ATen.h>

#include <cmath>
#include <sstream>
#include <utility>
#include <vector>

#include "support/require_tensors.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kNumSamples = 120;
constexpr std::int64_t kBatch = 24;
constexpr std::int64_t kTotalSteps = 40;

// Of a loss that is scaled: so large that its gradients overflow in float before the scale does.
constexpr double kLoudness = 4096;

/// Grows until steps are skipped, and which those are the scaler alone knows.
GradScalerOptions scaling(bool is_scaled) {
  return GradScalerOptions().enabled(is_scaled).init_scale(std::exp2(116)).growth_interval(3);
}

/// The rows of some samples, of which each has values of its own.
at::Tensor rows_of(const std::vector<std::int64_t>& samples, double phase) {
  const at::Tensor numbers = at::tensor(samples, at::kLong).to(at::kDouble).unsqueeze(1);
  return at::sin(numbers * 0.77 + at::arange(6, at::kDouble) * 1.3 + phase);
}

class Program {
 public:
  Program(const World& world, const ProgramOptions& options)
      : world_(world),
        options_(options),
        shared_(world, options.variant, options.is_noisy),
        optimizer_(make_optimizer(options.optimizer, shared_.trained)),
        schedule_(*optimizer_, ScheduleOptions().kind(ScheduleKind::kCosine).total_steps(kTotalSteps + 10)),
        loader_(Sampler(kNumSamples, world.rank(), world.size(), SamplerOptions().seed(5).global_batch(kBatch)),
                [](const SampleBatch& part) { return part.samples; }),
        is_scaled_(options.is_noisy && is_in_float(options.variant)),
        scaler_(world, scaling(is_scaled_)),
        state_(world) {
    at::manual_seed(17 + static_cast<std::uint64_t>(world.rank()));
    shared_.register_in(state_);
    state_.optimizer(*optimizer_).schedule(schedule_).scaler(scaler_).sampler(loader_).value("step", step_);
  }

  void load() {
    CheckpointFolder folder(*options_.load_from, world_);
    const auto found = folder.load_newest([this](const SavedStep& step) { state_.restore(step); });
    require(found && *found == step_, "there is a step, and it knows its number");
  }

  void save() {
    CheckpointFolder folder(*options_.save_to, world_);
    const SaveReport report = folder.save(step_, state_.capture());
    require(report.saved, report.error);
  }

  void train() {
    for (; step_ < options_.until; ++step_) {
      optimizer_->zero_grad();
      auto samples = loader_.next();
      if (!samples) samples = loader_.next();  // the next epoch
      const int own = num_parts(options_.variant, world_.size()) / world_.size();
      const auto size = static_cast<std::int64_t>(samples->size()) / own;
      for (int part = 0; part < own; ++part) {
        const auto begin = samples->begin() + part * size;
        backward({begin, begin + size});
      }
      scaler_.step(*optimizer_);
      scaler_.update();
      schedule_.advance();
    }
    require(!is_scaled_ || scaler_.num_skipped() > 0, "the scale grew until a step was skipped");
  }

  Weights weights() const { return shared_.weights(); }

 private:
  void backward(const std::vector<std::int64_t>& samples) {
    at::Tensor x = rows_of(samples, 0);
    if (options_.is_noisy) x = at::dropout(x, 0.1, /*train=*/true);
    if (is_in_float(options_.variant)) x = x.to(at::kFloat);
    const at::Tensor loss = (shared_.model->forward(x) - rows_of(samples, 0.4)).square().mean();
    scaler_.scale(is_scaled_ ? loss * kLoudness : loss).backward();
  }

  World world_;
  ProgramOptions options_;
  SharedTrainee shared_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  LrSchedule schedule_;
  Loader<std::vector<std::int64_t>> loader_;
  bool is_scaled_;
  GradScaler scaler_;
  std::int64_t step_ = 0;
  TrainingState state_;
};

}  // namespace

Weights run_program(const World& world, const ProgramOptions& options) {
  Program program(world, options);
  if (options.load_from) program.load();
  program.train();
  if (options.save_to) program.save();
  return program.weights();
}

void require_same_bits(const Weights& found, const Weights& expected, const std::string& what) {
  require(found.size() == expected.size() && !expected.empty(), what + ": as many parameters");
  for (const auto& [name, value] : expected) require_equal(found.at(name), value, what + ": " + name);
}

double tolerance_of(const std::string& variant) { return is_in_float(variant) ? 1e-5 : 1e-10; }

std::string optimizer_of(const std::string& variant) { return variant.ends_with("fp32") ? "sgd" : "fused adamw"; }

void require_close(const Weights& found, const Weights& expected, double tolerance, const std::string& what) {
  for (const auto& [name, value] : expected) {
    const double difference = (found.at(name) - value).abs().max().item<double>();
    std::ostringstream text;
    text << what << ": " << name << " differs by " << difference;
    require(difference <= tolerance * value.abs().max().item<double>(), text.str());
  }
}

}  // namespace tessera::testing
