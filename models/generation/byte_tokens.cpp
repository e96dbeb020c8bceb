#include "generation/byte_tokens.h"

#include <tessera/core/error.h>

#include <ATen/ops/empty.h>

namespace tessera::models {

at::Tensor bytes_to_tokens(std::string_view text) {
  at::Tensor tokens = at::empty({1, static_cast<std::int64_t>(text.size())}, at::kLong);
  auto* target = tokens.data_ptr<std::int64_t>();
  for (const char c : text) *target++ = static_cast<unsigned char>(c);
  return tokens;
}

std::string tokens_to_bytes(const at::Tensor& tokens) {
  const at::Tensor flat = tokens.to(at::kCPU, at::kLong).contiguous();
  const auto* source = flat.const_data_ptr<std::int64_t>();
  std::string text;
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    if (source[i] < 0 || source[i] > 255) {
      throw ConfigError("expected tokens that are bytes, 0 to 255; found " + std::to_string(source[i]) + " at place " +
                        std::to_string(i));
    }
    text += static_cast<char>(source[i]);
  }
  return text;
}

}  // namespace tessera::models
