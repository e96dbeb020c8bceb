// docs/reference/invalid_layouts.md, row by row.
#include <tessera/core/error.h>
#include <tessera/train/parallelize_options.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "support/error_message.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

struct Row {
  int num_ranks = 0;
  std::vector<std::string> settings;
  std::string words;
};

std::vector<std::string> between_backquotes(const std::string& text) {
  std::vector<std::string> found;
  for (std::size_t begin = text.find('`'); begin != std::string::npos;) {
    const std::size_t end = text.find('`', begin + 1);
    if (end == std::string::npos) break;
    found.push_back(text.substr(begin + 1, end - begin - 1));
    begin = text.find('`', end + 1);
  }
  return found;
}

std::vector<Row> rows() {
  std::vector<Row> found;
  std::ifstream page(TESSERA_INVALID_LAYOUTS);
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| ") || line[2] < '0' || line[2] > '9') continue;
    Row row;
    row.num_ranks = std::stoi(line.substr(2));
    row.settings = between_backquotes(line);
    row.words = row.settings.back();
    row.settings.pop_back();
    found.push_back(std::move(row));
  }
  return found;
}

/// What is said of the options with these settings; "" if nothing is wrong.
std::string said_of(const Row& row) {
  ParallelizeOptions options;
  try {
    for (const std::string& setting : row.settings) {
      const auto equals = setting.find('=');
      ParallelizeOptions::fields().set_text(options, setting.substr(0, equals), setting.substr(equals + 1));
    }
    make_mesh(fake_world(0, row.num_ranks), options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(InvalidLayouts, EachIsRefusedWithItsFix) {
  const std::vector<Row> all = rows();
  EXPECT_GE(all.size(), 40U) << "the page must have its rows";
  for (const Row& row : all) {
    const std::string said = said_of(row);
    EXPECT_NE(said.find(row.words), std::string::npos)
        << row.settings.front() << ": \"" << row.words << "\" is missing in \"" << said << "\"";
  }
}

TEST(InvalidLayouts, AreNamedAllAtOnce) {
  const Row row{8,
                {"dp=3", "tp=2", "pp=4", "num_layers=2", "memory_strategy=extreme", "shard_ranks=2",
                 "pipeline.receive_ahead=-1", "communication_timeout=-1s"},
                ""};
  expect_parts(said_of(row), {"need 24 ranks, the world has 8", "num_layers is 2 for 4 pipeline stages",
                              "micro_batch_size is 0", "memory_strategy is extreme", "tp_plan does not say",
                              "shard_ranks is for", "receive_ahead is -1", "communication_timeout is -1000 ms"});
}

}  // namespace
}  // namespace tessera::testing
