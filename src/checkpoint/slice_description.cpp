#include <tessera/core/error.h>

#include <nlohmann/json.hpp>

#include "checkpoint/save_plan.h"

namespace tessera::checkpoints {
namespace {

using Json = nlohmann::json;

Json to_json(const SliceDescription& slice) {
  return {slice.group,        slice.name,       std::string(dtype_name(slice.dtype)), slice.shape, slice.place.view,
          slice.place.starts, slice.place.sizes};
}

SliceDescription from_json(const Json& json) {
  const auto dtype = dtype_of_name(json.at(2).get<std::string>());
  if (!dtype) throw InternalError("a rank describes a slice of type " + json.at(2).get<std::string>());
  return {json.at(0), json.at(1), *dtype, json.at(3), {json.at(4), json.at(5), json.at(6)}};
}

}  // namespace

std::string to_text(const std::vector<SliceDescription>& slices) {
  Json list = Json::array();
  for (const SliceDescription& slice : slices) list.push_back(to_json(slice));
  try {
    return list.dump();
  } catch (const Json::exception& error) {
    throw ConfigError(std::string("the name of a tensor is not UTF-8: ") + error.what());
  }
}

std::vector<SliceDescription> slices_from_text(std::string_view text) {
  std::vector<SliceDescription> slices;
  try {
    for (const Json& json : Json::parse(text)) slices.push_back(from_json(json));
  } catch (const Json::exception& error) {
    throw InternalError(std::string("a rank's slices cannot be read: ") + error.what());
  }
  return slices;
}

}  // namespace tessera::checkpoints
