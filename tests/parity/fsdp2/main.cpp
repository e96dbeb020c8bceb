// Trains a sharded GPT-2 from the files in a folder on two ranks over Gloo, and stores the losses beside them for
// reference.py to compare. Started by itself it starts the ranks, which are copies of it.
#include <tessera/checkpoint/safetensors.h>
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/launch/local_job.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>

#include "parity/fsdp2/replay.h"

namespace {

using namespace tessera;

int start_ranks(const std::string& folder) {
  launch::LocalJob job;
  job.num_ranks = 2;
  job.command = {launch::own_path(), folder};
  job.timeout = std::chrono::seconds(600);
  int code = 0;
  for (const launch::RankResult& rank : launch::run(job)) {
    std::printf("%s", rank.output.c_str());
    if (rank.exit_code != 0) code = rank.exit_code;
  }
  return code;
}

void run_rank(const std::filesystem::path& folder) {
  const World world = init(WorldOptions().backend("gloo"));
  const SafetensorsFile file(folder / "tokens.safetensors");
  const at::Tensor losses =
      testing::replay_sharded_gpt2(folder, std::stoll(file.layout().metadata().at("num_steps")), world.comm());
  if (world.rank() == 0) save_safetensors(folder / "tessera.safetensors", {{"losses", losses}});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER (see tests/parity/fsdp2/run)\n", argv[0]);
    return 2;
  }
  try {
    if (std::getenv("WORLD_SIZE") == nullptr) return start_ranks(argv[1]);
    run_rank(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return exit_code(error);
  }
  return 0;
}
