// A training that can be stopped at any moment and goes on, on as many processes as there are then. See README.md.
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace {

constexpr std::int64_t kBatchSize = 120;
constexpr std::int64_t kNumSteps = 400;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(middle(torch::relu(first(x))))); }

  torch::nn::Linear first = register_module("first", torch::nn::Linear(2, 128));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(128, 128));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(128, 1));
};
TORCH_MODULE(Net);

/// Batch `number` of a task without end: rows of two coordinates and the height of a landscape there.
torch::Tensor samples_of(std::int64_t number) {
  const auto index = torch::arange(kBatchSize, torch::kDouble) + static_cast<double>(number * kBatchSize);
  const auto x = torch::frac(index * 0.7548776662466927) * 2 - 1;  // even, and never the same point twice
  const auto y = torch::frac(index * 0.5698402909980532) * 2 - 1;
  return torch::stack({x, y, torch::sin(3 * x) * torch::cos(2 * y)}, 1).to(torch::kFloat);
}

torch::Tensor loss_of(Net& net, const torch::Tensor& samples) {
  return torch::mse_loss(net(samples.narrow(1, 0, 2)), samples.narrow(1, 2, 1));
}

double evaluated(Net& net) {
  const torch::NoGradGuard no_grad;
  return loss_of(net, samples_of(kNumSteps + 1)).item<double>();
}

void train(const std::string& folder, std::int64_t last_step) {
  torch::manual_seed(1);
  auto world = tessera::init();
  Net net;
  auto sharded = tessera::fully_shard(net, world);
  tessera::optim::AdamW optimizer(sharded.parameters(), tessera::optim::AdamWOptions(5e-4));

  tessera::CheckpointFolder checkpoints(folder, world, tessera::CheckpointOptions().keep_last(2).asynchronous(true));
  tessera::TrainingState state(world);
  state.model(sharded).optimizer(optimizer);
  const auto found = checkpoints.load_newest([&](const tessera::SavedStep& step) { state.restore(step); });
  if (world.rank() == 0) std::printf("starts at step %d\n", static_cast<int>(found.value_or(0)));

  for (std::int64_t step = found.value_or(0); step < last_step;) {
    const auto samples = samples_of(step).chunk(world.size()).at(world.rank());
    optimizer.zero_grad();
    loss_of(net, samples).backward();
    optimizer.step();
    if (++step % 50 != 0) continue;
    checkpoints.save(step, state.capture());
    const double loss = evaluated(net);  // on every rank: gathering takes all of them
    if (world.rank() == 0) std::printf("after %d steps: loss %.5f\n", static_cast<int>(step), loss);
  }
  const auto report = checkpoints.wait();
  if (!report.error.empty()) throw tessera::StorageError("the last step is not saved: " + report.error);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s FOLDER [LAST_STEP]\n", argv[0]);
    return 2;
  }
  try {
    train(argv[1], argc > 2 ? std::strtoll(argv[2], nullptr, 10) : kNumSteps);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
