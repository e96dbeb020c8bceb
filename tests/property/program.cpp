#include "property/program.h"

#include <sstream>

namespace tessera::testing {

Program make_program(std::uint64_t seed, const Ways& ways) {
  Dice dice(seed * 7919 + 13);
  Program program;
  program.seed = seed;
  const int drawn = dice.pick(std::vector<int>{1, 2, 2, 2, 4});
  program.config = draw_config(dice, ways.num_ranks == 0 ? drawn : ways.num_ranks, ways.cuts_shards);
  // Of its own, so that a program without stages is the same as ever.
  Dice stages(seed * 104'729 + 7);
  if (stages.chance(ways.has_stages ? 100 : 15)) put_on_stages(stages, program.config);
  Dice files(seed * 15'485'863 + 3);
  if (files.chance(ways.uses_files ? 100 : 15)) put_in_files(files, program.config);
  // Defects that a long history needs are rare: most programs are short.
  const auto count = 30 + dice.below(dice.chance(20) ? 170 : 60);
  for (std::int64_t i = 0; i < count; ++i) program.actions.push_back(draw_action(dice, program.config));
  return program;
}

std::string Program::text() const {
  std::ostringstream text;
  text << "program " << seed << ": " << config.text() << "\n";
  for (std::size_t i = 0; i < actions.size(); ++i) text << "  " << i << ": " << text_of(actions[i]) << "\n";
  return text.str();
}

std::string Program::as_test() const {
  std::ostringstream text;
  text << "TEST(Programs, Seed" << seed << ") {\n"
       << "  Program program{" << seed << ", Config::parse(\"" << config.text() << "\"), {}};\n"
       << "  program.actions = {\n";
  for (const Action& action : actions) {
    text << "      {\"" << action.kind << "\", " << action.number << ", " << action.way << "},\n";
  }
  text << "  };\n  expect_no_defect(program);\n}\n";
  return text.str();
}

}  // namespace tessera::testing
