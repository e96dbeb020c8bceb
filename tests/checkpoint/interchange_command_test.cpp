#include <gtest/gtest.h>

#include "checkpoint/step_writer.h"
#include "launch/tessera_command.h"
#include "support/error_message.h"
#include "support/flip_a_bit.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

class InterchangeCommand : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  std::string saved_ = folder_.file("saved");
  std::string step_ = sample_step(20).write(saved_).string();
  std::string out_ = folder_.file("out");
};

TEST_F(InterchangeCommand, ExportsAndImports) {
  const TesseraCommand exported({"checkpoint", "export", step_, out_, "--rename", "=net."});
  EXPECT_EQ(exported.exit_code(), 0);
  EXPECT_EQ(exported.output(), "step 20: 4 tensors, 102 kB, in model.safetensors, to " + out_ + "\n");
  const std::string imported = folder_.file("imported");
  const TesseraCommand back(
      {"checkpoint", "import", out_, imported, "--step", "3", "--rename", "net.=", "--max-file-bytes", "50kB"});
  EXPECT_EQ(back.exit_code(), 0);
  EXPECT_EQ(back.output(), out_ + ": 4 tensors, 102 kB, in 4 files, to " + imported + "/step-00000003\n");
  const TesseraCommand verified({"checkpoint", "verify", imported});
  EXPECT_EQ(verified.exit_code(), 0);
  EXPECT_EQ(verified.output(), "step 3: intact, 103 kB in 4 files\n");
}

TEST_F(InterchangeCommand, NamesDamageAndExitsAsForADisk) {
  flip_a_bit(step_ + "/model-00001-of-00002.safetensors", 20'000);
  const TesseraCommand command({"checkpoint", "export", step_, out_});
  EXPECT_EQ(command.exit_code(), 4);
  expect_parts(command.output(), {"tessera: ", "model-00001-of-00002.safetensors", "damaged"});
}

TEST_F(InterchangeCommand, SaysWhatItCannotDo) {
  EXPECT_EQ(TesseraCommand({"checkpoint", "export", step_}).exit_code(), 2);
  const TesseraCommand no_rename({"checkpoint", "export", step_, out_, "--rename", "transformer."});
  EXPECT_EQ(no_rename.exit_code(), 2);
  expect_parts(no_rename.output(), {"--rename expects OLD=NEW", "\"transformer.\""});
  sample_step(40).write(saved_);
  const TesseraCommand several({"checkpoint", "export", saved_, out_});
  EXPECT_EQ(several.exit_code(), 2);
  expect_parts(several.output(), {"saved holds 2 steps; name one of them", "step-00000040"});
  const TesseraCommand nothing({"checkpoint", "import", saved_, folder_.file("imported")});
  EXPECT_EQ(nothing.exit_code(), 2);
  expect_parts(nothing.output(), {"holds neither model.safetensors nor model.safetensors.index.json"});
}

}  // namespace
}  // namespace tessera::testing
