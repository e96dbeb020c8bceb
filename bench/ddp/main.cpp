// One rank of the contest in training a GPT: bench_ddp BACKEND. It makes what a line of its input asks for:
//   KIND PRECISION STEPS      KIND: alone, blocking, ours; PRECISION: fp32, bf16
// and answers with a line of JSON. Between lines it sleeps, so that others can be measured. Each kind and precision
// trains a model of its own, made when it is first asked for. All ranks get the same lines.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/autocast.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "gpt/gpt.h"

namespace bench {
namespace {

/// What one writes without data parallelism: all gradients into one tensor, an all-reduce, and back.
class BlockingAverage {
 public:
  BlockingAverage(const std::vector<at::Tensor>& parameters, const tessera::Communicator& comm)
      : parameters_(parameters), comm_(comm) {
    std::int64_t count = 0;
    for (const at::Tensor& parameter : parameters) count += parameter.numel();
    flat_ = comm.empty({count});
    std::int64_t begin = 0;
    for (const at::Tensor& parameter : parameters) {
      views_.push_back(flat_.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
      begin += parameter.numel();
    }
  }

  void run() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < views_.size(); ++i) views_[i].copy_(parameters_[i].grad());
    comm_.all_reduce(flat_, tessera::ReduceOp::kAvg);
    for (std::size_t i = 0; i < views_.size(); ++i) parameters_[i].mutable_grad().copy_(views_[i]);
  }

 private:
  std::vector<at::Tensor> parameters_;
  tessera::Communicator comm_;
  at::Tensor flat_;
  std::vector<at::Tensor> views_;
};

class Contestant {
 public:
  Contestant(const std::string& kind, const std::string& precision, const tessera::World& world)
      : precision_(precision == "bf16" ? at::kBFloat16 : at::kFloat),
        model_(make_gpt()),
        optimizer_(model_->parameters(), tessera::optim::AdamWOptions(3e-4)) {
    if (kind == "ours") {
      ours_.emplace(tessera::distribute(model_, world));
    } else if (kind == "blocking") {
      blocking_.emplace(model_->parameters(), world.comm());
    } else if (kind != "alone") {
      throw tessera::ConfigError("expected alone, blocking or ours, found \"" + kind + "\"");
    }
  }

  double step(const Batch& batch) {
    optimizer_.zero_grad();
    at::Tensor loss;
    {
      const tessera::Autocast autocast(precision_);
      loss = loss_of(model_, batch);
    }
    loss.backward();
    if (blocking_) blocking_->run();
    optimizer_.step();
    return loss.item<double>();
  }

  double sum_of_weights() const {
    const at::NoGradGuard no_grad;
    double sum = 0;
    for (const at::Tensor& parameter : model_->parameters()) sum += parameter.sum(at::kDouble).item<double>();
    return sum;
  }

 private:
  at::ScalarType precision_;
  Gpt model_;
  tessera::optim::AdamW optimizer_;
  std::optional<tessera::DistributedModel> ours_;
  std::optional<BlockingAverage> blocking_;
};

void measure(Contestant& contestant, const std::string& variant, int num_steps, const Batch& batch,
             const tessera::Communicator& comm) {
  comm.barrier();
  const auto began = std::chrono::steady_clock::now();
  double loss = 0;
  for (int i = 0; i < num_steps; ++i) loss = contestant.step(batch);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  if (!std::isfinite(loss)) throw tessera::InternalError(variant + ": the loss is " + std::to_string(loss));
  std::printf("{\"variant\": \"%s\", \"seconds\": %.6f, \"loss\": %.9g, \"weights\": %.17g}\n", variant.c_str(),
              seconds.count(), loss, contestant.sum_of_weights());
  std::fflush(stdout);
}

void run(const std::string& backend) {
  at::set_num_threads(1);
  const tessera::World world = tessera::init(tessera::WorldOptions().backend(backend));
  const Batch batch = make_batch(world.rank());
  std::map<std::string, std::unique_ptr<Contestant>> contestants;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string kind;
    std::string precision;
    int num_steps = 0;
    if (!(words >> kind >> precision >> num_steps)) {
      throw tessera::ConfigError("expected KIND PRECISION STEPS, found \"" + line + "\"");
    }
    const std::string variant = kind + " " + precision;
    auto& contestant = contestants[variant];
    if (!contestant) contestant = std::make_unique<Contestant>(kind, precision, world);
    measure(*contestant, variant, num_steps, batch, world.comm());
  }
  world.comm().barrier();
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bench_ddp BACKEND\n");
    return 2;
  }
  try {
    bench::run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
