// tessera data show: what a token file holds.
#include <tessera/core/error.h>
#include <tessera/tokens/token_file.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/data_commands.h"
#include "tessera/data/tokenizers.h"

namespace tessera::app {
namespace {

struct ShowArguments {
  std::string file;
  bool json = false;
  std::int64_t document = -1;
  std::int64_t begin = 0;
  std::int64_t count = -1;
  std::string tokenizer;
  std::string model;
};

constexpr std::int64_t kChunk = std::int64_t{1} << 20;

std::vector<std::int64_t> read(const TokenFile& file, TokenFile::Range range) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(std::max<std::int64_t>(range.end - range.begin, 0)));
  file.read(range.begin, tokens);
  return tokens;
}

/// The smallest and the largest token; reads all of them.
TokenFile::Range extent_of(const TokenFile& file) {
  TokenFile::Range extent{0, -1};
  for (std::int64_t begin = 0; begin < file.num_tokens(); begin += kChunk) {
    const auto tokens = read(file, {begin, std::min(begin + kChunk, file.num_tokens())});
    const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
    extent = {begin == 0 ? *least : std::min(extent.begin, *least), std::max(extent.end, *most)};
  }
  return extent;
}

nlohmann::ordered_json facts_of(const TokenFile& file) {
  nlohmann::ordered_json facts;
  facts["file"] = file.path();
  facts["format"] = to_string(file.format());
  facts["type"] = to_string(file.type());
  facts["tokens"] = file.num_tokens();
  if (file.has_documents()) {
    facts["documents"] = file.num_documents();
    facts["sequences"] = file.num_sequences();
  }
  if (file.num_tokens() > 0) {
    const TokenFile::Range extent = extent_of(file);
    facts["smallest token"] = extent.begin;
    facts["largest token"] = extent.end;
  }
  return facts;
}

void print_facts(const TokenFile& file, bool json) {
  const auto facts = facts_of(file);
  if (json) {
    std::printf("%s\n", facts.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return;
  }
  for (const auto& [key, value] : facts.items()) {
    std::printf("%-15s %s\n", key.c_str(), value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
  }
}

void print_tokens(const std::vector<std::int64_t>& tokens, const ShowArguments& arguments) {
  if (!arguments.tokenizer.empty()) {
    const std::string text = make_tokenizer(arguments.tokenizer, arguments.model)->decode(tokens);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fputc('\n', stdout);
    return;
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::printf("%lld%c", static_cast<long long>(tokens[i]), i + 1 == tokens.size() ? '\n' : ' ');
  }
}

void run_show(const ShowArguments& arguments) {
  const TokenFile file = TokenFile::open(arguments.file);
  if (arguments.document < 0 && arguments.count < 0) {
    if (!arguments.tokenizer.empty()) throw ConfigError("--tokenizer says how --document or --count is shown");
    return print_facts(file, arguments.json);
  }
  const TokenFile::Range whole =
      arguments.document >= 0 ? file.document(arguments.document) : TokenFile::Range{0, file.num_tokens()};
  const std::int64_t begin = std::min(whole.begin + arguments.begin, whole.end);
  const std::int64_t count = arguments.count >= 0 ? arguments.count : whole.end - begin;
  print_tokens(read(file, {begin, begin + std::min(count, whole.end - begin)}), arguments);
}

}  // namespace

void add_data_show(CLI::App& data) {
  CLI::App& command = *data.add_subcommand("show", "Check a token file, and tell what it holds");
  const auto arguments = std::make_shared<ShowArguments>();
  command.add_option("FILE", arguments->file, "A file of llm.c's, or PREFIX, PREFIX.bin or PREFIX.idx")->required();
  CLI::Option* json = command.add_flag("--json", arguments->json, "The facts as JSON");
  const auto number = CLI::NonNegativeNumber;
  CLI::Option* document =
      command.add_option("--document", arguments->document, "Print the tokens of this document, from 0")->check(number);
  CLI::Option* count = command.add_option("--count", arguments->count, "Print so many tokens at most")->check(number);
  command.add_option("--begin", arguments->begin, "Print tokens from this one on, from 0")->check(number);
  command.add_option("--tokenizer", arguments->tokenizer, "Print text, not numbers: bytes or sentencepiece");
  command.add_option("--model", arguments->model, "With sentencepiece: the file of the model");
  json->excludes(document)->excludes(count);
  command.callback([arguments] { run_show(*arguments); });
}

}  // namespace tessera::app
