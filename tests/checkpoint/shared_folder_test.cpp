#include "checkpoint/shared_folder.h"

#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "observe/terminal.h"
#include "support/no_more_descriptors.h"
#include "support/screen.h"
#include "support/temporary_folder.h"

namespace tessera::checkpoints {
namespace {

/// How often the screen was given a text.
std::size_t num_drawn(testing::Screen& screen, const std::string& text) {
  const std::string bytes = screen.bytes();
  std::size_t count = 0;
  for (std::size_t at = 0; (at = bytes.find(text, at)) != std::string::npos; at += text.size()) ++count;
  return count;
}

// A line that is printed past the terminal would stand behind the progress line.
TEST(SharedFolder, TellsAboveTheProgressLineThatAFileIsNotWrittenDirectly) {
  const testing::TemporaryFolder folder;
  testing::Screen screen(80);
  const auto terminal = std::make_shared<observe::Terminal>(observe::Terminal::Kind::kOwn, screen.duplicate());
  run_threads(1, [&](const World& world) {
    SharedFolder shared(folder.path(), world.comm(), CheckpointOptions());
    shared.show_on(terminal);
    terminal->draw("training");
    const std::vector<std::byte> bytes(std::size_t{1} << 20);
    const auto file = shared.files().create(folder.path() / "file", bytes.size());
    EXPECT_EQ(num_drawn(screen, "training"), 1U);
    const testing::NoMoreDescriptors no_ring;
    file->write({{0, bytes}});
  });
  EXPECT_EQ(num_drawn(screen, "training"), 2U) << "once more, below the line that was printed";
}

}  // namespace
}  // namespace tessera::checkpoints
