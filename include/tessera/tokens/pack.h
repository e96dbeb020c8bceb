#pragma once

#include <tessera/core/options.h>
#include <tessera/tokens/tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

struct PackOptions {
  /// "megatron" (PREFIX.bin and PREFIX.idx), "llmc-gpt2" or "llmc-llama3". llm.c's formats do not keep where documents
  /// begin, but for `end_of_document`.
  TESSERA_ARG(std::string, format) = "megatron";
  /// What a document is: a whole "file", each "line", or each "block" of lines between blank ones.
  TESSERA_ARG(std::string, documents) = "file";
  /// "bytes", or "sentencepiece" with `model`.
  TESSERA_ARG(std::string, tokenizer) = "bytes";
  /// Only with "sentencepiece": the file of the model.
  TESSERA_ARG(std::string, model) = "";
  /// End each document with the tokenizer's token for that. Leave it off to train on text alone.
  TESSERA_ARG(bool, end_of_document) = false;
  /// How tokens lie in a file of Megatron's: "auto" is uint16 for vocabularies below 65,500, else int32.
  TESSERA_ARG(std::string, type) = "auto";
  /// Replace files that are there.
  TESSERA_ARG(bool, overwrite) = false;

 public:
  static const FieldList<PackOptions>& fields();
};

/// What was packed.
struct PackSummary {
  std::int64_t num_files = 0;
  std::int64_t num_documents = 0;
  std::int64_t num_empty = 0;  ///< documents without a token, which were left out
  std::int64_t num_text_bytes = 0;
  std::int64_t num_tokens = 0;
  std::vector<std::filesystem::path> written;
};

/// Packs text files, in this order, into one token file at `output` (see TokenFileWriter). The options `tokenizer` and
/// `model` are not read here: the caller makes `tokenizer` from them. Throws ConfigError for options that cannot be met
/// and for text that the tokenizer refuses, StorageError for files; then nothing is written.
PackSummary pack(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output,
                 const Tokenizer& tokenizer, const PackOptions& options);

}  // namespace tessera
