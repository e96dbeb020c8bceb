#include <tessera/core/error.h>

#include <nlohmann/json.hpp>

#include "checkpoint/save_plan.h"
#include "checkpoint/slice_members.h"

namespace tessera::checkpoints {
namespace {

using Json = nlohmann::json;

Json to_json(const SliceDescription& slice) {
  const SliceMembers members = members_of(slice.slice);
  return {slice.group,         slice.name,     std::string(dtype_name(slice.dtype)),
          slice.slice.shape(), members.view,   members.starts,
          members.sizes,       members.ranges, members.part};
}

SliceDescription from_json(const Json& json) {
  const auto dtype = dtype_of_name(json.at(2).get<std::string>());
  if (!dtype) throw InternalError("a rank describes a slice of type " + json.at(2).get<std::string>());
  const SliceMembers members{json.at(4), json.at(5), json.at(6), json.at(7), json.at(8)};
  return {json.at(0), json.at(1), *dtype, slice_of(members, json.at(3))};
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
