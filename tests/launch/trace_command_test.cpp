#include <tessera/observe/tracer.h>

#include <gtest/gtest.h>

#include "support/error_message.h"
#include "tessera_command.h"

namespace tessera::testing {
namespace {

std::string write_trace(const TemporaryFolder& folder, int rank) {
  const std::string path = folder.file("t.rank" + std::to_string(rank) + ".pftrace");
  observe::Tracer tracer(path, {.rank = rank, .num_ranks = 2});
  tracer.add_clock({rank * 1'500, 200});
  tracer.write_pending();
  return path;
}

TEST(TraceCommand, MergesTheFilesOfTheRanks) {
  const TemporaryFolder folder;
  const std::string first = write_trace(folder, 0);
  const std::string second = write_trace(folder, 1);
  const TesseraCommand command({"trace", "merge", folder.file("merged"), second, first});
  EXPECT_EQ(command.exit_code(), 0) << command.output();
  expect_parts(command.output(), {"rank 0: 4 packets, clock moved by +0.0 us (+- 0.2)\n",
                                  "rank 1: 4 packets, clock moved by +1.5 us (+- 0.2)\n", "ui.perfetto.dev"});
  EXPECT_GE(text_of_file(folder.file("merged")).size(), text_of_file(first).size() + text_of_file(second).size());
}

TEST(TraceCommand, SaysWhatItCannotMerge) {
  const TemporaryFolder folder;
  const TesseraCommand missing({"trace", "merge", folder.file("merged"), folder.file("none")});
  EXPECT_EQ(missing.exit_code(), 4);
  expect_parts(missing.output(), {"none", "No such file"});
  folder.write("text", "no trace at all", 0600);
  const TesseraCommand other({"trace", "merge", folder.file("merged"), folder.file("text")});
  EXPECT_EQ(other.exit_code(), 2);
  const TesseraCommand nothing({"trace", "merge", folder.file("merged")});
  EXPECT_EQ(nothing.exit_code(), 2);
}

}  // namespace
}  // namespace tessera::testing
