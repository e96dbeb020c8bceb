// Programs that once had a defect, as tests/property/programs printed them.
#include <gtest/gtest.h>

#include "property/play.h"

namespace tessera::testing {
namespace {

void expect_no_defect(const Program& program) {
  const Played played = play_with_threads(program);
  EXPECT_EQ(played.defect, "") << program.text();
}

TEST(Programs, Seed16) {
  Program program = make_program(16, 2);
  program.actions = {
      {"open_gather", 452, 919}, {"make_optimizer", 475, 634}, {"go_back_twice", 302, 67},
      {"step", 849, 747},        {"train", 152, 225},
  };
  expect_no_defect(program);
}

TEST(Programs, AreTheSameForASeed) {
  EXPECT_EQ(make_program(5).text(), make_program(5).text());
  EXPECT_NE(make_program(5).text(), make_program(6).text());
}

}  // namespace
}  // namespace tessera::testing
