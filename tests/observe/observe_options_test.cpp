#include <tessera/core/config_file.h>
#include <tessera/core/error.h>
#include <tessera/observe/observe_options.h>
#include <tessera/observe/observer.h>

#include <gtest/gtest.h>

#include "support/error_message.h"

namespace tessera {
namespace {

TEST(ObserveOptions, ReadBackFromWhatTheyPrint) {
  const auto options = ObserveOptions().json("a.jsonl").trace("t").trace_steps(5).plain_every(std::chrono::seconds(3));
  ObserveOptions read;
  parse_config(print_config(options), "printed", read);
  EXPECT_EQ(print_config(read), print_config(options));
  EXPECT_EQ(read.trace_steps(), 5);
}

TEST(ObserveOptions, AreRefusedWithAllFaults) {
  const auto options = ObserveOptions().every(0).trace_skip(-1).trace_steps(-2);
  const auto message = testing::message_of<ConfigError>([&] { observe::Observer observer(options); });
  testing::expect_parts(message, {"every: expected at least 1, found 0", "trace_skip", "trace_steps"});
  EXPECT_THROW(observe::Observer(ObserveOptions().progress("loud")), ConfigError);
  EXPECT_THROW(observe::Observer(ObserveOptions().prometheus("nowhere")), ConfigError);
}

}  // namespace
}  // namespace tessera
