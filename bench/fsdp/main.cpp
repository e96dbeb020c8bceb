// One rank of the contest in sharded training of a GPT (see gpt/contest.h): alone, ddp, fsdp. With --device in front of
// its other arguments the model is on the rank's accelerator.
#include <cstring>
#include <memory>

#include "fsdp/accelerator.h"
#include "fsdp/trainer.h"

int main(int argc, char** argv) {
  const bool on_accelerator = argc > 1 && std::strcmp(argv[1], "--device") == 0;
  if (on_accelerator) {
    bench::prepare_accelerator();
    --argc;
    ++argv;
  }
  return bench::answer_lines(argc, argv, [on_accelerator](const auto& kind, const auto& world, const auto& shape) {
    const at::Device device = on_accelerator ? bench::accelerator_of(world) : at::Device(at::kCPU);
    return std::make_unique<bench::ShardedTrainer>(kind, world, shape, device);
  });
}
