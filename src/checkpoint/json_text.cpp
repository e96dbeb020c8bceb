#include "checkpoint/json_text.h"

#include <tessera/core/error.h>

#include <nlohmann/json.hpp>

#include "checkpoint/safetensors_header.h"

namespace tessera::checkpoints {

std::string json_text(const std::string& text, std::string_view holder) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw ConfigError(std::string(holder) + " holds UTF-8 text only, found " + shown(text));
  }
}

}  // namespace tessera::checkpoints
