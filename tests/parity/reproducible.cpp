#include "parity/reproducible.h"

#include <tessera/data_parallel/distribute.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/clip_grad_norm.h>

#include <torch/optim/adamw.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "parity/models.h"

namespace tessera::testing {

Sleeper::Sleeper(const Disturbance& disturbance, int rank)
    : share_(disturbance.delays), random_(disturbance.seed + 97U * static_cast<unsigned>(rank)) {}

void Sleeper::maybe_sleep() {
  if (std::uniform_real_distribution<>(0, 1)(random_) >= share_) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution<>(0, 50)(random_)));
}

std::unique_ptr<torch::optim::Optimizer> make_adamw(const std::vector<at::Tensor>& parameters, bool fused) {
  const auto options = torch::optim::AdamWOptions(0.01);
  if (fused) return std::make_unique<optim::AdamW>(parameters, options);
  return std::make_unique<torch::optim::AdamW>(parameters, options);
}

std::uint64_t hash_of(const std::vector<at::Tensor>& tensors) {
  std::uint64_t hash = 14695981039346656037U;
  for (const at::Tensor& tensor : tensors) {
    const auto values = tensor.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(values.const_data_ptr());
    for (std::size_t i = 0; i < values.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211U;
  }
  return hash;
}

std::uint64_t train_reproducibly(const Communicator& comm, int num_steps, const Disturbance& disturbance) {
  const auto model = make_parity_model(disturbance.model, torch::kFloat);
  const auto ddp = distribute(model, comm, DdpOptions().reproducible(true).micro_batches(kMicroBatches));
  const auto optimizer = make_adamw(model->parameters(), disturbance.fused);
  Sleeper sleeper(disturbance, comm.rank());
  const int own = kMicroBatches / comm.size();
  std::vector<int> order(static_cast<std::size_t>(own));
  std::iota(order.begin(), order.end(), 0);
  for (int step = 0; step < num_steps; ++step) {
    if (disturbance.shuffle) std::shuffle(order.begin(), order.end(), sleeper.random());
    for (const int micro : order) {
      const int part = comm.rank() * own + micro;
      if (disturbance.shuffle) ddp.set_micro_batch(micro);
      sleeper.maybe_sleep();
      const auto loss = model->loss(model->forward(model->input(step, part)), step, part);
      sleeper.maybe_sleep();
      loss.backward();
    }
    clip_grad_norm(ddp.parameters(), 0.5);
    sleeper.maybe_sleep();
    optimizer->step();
    optimizer->zero_grad();
  }
  return hash_of(model->parameters());
}

std::uint64_t train_otherwise(const Communicator& comm, int num_steps) {
  const auto model = make_parity_model("gpt", torch::kFloat);
  const auto ddp = distribute(model, comm);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  const int own = kMicroBatches / comm.size();
  for (int step = 0; step < num_steps; ++step) {
    for (int micro = 0; micro < own; ++micro) {
      std::unique_ptr<NoSync> guard(micro + 1 < own ? new NoSync(ddp) : nullptr);
      const int part = comm.rank() * own + micro;
      (model->loss(model->forward(model->input(step, part)), step, part) / own).backward();
    }
    clip_grad_norm(ddp.parameters(), 0.5);
    optimizer.step();
    optimizer.zero_grad();
  }
  return hash_of(model->parameters());
}

}  // namespace tessera::testing
