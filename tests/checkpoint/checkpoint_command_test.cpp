#include <gtest/gtest.h>

#include "checkpoint/step_writer.h"
#include "launch/tessera_command.h"
#include "support/error_message.h"
#include "support/flip_a_bit.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

/// A small GPT whose layers are alike, but for the last.
StepWriter gpt_step() {
  StepWriter writer;
  writer.step = 7;
  writer.num_ranks = 2;
  const std::string file = "model.safetensors";
  const auto halves = [](std::int64_t count) {
    return std::vector<WrittenSlice>{{0, Slice::box({count}, {0}, {count / 2})},
                                     {1, Slice::box({count}, {count / 2}, {count - count / 2})}};
  };
  for (int layer = 0; layer < 12; ++layer) {
    const std::string block = "transformer.h." + std::to_string(layer);
    writer.tensors.push_back({"model", block + ".mlp.weight", StoredDtype::kF32, {8, 32}, file, halves(256)});
    writer.tensors.push_back({"model", block + ".ln.bias", StoredDtype::kF32, {8}, file, halves(8)});
  }
  writer.tensors.push_back({"model", "transformer.h.12.ln.bias", StoredDtype::kF32, {9}, file, halves(9)});
  writer.tensors.push_back({"model",
                            "transformer.w\x1b"
                            "e",
                            StoredDtype::kI64,
                            {},
                            file,
                            {{1, Slice::whole({})}}});
  return writer;
}

class CheckpointCommand : public ::testing::Test {
 protected:
  CheckpointCommand() : path_(sample_step(20).write(folder_.path())) {}

  TemporaryFolder folder_;
  std::filesystem::path path_;
};

TEST_F(CheckpointCommand, ShowsWhatAStepHolds) {
  const TesseraCommand command({"inspect", "checkpoint", path_.string()});
  EXPECT_EQ(command.exit_code(), 0);
  EXPECT_EQ(command.output(), R"(step 20, saved by 4 ranks: 8 tensors, 231 kB in 5 files
health: manifest, lengths and headers are intact; `tessera checkpoint verify` reads the rest

model                                      102 kB        4 tensors
  h.0.attn                                 23.0 kB
    bias                   F32 []          4 B           rank 0
    weight                 BF16 [90, 128]  23.0 kB       ranks 0-3, a grid of 2 x 2
  lm_head.weight           F32 [64, 160]   41.0 kB       ranks 0-2, split in dim 1
  wte.weight               F32 [96, 100]   38.4 kB       ranks 0-2, an extent each
optimizer                                  123 kB        2 tensors
  h.0.attn.weight/exp_avg  F32 [90, 128]   46.1 kB       rank 0
  wte.weight/exp_avg       F64 [96, 100]   76.8 kB       ranks 0-2, 3 slices
training                                   5.06 kB       2 tensors
  nothing                  I64 [0, 7]      0 B           -
  random/rank/0/cpu        U8 [5056]       5.06 kB       rank 0

values
  sampler/epoch  1
  scaler/scale   65536.0
  schedule/name  "cosine"
  warm           true

files
  model-00001-of-00002.safetensors  61.6 kB   2 tensors
  model-00002-of-00002.safetensors  41.1 kB   2 tensors
  optimizer.safetensors             123 kB    2 tensors
  training.safetensors              5.20 kB   2 tensors
  model.safetensors.index.json      253 B     no tensors
)");
}

TEST_F(CheckpointCommand, ShowsLayersThatAreAlikeOnce) {
  const auto path = gpt_step().write(folder_.path());
  EXPECT_EQ(TesseraCommand({"inspect", "checkpoint", path.string()}).output(),
            R"(step 7, saved by 2 ranks: 26 tensors, 14.9 kB in 1 file
health: manifest, lengths and headers are intact; `tessera checkpoint verify` reads the rest

model                            12.7 kB       26 tensors
  transformer                    12.7 kB
    h                            12.7 kB
      0-11                       12 x 1.06 kB
        ln.bias     F32 [8]      32 B          ranks 0-1, an extent each
        mlp.weight  F32 [8, 32]  1.02 kB       ranks 0-1, an extent each
      12.ln.bias    F32 [9]      36 B          ranks 0-1, an extent each
    w\x1be          I64 []       8 B           rank 1

files
  model.safetensors  14.9 kB   26 tensors
)");
  const std::string all = TesseraCommand({"inspect", "checkpoint", path.string(), "--all"}).output();
  expect_parts(all, {"\n      0 ", "\n      11 "});
  EXPECT_LT(all.find("\n      2 "), all.find("\n      10 "));
}

