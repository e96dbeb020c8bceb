// Disks that fail while a model trains: no wrong weight is used, and the message names folder and unit.
#include <tessera/core/error.h>
#include <tessera/offload/offload.h>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <ios>
#include <string>
#include <unistd.h>

#include "offload/training.h"
#include "support/error_message.h"
#include "support/flip_a_bit.h"
#include "support/temporary_folder.h"
#include "support/unnamed_files.h"

namespace tessera::testing {
namespace {

OffloadTraining in_files(const TemporaryFolder& folder) {
  OffloadTraining training;
  training.num_ranks = 1;
  training.num_steps = 4;
  training.fsdp.auto_wrap(wrap_by_size(100)).min_num_params(0);
  training.offload = OffloadOptions()
                         .parameters(Tier::kFile)
                         .gradients(Tier::kFile)
                         .states(Tier::kFile)
                         .folders({folder.path().string()});
  return training;
}

// What an operator of the model throws comes from LibTorch, with our message.

/// What a training says in which `harm` befalls the file behind the second step.
std::string message_after(const std::function<void(const std::string& file)>& harm) {
  const TemporaryFolder folder;
  OffloadTraining training = in_files(folder);
  int last_step = -1;
  training.after_step = [&](const World&, const Offload*, int step) {
    last_step = step;
    if (step != 1) return;
    const auto files = unnamed_files(folder.path());
    ASSERT_EQ(files.size(), 1U);
    harm("/proc/self/fd/" + std::to_string(files.front()));
  };
  const std::string message = message_of<c10::Error>([&] { train(training); });
  EXPECT_EQ(last_step, 1) << "no step is made with it";
  return message;
}

TEST(OffloadFaults, ABitThatFlipsEndsTheTraining) {
  // The first block is that of the first unit's parameters.
  const std::string message = message_after([](const std::string& file) { flip_a_bit(file, 40); });
  expect_parts(message, {"cannot be trusted", "the parameters of", "what was read is not what was written",
                         "go on from a checkpoint"});
}

TEST(OffloadFaults, ADiskThatLosesTheFileEndsTheTraining) {
  const std::string message = message_after([](const std::string& file) { ASSERT_EQ(truncate(file.c_str(), 0), 0); });
  expect_parts(message, {"its swap file", "the parameters of"});
}

/// Where the last bytes lie that are not zero: in the block that was made last.
std::streamoff last_written(const std::string& file) {
  const std::string bytes = text_of_file(file);
  return static_cast<std::streamoff>(bytes.find_last_not_of('\0'));
}

/// What the next use says behind a step that failed in the middle.
std::string use_after_a_failed_step(Tier parameters) {
  const TemporaryFolder folder;
  OffloadTraining training = in_files(folder);
  training.offload->parameters(parameters);
  training.after_step = [&](const World&, const Offload*, int step) {
    if (step != 1) return;
    // Of the last unit's optimizer state, which the step alone reads, when the units before are stepped.
    const std::string file = "/proc/self/fd/" + std::to_string(unnamed_files(folder.path()).front());
    flip_a_bit(file, last_written(file));
  };
  std::string of_next_use;
  training.on_failed_step = [&](const std::function<void()>& use) { of_next_use = message_of<c10::Error>(use); };
  const std::string of_step = message_of<StorageError>([&] { train(training); });
  expect_parts(of_step, {"cannot be trusted", "the optimizer state of"});
  EXPECT_NE(of_next_use.find(of_step), std::string::npos) << of_next_use;
  return of_next_use;
}

TEST(OffloadFaults, AStepThatFailedInTheMiddleIsNotUsed) {
  for (const Tier parameters : {Tier::kFile, Tier::kHost}) {
    const std::string of_next_use = use_after_a_failed_step(parameters);
    EXPECT_NE(of_next_use, "");
    expect_parts(of_next_use, {"failed when a part of the model was stepped", "go on from a checkpoint"});
  }
}

}  // namespace
}  // namespace tessera::testing
