// A rank of a pipeline that does a step and then, if it is the victim, stays in the forward of its stage or ends there.
//   fault_stage FAULT VICTIM BACKEND TIMEOUT_SECONDS
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/pipeline/pipeline.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>

namespace {

constexpr std::int64_t kWidth = 4;
constexpr int kMicroBatches = 8;
constexpr int kFaultyMicroBatch = 3;

/// See fault_rank.cpp.
void announce() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  std::printf("fault at %lld.%09ld in process %d\n", static_cast<long long>(now.tv_sec), now.tv_nsec,
              static_cast<int>(getpid()));
  std::fflush(stdout);
}

[[gnu::noinline]] void commit(const std::string& fault) {
  // Until the other stages have done what they can do and wait for this one: the launcher ends them right after a kill.
  sleep(2);
  announce();
  if (fault == "stage_kill") raise(SIGKILL);
  if (fault == "stage_stop") raise(SIGSTOP);
  while (fault == "stage_sleep") sleep(1);
}

int run(const std::string& fault, int victim, const std::string& backend, int seconds) {
  const auto world = tessera::init(tessera::WorldOptions().backend(backend).timeout(std::chrono::seconds(seconds)));
  torch::nn::ModuleList layers;
  for (int i = 0; i < world.size(); ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
  struct Model : torch::nn::Module {};
  auto model = std::make_shared<Model>();
  model->register_module("layers", layers);
  const auto pipe = tessera::pipeline(model, world);
  // Each micro-batch has its number as its values.
  const at::Tensor batch = at::arange(kMicroBatches, at::kFloat).view({kMicroBatches, 1}).expand({-1, kWidth});
  bool is_faulty = false;
  const auto loss = [&](const at::Tensor& micro) {
    if (is_faulty && micro[0][0].item<float>() == kFaultyMicroBatch) commit(fault);
    at::Tensor x = micro;
    for (const auto& layer : *layers) x = layer->as<torch::nn::Linear>()->forward(x);
    return x.square().mean();
  };
  pipe.step(batch, kMicroBatches, loss);
  is_faulty = world.rank() == victim;
  pipe.step(batch, kMicroBatches, loss);
  std::printf("rank %d is done\n", world.rank());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: fault_stage FAULT VICTIM BACKEND TIMEOUT_SECONDS\n");
    return 2;
  }
  at::set_num_threads(1);
  try {
    return run(argv[1], std::stoi(argv[2]), argv[3], std::stoi(argv[4]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera: %s\n", error.what());
    return tessera::exit_code(error);
  }
}