TEST_F(CheckpointCommand, ShowsWhatEachRankSaved) {
  const std::string output = TesseraCommand({"inspect", "checkpoint", path_.string(), "--slices"}).output();
  expect_parts(output, {"    rank 1: elements 3333:6666 of [96, 100] ", "13.3 kB       4 blocks\n",
                        "      rank 3: [45:90, 64:128] of [90, 128] "});
}

TEST_F(CheckpointCommand, ShowsAllStepsOfAFolder) {
  sample_step(40).write(folder_.path());
  std::filesystem::remove(folder_.path() / "step-00000040" / "training.safetensors");
  const TesseraCommand command({"inspect", "checkpoint", folder_.path().string()});
  EXPECT_EQ(command.exit_code(), 0);
  EXPECT_EQ(command.output(),
            "step 20  231 kB    4 ranks, 8 tensors; manifest, lengths and headers are intact\n"
            "step 40  DAMAGED   " +
                folder_.file("step-00000040/training.safetensors") + " cannot be read: No such file or directory\n");
  EXPECT_EQ(TesseraCommand({"inspect", "checkpoint", folder_.file("step-00000040")}).exit_code(), 4);
}

TEST_F(CheckpointCommand, VerifiesAStepAndAllSteps) {
  sample_step(40).write(folder_.path());
  const TesseraCommand one({"checkpoint", "verify", path_.string() + "/"});
  EXPECT_EQ(one.exit_code(), 0);
  EXPECT_EQ(one.output(), "step 20: intact, 231 kB in 5 files\n");
  const TesseraCommand all({"checkpoint", "verify", folder_.path().string()});
  EXPECT_EQ(all.exit_code(), 0);
  EXPECT_EQ(all.output(),
            "step 20: intact, 231 kB in 5 files\nstep 40: intact, 231 kB in 5 files\n"
            "2 steps: 2 intact, 0 damaged\n");
}

TEST_F(CheckpointCommand, NamesEveryDamageAndExitsWithOne) {
  sample_step(40).write(folder_.path());
  flip_a_bit(path_ / "optimizer.safetensors", 20'000);
  flip_a_bit(path_ / "model.safetensors.index.json", 3);
  const TesseraCommand all({"checkpoint", "verify", folder_.path().string()});
  EXPECT_EQ(all.exit_code(), 1);
  expect_parts(all.output(),
               {"step 20: DAMAGED\n  " + folder_.file("step-00000020/model.safetensors.index.json") + " is damaged",
                "\n  " + folder_.file("step-00000020/optimizer.safetensors") + ": tensor \"wte.weight/exp_avg\"",
                "step 40: intact", "2 steps: 1 intact, 1 damaged\n"});
  std::filesystem::remove(path_ / "manifest.json");
  EXPECT_EQ(TesseraCommand({"checkpoint", "verify", path_.string()}).exit_code(), 1);
}

TEST_F(CheckpointCommand, SaysWhatItCannotDo) {
  EXPECT_EQ(TesseraCommand({"checkpoint"}).exit_code(), 2);
  EXPECT_EQ(TesseraCommand({"checkpoint", "verify"}).exit_code(), 2);
  const TesseraCommand missing({"checkpoint", "verify", folder_.file("none")});
  EXPECT_EQ(missing.exit_code(), 2);
  expect_parts(missing.output(), {"none is no folder"});
  std::filesystem::create_directory(folder_.path() / "empty");
  const TesseraCommand empty({"inspect", "checkpoint", folder_.file("empty")});
  EXPECT_EQ(empty.exit_code(), 2);
  expect_parts(empty.output(), {"empty holds no checkpoint", "step-00000020"});
}

}  // namespace
}  // namespace tessera::testing
