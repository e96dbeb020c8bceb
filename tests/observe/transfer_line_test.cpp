#include <tessera/observe/transfer_line.h>

#include <gtest/gtest.h>

#include "observe/terminal.h"
#include "support/screen.h"

namespace tessera::observe {
namespace {

using ::tessera::testing::Screen;

TEST(TransferLine, ShowsTheCountAndLeavesNothing) {
  Screen screen(80);
  const auto terminal = std::make_shared<Terminal>(Terminal::Kind::kOwn, screen.duplicate());
  const auto count = std::make_shared<ByteCount>();
  count->total = 838'000'000;
  {
    const TransferLine line(terminal, "saving step 20", count);
    EXPECT_TRUE(line.is_shown());
    count->done = 312'000'000;
    EXPECT_TRUE(screen.comes_to_show("saving step 20: 312 of 838 MB, "));
    count->done = 838'000'000;
    EXPECT_TRUE(screen.comes_to_show("saving step 20: 838 of 838 MB, "));
  }
  EXPECT_EQ(screen.lines(), std::vector<std::string>{""});
}

TEST(TransferLine, IsNotDrawnForWhatIsQuick) {
  Screen screen(80);
  const auto terminal = std::make_shared<Terminal>(Terminal::Kind::kOwn, screen.duplicate());
  {
    const TransferLine line(terminal, "saving", std::make_shared<ByteCount>());
  }
  EXPECT_EQ(screen.bytes(), "");
}

TEST(TransferLine, IsQuietWithoutATerminal) {
  const TransferLine line(process_terminal(false), "saving", std::make_shared<ByteCount>());
  EXPECT_FALSE(line.is_shown());
}

}  // namespace
}  // namespace tessera::observe
