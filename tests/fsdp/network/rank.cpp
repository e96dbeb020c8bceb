// A rank of a job on two nodes that trains a model, sharded within each node or over both, and tells how many bytes its
// node has sent over the link meanwhile: `hybrid` or `full`.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

namespace {

constexpr int kNumSteps = 5;

std::uint64_t sent_bytes() {
  std::ifstream file("/sys/class/net/link0/statistics/tx_bytes");
  std::uint64_t bytes = 0;
  file >> bytes;
  return bytes;
}

tessera::ShardedModel shard(const torch::nn::Sequential& model, const tessera::World& world, bool hybrid) {
  const auto options = tessera::FsdpOptions().min_num_params(0);
  if (!hybrid) return tessera::fully_shard(model, world, options);
  const int width = world.local_size();
  const auto shards = world.comm().split_by([width](int rank) { return rank / width; }, "shards");
  const auto replicas = world.comm().split_by([width](int rank) { return rank % width; }, "replicas");
  return tessera::fully_shard(model.ptr(), shards, replicas, options);
}

void train(bool hybrid) {
  const tessera::World world = tessera::init();
  torch::nn::Sequential model;
  for (int layer = 0; layer < 4; ++layer) model->push_back(torch::nn::Linear(512, 512));
  const tessera::ShardedModel sharded = shard(model, world, hybrid);
  torch::optim::SGD optimizer(sharded.parameters(), 0.01);
  const auto step = [&] {
    optimizer.zero_grad();
    model->forward(torch::full({4, 512}, 0.1 * (world.rank() + 1))).square().mean().backward();
    optimizer.step();
  };
  step();  // connects the groups
  world.comm().barrier();
  const auto before = sent_bytes();
  for (int i = 0; i < kNumSteps; ++i) step();
  world.comm().barrier();
  const auto sent = sent_bytes() - before;
  if (world.local_rank() == 0) {
    std::printf("sent %llu of %llu\n", static_cast<unsigned long long>(sent / kNumSteps),
                static_cast<unsigned long long>(sharded.statistics().full_bytes));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(argc > 1 && std::string(argv[1]) == "hybrid");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
}
