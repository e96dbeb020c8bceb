#include <tessera/core/config_file.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "generation/options.h"
#include "gpt2/config.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::models {
namespace {

using testing::expect_parts;
using testing::message_of;

TEST(Gpt2Config, KnowsThePublishedSizes) {
  EXPECT_EQ(Gpt2Config::named("gpt2").num_parameters(), 124'439'808);
  EXPECT_EQ(Gpt2Config::named("gpt2-medium").num_parameters(), 354'823'168);
  EXPECT_EQ(Gpt2Config::named("gpt2-large").num_parameters(), 774'030'080);
  EXPECT_EQ(Gpt2Config::named("gpt2-xl").num_parameters(), 1'557'611'200);
  for (const std::string& name : Gpt2Config::names()) EXPECT_NO_THROW(Gpt2Config::named(name).check()) << name;
}

TEST(Gpt2Config, NamesTheSizesThatThereAre) {
  expect_parts(message_of<ConfigError>([] { Gpt2Config::named("gpt3"); }), {"gpt3", "gpt2-medium", "gpt2-tiny"});
}

TEST(Gpt2Config, RefusesAllFaultsAtOnce) {
  const auto config =
      Gpt2Config().vocab_size(0).width(10).num_heads(3).dropout(1.0).mlp_width(-1).layer_norm_epsilon(0);
  expect_parts(
      message_of<ConfigError>([&] { config.check(); }),
      {"vocab_size is 0", "num_heads is 3", "width 10", "attention_dropout", "mlp_width", "layer_norm_epsilon"});
}

TEST(Gpt2Config, ReadsToml) {
  Gpt2Config config = Gpt2Config::named("gpt2-tiny");
  parse_config("num_layers = 3\nresidual_dropout = 0.5\n", "text", config);
  EXPECT_EQ(config.num_layers(), 3);
  EXPECT_EQ(config.width(), 64);
  EXPECT_EQ(config.residual_dropout(), 0.5);
  expect_parts(message_of<ConfigError>([&] { parse_config("num_layer = 3", "text", config); }), {"num_layers"});
}

/// The reference pages are what the lists of fields say.
void expect_page(const std::string& file, const std::string& expected_start, const FieldTable& fields) {
  const std::string page = testing::text_of_file(std::filesystem::path(TESSERA_REFERENCE_PAGES) / file);
  EXPECT_EQ(page, expected_start + "\n\n" + reference_table(fields)) << "docs/reference/" << file;
}

TEST(ReferencePage, IsWhatTheFieldsOfGpt2Say) {
  expect_page("gpt2_config.md",
              "# The shape of a GPT-2\n\n`tessera::models::Gpt2Config`. In a TOML file these are the keys.",
              Gpt2Config::fields());
}

TEST(ReferencePage, IsWhatTheFieldsOfGenerationSay) {
  expect_page(
      "generate_options.md",
      "# Options of text generation\n\n`tessera::models::GenerateOptions`, for `tessera::models::generate()`. In a "
      "TOML file these are the keys.",
      GenerateOptions::fields());
}

}  // namespace
}  // namespace tessera::models
