#include "tessera/data/sentencepiece.h"

#include <tessera/core/error.h>

#include <sentencepiece_processor.h>

#include <string_view>
#include <vector>

namespace tessera::app {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& model) : model_(model) {
    const auto status = processor_.Load(model);
    if (!status.ok()) {
      throw ConfigError(model + " cannot be used as a model of SentencePiece: " + status.ToString());
    }
  }

  std::string name() const override { return "sentencepiece (" + model_ + ")"; }
  std::int64_t vocabulary_size() const override { return processor_.GetPieceSize(); }
  std::optional<std::int64_t> end_of_document() const override {
    const int end = processor_.eos_id();
    return end < 0 ? std::nullopt : std::optional<std::int64_t>(end);
  }

  void encode(std::string_view text, std::vector<std::int64_t>& tokens) const override {
    std::vector<int> pieces;
    const auto status = processor_.Encode(text, &pieces);
    if (!status.ok()) throw ConfigError(name() + " cannot encode the text: " + status.ToString());
    tokens.insert(tokens.end(), pieces.begin(), pieces.end());
  }

  std::string decode(std::span<const std::int64_t> tokens) const override {
    std::vector<int> pieces;
    for (const std::int64_t token : tokens) {
      if (token < 0 || token >= vocabulary_size()) {
        throw ConfigError("token " + std::to_string(token) + " is none of the " + std::to_string(vocabulary_size()) +
                          " of " + name());
      }
      pieces.push_back(static_cast<int>(token));
    }
    std::string text;
    const auto status = processor_.Decode(pieces, &text);
    if (!status.ok()) throw ConfigError(name() + " cannot decode the tokens: " + status.ToString());
    return text;
  }

 private:
  std::string model_;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece(const std::string& model) {
  return std::make_unique<SentencePieceTokenizer>(model);
}

}  // namespace tessera::app
