#include <tessera/core/error.h>
#include <tessera/core/log.h>

#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <vector>

namespace tessera {
namespace {

/// Must outlive the loggers that write to it.
struct Lines {
  LogSink sink() {
    return [this](std::string_view line) { lines.emplace_back(line); };
  }
  std::vector<std::string> lines;
};

using Expected = std::vector<std::string>;

TEST(Logger, PrefixesRankModuleAndLevel) {
  Lines out;
  Logger log("comm", 3, LogLevel::kDebug, out.sink());
  log.debug("a");
  log.info("b");
  log.warning("c");
  log.error("d");
  EXPECT_EQ(out.lines, (Expected{"[tessera rank 3 comm] debug: a", "[tessera rank 3 comm] info: b",
                                 "[tessera rank 3 comm] warning: c", "[tessera rank 3 comm] error: d"}));
}

TEST(Logger, LeavesTheRankOutWhereThereIsNone) {
  Lines out;
  Logger("launch", std::nullopt, LogLevel::kInfo, out.sink()).info("started");
  EXPECT_EQ(out.lines, Expected{"[tessera launch] info: started"});
}

TEST(Logger, DropsWhatIsBelowItsLevel) {
  Lines out;
  Logger log("comm", 0, LogLevel::kWarning, out.sink());
  log.debug("a");
  log.info("b");
  log.warning("c");
  EXPECT_EQ(out.lines, Expected{"[tessera rank 0 comm] warning: c"});
  EXPECT_FALSE(log.enabled(LogLevel::kInfo));
  EXPECT_TRUE(log.enabled(LogLevel::kWarning));
}

TEST(Logger, PrefixesEachLineOfAMessage) {
  Lines out;
  Logger("comm", 1, LogLevel::kInfo, out.sink()).error("one\ntwo\n\nfour\n");
  EXPECT_EQ(out.lines, (Expected{"[tessera rank 1 comm] error: one", "[tessera rank 1 comm] error: two",
                                 "[tessera rank 1 comm] error: ", "[tessera rank 1 comm] error: four"}));
}

TEST(Logger, TakesMessagesLiterally) {
  Lines out;
  Logger log("100%n", 1, LogLevel::kInfo, out.sink());
  log.info("{} {0} %v %n");
  log.info("");
  EXPECT_EQ(out.lines, (Expected{"[tessera rank 1 100%n] info: {} {0} %v %n", "[tessera rank 1 100%n] info: "}));
}

TEST(Logger, SharesRankLevelAndSinkAcrossModules) {
  Lines out;
  const auto log = Logger("comm", 2, LogLevel::kWarning, out.sink()).for_module("mesh");
  log.info("dropped");
  log.warning("kept");
  EXPECT_EQ(out.lines, Expected{"[tessera rank 2 mesh] warning: kept"});
}

TEST(Logger, WritesToStandardErrorByDefault) {
  ::testing::internal::CaptureStderr();
  Logger("comm", 3).warning("slow");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "[tessera rank 3 comm] warning: slow\n");
}

TEST(Logger, CallsTheSinkFromOneThreadAtATime) {
  Lines out;
  const Logger log("comm", 0, LogLevel::kInfo, out.sink());
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log, module = log.for_module("mesh")] {
      for (int i = 0; i < 250; ++i) {
        log.info("x");
        module.info("y");
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(out.lines.size(), 2000U);
}

TEST(ParseLogLevel, KnowsTheFourNamesOnly) {
  EXPECT_EQ(parse_log_level("debug"), LogLevel::kDebug);
  EXPECT_EQ(parse_log_level("info"), LogLevel::kInfo);
  EXPECT_EQ(parse_log_level("warning"), LogLevel::kWarning);
  EXPECT_EQ(parse_log_level("error"), LogLevel::kError);
  EXPECT_THROW(parse_log_level("warn"), ConfigError);
}

}  // namespace
}  // namespace tessera
