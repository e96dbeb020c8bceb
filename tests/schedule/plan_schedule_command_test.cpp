#include <gtest/gtest.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launch/process.h"
#include "launch/tessera_command.h"
#include "support/error_message.h"
#include "support/screen.h"

namespace tessera::testing {
namespace {

std::vector<std::string> words(const std::string& kind, int ranks, int micro_batches,
                               const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {
      "plan", "schedule", "--ranks", std::to_string(ranks), "--micro-batches", std::to_string(micro_batches)};
  if (!kind.empty()) all.insert(all.end(), {"--kind", kind});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(PlanScheduleCommand, DrawsASchedule) {
  const TesseraCommand command(words("zb-h1", 3, 4));
  EXPECT_EQ(command.exit_code(), 0);
  EXPECT_EQ(command.output(),
            "zb-h1 on 3 ranks: 4 micro-batches\n"
            "\n"
            "rank 0  F0 F1 F2 ..... B0 W0 F3 B1 W1 B2 W2 B3 W3\n"
            "rank 1  .. F0 F1 .. B0 F2 B1 W0 F3 B2 W1 B3 W2 W3\n"
            "rank 2  ..... F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3\n"
            "F forward, B backward for the input, W backward for the weights; F0 of micro-batch 0\n"
            "\n"
            "rank  begins  ends  works  idles  share   activations  until inputs\n"
            "0     0       14    12     2      16.7 %  3            3\n"
            "1     1       14    12     1      8.3 %   3            2\n"
            "2     2       14    12     0      0.0 %   3            1\n"
            "activations: the most that a rank holds at once, in micro-batches through all of its layers;\n"
            "until inputs: without those that only the weights' gradients still need\n"
            "makespan 14; idle 16.7 % at most; by the formula (p - 1) / (3 m): 16.7 %\n");
}

TEST(PlanScheduleCommand, DrawsWhatFitsIntoTheColumns) {
  expect_parts(TesseraCommand(words("1f1b", 2, 2, {"--columns", "40"})).output(),
               {"rank 0  F0 F1 ..... B0--- .. B1---\nrank 1  .. F0 B0--- F1 B1--- .....\n"});
  expect_parts(TesseraCommand(words("1f1b", 2, 2, {"--columns", "26"})).output(),
               {"rank 0  F0F1....B0--..B1--\nrank 1  ..F0B0--F1B1--....\n"});
  expect_parts(TesseraCommand(words("1f1b", 2, 2, {"--columns", "20"})).output(),
               {"rank 0  FF..BB.BB\nrank 1  .FBBFBB..\n", "a column is 1 of time"});
  const std::string narrow = TesseraCommand(words("interleaved", 8, 64, {"--columns", "60"})).output();
  for (const std::string& line : seen(narrow)) {
    if (line.starts_with("rank 1 ")) EXPECT_LE(line.size(), 60U) << line;
  }
}

TEST(PlanScheduleCommand, TellsChunksApart) {
  expect_parts(
      TesseraCommand(words("zb-v", 2, 1)).output(),
      {"rank 0  F0 ..... f0 b0 w0 ..... B0 W0\nrank 1  .. F0 f0 ..... b0 w0 B0 W0 ..\n", "small: the second chunk"});
  expect_parts(TesseraCommand(words("interleaved", 2, 2, {"--chunks", "3", "--columns", "200"})).output(),
               {"rank 0  F0.0 F1.0 F0.1 F1.1 F0.2 F1.2 ", "F0.1 in the second chunk"});
}

TEST(PlanScheduleCommand, ComparesAllKinds) {
  const TesseraCommand command(words("", 4, 8));
  EXPECT_EQ(command.exit_code(), 0);
  EXPECT_EQ(command.output(),
            "kind         chunks  makespan  idle     by the formula           activations\n"
            "sequential   1       96        300.0 %  p - 1: 300.0 %           8\n"
            "round_robin  1       96        300.0 %  p - 1: 300.0 %           1\n"
            "gpipe        1       33        37.5 %   (p - 1) / m: 37.5 %      8\n"
            "1f1b         1       33        37.5 %   (p - 1) / m: 37.5 %      4\n"
            "interleaved  2       28.5      18.8 %   (p - 1) / (v m): 18.8 %  5.5\n"
            "zb-h1        1       27        12.5 %   (p - 1) / (3 m): 12.5 %  4\n"
            "zb-v         2       25.5      0.0 %    0: 0.0 %                 4\n"
            "idle: the largest idle time of a rank within its span, relative to its work\n"
            "activations: the most that a rank holds at once, in micro-batches through all of its layers\n");
}

TEST(PlanScheduleCommand, TakesCosts) {
  expect_parts(
      TesseraCommand(words("1f1b", 2, 1, {"--forward", "2,5", "--backward", "3,7", "--transfer", "0.5"})).output(),
      {"makespan 20;", "none for these numbers"});
}

TEST(PlanScheduleCommand, ListsOperations) {
  expect_parts(TesseraCommand(words("1f1b", 2, 1, {"--list"})).output(),
               {"rank 1  from  to  operation\n"
                "0       0     1   RecvActivation of micro-batch 0, stage 1, from rank 0\n"
                "1       1     2   Forward of micro-batch 0, stage 1\n"
                "2       2     4   Backward of micro-batch 0, stage 1\n"
                "3       4     4   SendGradient of micro-batch 0, stage 1, to rank 0\n"});
}

TEST(PlanScheduleCommand, WritesAPictureAndJson) {
  const TemporaryFolder folder;
  const TesseraCommand command(
      words("zb-v", 3, 6, {"--svg", folder.file("picture.svg"), "--json", folder.file("schedule.json")}));
  EXPECT_EQ(command.exit_code(), 0) << command.output();
  const std::string picture = text_of_file(folder.file("picture.svg"));
  expect_parts(picture, {"<svg xmlns=", ">zb-v on 3 ranks: 6 micro-batches, 2 chunks a rank<", ">rank 2<", "</svg>\n"});
  const auto json = nlohmann::json::parse(text_of_file(folder.file("schedule.json")));
  EXPECT_EQ(json["format"], "tessera schedule 1");
  EXPECT_EQ(json["rank_of_stage"], nlohmann::json({0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(json["idle_formula"]["value"], 0);
  ASSERT_EQ(json["ranks"].size(), 3U);
  EXPECT_EQ(json["ranks"][0]["operations"][1],
            nlohmann::json::parse(R"({"kind": "SendActivation", "micro_batch": 0, "stage": 0, "peer": 1,
                                      "start": 0.5, "end": 0.5})"));
  EXPECT_EQ(json["ranks"][2]["peak_activations_until_weight"], 6);
}

TEST(PlanScheduleCommand, UsesTheColoursAndTheWidthOfATerminal) {
  Screen screen(26);
  launch::ProcessSpec spec;
  spec.program = TESSERA_CLI;
  spec.arguments = words("1f1b", 2, 2);
  spec.arguments.insert(spec.arguments.begin(), "tessera");
  auto environment = launch::current_environment();
  environment["TERM"] = "xterm";
  environment.erase("NO_COLOR");
  spec.environment = launch::entries_of(environment);
  spec.output = screen.descriptor();
  spec.error = screen.descriptor();
  int status = 0;
  waitpid(launch::start_process(spec).process, &status, 0);
  EXPECT_EQ(status, 0);
  expect_parts(screen.bytes(), {"rank 0  \033[0m\033[97;44mF0F1\033[0m\033[2m....\033[0m\033[30;42mB0--"});
}

TEST(PlanScheduleCommand, NamesAllFaultsAtOnce) {
  const TesseraCommand command(words("zigzag", 0, -3, {"--forward", "-1", "--transfer", "-2"}));
  EXPECT_EQ(command.exit_code(), 2);
  EXPECT_EQ(
      command.output(),
      "tessera: this pipeline cannot be planned:\n"
      "  - there is no schedule zigzag: use one of sequential, round_robin, gpipe, 1f1b, interleaved, zb-h1, zb-v\n"
      "  - 0 ranks: use 1 to 1024\n"
      "  - -3 micro-batches: use 1 or more\n"
      "  - -1.000000 for the forward: use 0 to 1e9\n"
      "  - -2.000000 for a transfer: use 0 to 1e9\n");
  const TesseraCommand chunks(words("1f1b", 2, 2, {"--chunks", "2"}));
  EXPECT_EQ(chunks.exit_code(), 2);
  expect_parts(chunks.output(), {"2 chunks a rank: 1f1b has 1"});
  const TesseraCommand costs(words("1f1b", 2, 2, {"--forward", "1,2,3", "--weight", "-1"}));
  expect_parts(costs.output(), {"3 costs of the forward for 2 stages", "-1.000000 for the backward of weights"});
  const TesseraCommand all(words("", 2, 2, {"--forward", "1,2", "--list"}));
  EXPECT_EQ(all.exit_code(), 2);
  expect_parts(all.output(), {"--list, --svg and --json are of one schedule", "costs of each stage"});
  const TesseraCommand nothing(words("", 2, 2, {"--forward", "0", "--backward", "0", "--weight", "0"}));
  expect_parts(nothing.output(), {"no operation takes time"});
  EXPECT_EQ(TesseraCommand({"plan"}).exit_code(), 2);
  EXPECT_EQ(TesseraCommand({"plan", "schedule", "--kind", "1f1b"}).exit_code(), 2);
}

TEST(PlanScheduleCommand, SaysThatAFileCannotBeWritten) {
  const TesseraCommand command(words("1f1b", 2, 2, {"--svg", "/nowhere/at/all.svg"}));
  EXPECT_EQ(command.exit_code(), 4);
  expect_parts(command.output(), {"/nowhere/at"});
}

}  // namespace
}  // namespace tessera::testing
