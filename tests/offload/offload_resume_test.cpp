// What lies in files is saved from there, and goes on there or elsewhere.
#include <tessera/offload/offload.h>

#include <gtest/gtest.h>

#include <string>

#include "offload/training.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

TEST(OffloadResume, GoesOnWithTheSameBitsInFilesAndInMemory) {
  OffloadTraining in_memory;
  in_memory.num_steps = 6;
  in_memory.width = 700;  // parts of several chunks
  in_memory.fsdp.auto_wrap(wrap_by_size(100)).min_num_params(0);
  const Weights expected = train(in_memory);
  const TemporaryFolder folder;
  OffloadTraining in_files = in_memory;
  in_files.offload = OffloadOptions()
                         .parameters(Tier::kFile)
                         .gradients(Tier::kFile)
                         .states(Tier::kFile)
                         .folders({folder.file("swap")});
  const auto saved_in = [&](const OffloadTraining& training, const std::string& checkpoints, int num_steps) {
    OffloadTraining part = training;
    part.checkpoints = checkpoints;
    part.num_steps = num_steps;
    return train(part);
  };
  const std::string from_files = folder.file("from_files");
  const std::string from_memory = folder.file("from_memory");
  saved_in(in_files, from_files, 3);
  saved_in(in_memory, from_memory, 3);
  expect_same_bits(saved_in(in_files, from_files, 4), saved_in(in_memory, from_memory, 4), "either goes on");
  OffloadTraining on_three_ranks = in_files;
  on_three_ranks.num_ranks = 3;
  saved_in(on_three_ranks, from_memory, 4);  // loads and saves, and trains nothing
  expect_same_bits(saved_in(in_memory, from_files, 6), expected, "from files to memory");
  expect_same_bits(saved_in(in_files, from_memory, 6), expected, "from memory to files, by way of three ranks");
}

}  // namespace
}  // namespace tessera::testing
