// One rank of the contest in sharded training of a GPT (see gpt/contest.h): alone, ddp, fsdp.
#include <memory>

#include "fsdp/trainer.h"

int main(int argc, char** argv) {
  return bench::answer_lines(argc, argv, [](const auto& kind, const auto& world, const auto& shape) {
    return std::make_unique<bench::ShardedTrainer>(kind, world, shape);
  });
}
