#include <tessera/core/error.h>
#include <tessera/core/mapped_file.h>
#include <tessera/tokens/pack.h>
#include <tessera/tokens/token_writer.h>
#include <tessera/tokens/tokenizer.h>

#include <cstddef>

#include "tokens/documents.h"
#include "tokens/token_formats.h"

namespace tessera::tokens {
namespace {

/// Removes the first line from `rest` and returns it without its line end.
std::string_view take_line(std::string_view& rest) {
  const std::size_t end = rest.find('\n');
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t") == std::string_view::npos; }

void for_each_line(std::string_view text, const std::function<void(std::string_view)>& use) {
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    use(is_blank(line) ? std::string_view() : line);
  }
}

void for_each_block(std::string_view text, const std::function<void(std::string_view)>& use) {
  const char* begin = nullptr;  // of the block that is open
  const char* end = nullptr;
  const auto close = [&] {
    if (begin != nullptr) use(std::string_view(begin, static_cast<std::size_t>(end - begin)));
    begin = nullptr;
  };
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (is_blank(line)) {
      close();
      continue;
    }
    if (begin == nullptr) begin = line.data();
    end = line.data() + line.size();
  }
  close();
}

}  // namespace

void for_each_document(std::string_view text, DocumentUnit unit, const std::function<void(std::string_view)>& use) {
  switch (unit) {
    case DocumentUnit::kFile:
      return use(text);
    case DocumentUnit::kLine:
      return for_each_line(text, use);
    case DocumentUnit::kBlock:
      return for_each_block(text, use);
  }
}

}  // namespace tessera::tokens

namespace tessera {

void ByteTokenizer::encode(std::string_view text, std::vector<std::int64_t>& tokens) const {
  const std::size_t before = tokens.size();
  tokens.resize(before + text.size());
  for (std::size_t i = 0; i < text.size(); ++i) tokens[before + i] = static_cast<unsigned char>(text[i]);
}

std::string ByteTokenizer::decode(std::span<const std::int64_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const std::int64_t token : tokens) {
    if (token == kEndOfDocument) continue;
    if (token < 0 || token > kEndOfDocument) {
      throw ConfigError("token " + std::to_string(token) +
                        " is no byte; expected 0 to 256. Were these tokens made by " + "another tokenizer?");
    }
    text += static_cast<char>(token);
  }
  return text;
}

namespace {

using tokens::DocumentUnit;

/// PackOptions after they were checked.
struct PackSettings {
  TokenFormat format;
  TokenType type;
  DocumentUnit unit;
  std::int64_t end = -1;  ///< the token after each document; -1: none
};

DocumentUnit unit_of(const std::string& name) {
  return name == "file" ? DocumentUnit::kFile : name == "line" ? DocumentUnit::kLine : DocumentUnit::kBlock;
}

PackSettings resolve(const PackOptions& options, const Tokenizer& tokenizer) {
  PackOptions::fields().check(options);
  PackSettings settings{parse_token_format(options.format()), TokenType{}, unit_of(options.documents())};
  const bool megatron = settings.format == TokenFormat::kMegatron;
  std::string faults;
  if (!megatron && options.type() != "auto") {
    faults += "\n  the format " + options.format() + " has one type of tokens: leave type at \"auto\"";
  }
  if (options.end_of_document()) {
    if (!tokenizer.end_of_document()) {
      faults += "\n  end_of_document: the tokenizer " + tokenizer.name() + " has no token that ends a document";
    }
    settings.end = tokenizer.end_of_document().value_or(-1);
  }
  if (!faults.empty()) throw ConfigError("the options of packing cannot be met:" + faults);
  settings.type = !megatron                  ? tokens::type_of(settings.format)
                  : options.type() == "auto" ? token_type_for(tokenizer.vocabulary_size())
                                             : parse_token_type(options.type());
  return settings;
}

void check_output(const std::filesystem::path& output, const PackSettings& settings, const PackOptions& options) {
  for (const auto& path : token_file_paths(output, settings.format)) {
    if (!options.overwrite() && std::filesystem::exists(path)) {
      throw ConfigError(path.string() + " exists, and is not replaced: name another file, or say overwrite");
    }
  }
}

}  // namespace

const FieldList<PackOptions>& PackOptions::fields() {
  static const FieldList<PackOptions> list =
      FieldList<PackOptions>("pack")
          .add_choice("format", &PackOptions::format_, {"megatron", "llmc-gpt2", "llmc-llama3"},
                      "The format of the token file.")
          .add_choice("documents", &PackOptions::documents_, {"file", "line", "block"},
                      "What a document is: a whole file, each line, or each block between blank lines.")
          .add_choice("tokenizer", &PackOptions::tokenizer_, {"bytes", "sentencepiece"}, "How text becomes numbers.")
          .add("model", &PackOptions::model_, "With sentencepiece: the file of the model.")
          .add("end_of_document", &PackOptions::end_of_document_,
               "End each document with the tokenizer's token for that.")
          .add_choice("type", &PackOptions::type_, {"auto", "uint8", "int8", "int16", "uint16", "int32", "int64"},
                      "Megatron: how tokens lie in the file; auto is uint16 below 65,500 tokens, else int32.")
          .add("overwrite", &PackOptions::overwrite_, "Replace files that are there.");
  return list;
}

PackSummary pack(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output,
                 const Tokenizer& tokenizer, const PackOptions& options) {
  const PackSettings settings = resolve(options, tokenizer);
  check_output(output, settings, options);
  TokenFileWriter writer(output, settings.format, settings.type);
  PackSummary summary;
  std::vector<std::int64_t> found;
  for (const auto& input : inputs) {
    const MappedFile file(input);
    std::int64_t number = 0;
    tokens::for_each_document(file.text(), settings.unit, [&](std::string_view text) {
      found.clear();
      try {
        tokenizer.encode(text, found);
        summary.num_text_bytes += static_cast<std::int64_t>(text.size());
        if (found.empty()) {
          ++summary.num_empty;
        } else {
          if (settings.end >= 0) found.push_back(settings.end);
          writer.add_document(found);
        }
      } catch (const ConfigError& error) {
        throw ConfigError(file.name() + ", document " + std::to_string(number) + ": " + error.what());
      }
      ++number;
    });
    ++summary.num_files;
  }
  writer.finish();
  summary.num_documents = writer.num_documents();
  summary.num_tokens = writer.num_tokens();
  summary.written = token_file_paths(output, settings.format);
  return summary;
}

}  // namespace tessera
