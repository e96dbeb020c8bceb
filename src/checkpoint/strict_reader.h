#pragma once

#include <tessera/core/error.h>

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/safetensors_header.h"

namespace tessera::checkpoints {

/// Note [A header is read as it comes]
/// A header or manifest may have 100 MB, and whoever wrote it may mean harm. So no tree of JSON values is built of it:
/// the events of the parser drive a machine, which knows what may stand at each place and refuses the first thing that
/// may not. Nesting is bounded by the places that exist, memory by the size of the text.
///
/// This is what such machines have in common: whatever one does not override is refused.
class StrictReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  StrictReader(const StrictReader&) = delete;
  StrictReader& operator=(const StrictReader&) = delete;

  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return unexpected(std::to_string(value)); }
  bool number_float(number_float_t /*value*/, const string_t& text) override { return unexpected(shown(text)); }
  bool binary(binary_t& /*value*/) override { return unexpected("bytes"); }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    refuse(title_ + " is not valid JSON in UTF-8 at its byte " + std::to_string(position));
  }

 protected:
  // LibTorch's kernels stop at 64 dimensions.
  static constexpr std::size_t kMaxDims = 64;

  /// `origin` outlives this. `title` is "the header".
  StrictReader(const std::string& origin, std::string title) : origin_(origin), title_(std::move(title)) {}
  ~StrictReader() override = default;

  [[noreturn]] void refuse(const std::string& fault) const { throw StorageError(origin_ + ": " + fault); }
  bool unexpected(const std::string& found) const { refuse(where() + ": expected " + expected() + ", found " + found); }

  /// The place that has been reached, and what may stand there.
  virtual std::string where() const = 0;
  virtual std::string expected() const = 0;

 private:
  const std::string& origin_;
  const std::string title_;
};

}  // namespace tessera::checkpoints
