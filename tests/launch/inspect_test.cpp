#include <tessera/flight/hang_report.h>

#include <gtest/gtest.h>

#include "support/error_message.h"
#include "tessera_command.h"

namespace tessera::testing {
namespace {

flight::HangReport report() {
  flight::RankStatus dead;
  dead.rank = 1;
  dead.condition = flight::RankCondition::kDead;
  dead.detail = "ended by SIGKILL";
  return flight::analyse("rank 1 died", true, 5'000'000'000, 2, {dead});
}

TEST(Inspect, ShowsAHangReportAsItWasPrinted) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("hang.json")) << flight::to_json(report());
  const TesseraCommand command({"inspect", "hang", folder.file("hang.json")});
  EXPECT_EQ(command.exit_code(), 0);
  EXPECT_EQ(command.output(), flight::to_text(report()));
}

TEST(Inspect, SaysWhatItCannotShow) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("other.json")) << "{\"format\": \"something else\"}";
  std::ofstream(folder.file("cut.json")) << flight::to_json(report()).substr(0, 40);
  const TesseraCommand missing({"inspect", "hang", folder.file("none")});
  const TesseraCommand a_folder({"inspect", "hang", folder.path()});
  const TesseraCommand other({"inspect", "hang", folder.file("other.json")});
  const TesseraCommand cut({"inspect", "hang", folder.file("cut.json")});
  for (const TesseraCommand* command : {&missing, &a_folder, &other, &cut}) {
    EXPECT_EQ(command->exit_code(), 2) << command->output();
    EXPECT_NE(command->output().find(folder.path()), std::string::npos) << command->output();
  }
  expect_parts(missing.output(), {"No such file", "hang_node_N.json"});
  expect_parts(other.output(), {"not a hang report"});
  expect_parts(cut.output(), {"not a hang report"});
  EXPECT_EQ(TesseraCommand({"inspect"}).exit_code(), 2);
  EXPECT_EQ(TesseraCommand({"inspect", "hang"}).exit_code(), 2);
}

}  // namespace
}  // namespace tessera::testing
