#include "mesh/axis_names.h"
#include <tessera/core/error.h>
#include <tessera/mesh/axis_layout.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <limits>
#include <set>

namespace tessera::mesh {
namespace {

bool is_valid_name(const std::string& name) {
  // '.', '+' and '/' separate the parts of group names, and "self.5" is the group of rank 5 alone.
  return !name.empty() && name != "self" && std::isalpha(static_cast<unsigned char>(name.front())) != 0 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return c < 128 && (std::isalnum(c) != 0 || c == '_' || c == '-'); });
}

}  // namespace

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string joined;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    joined += (i == 0 ? "" : separator) + parts[i];
  }
  return joined;
}

std::string describe(const std::vector<AxisSpec>& axes) {
  std::vector<std::string> parts;
  parts.reserve(axes.size());
  for (const auto& axis : axes) {
    parts.push_back(axis.name + ": " + std::to_string(axis.size));
  }
  return "{" + join(parts, ", ") + "}";
}

std::vector<std::string> names_of(const std::vector<AxisSpec>& axes) {
  std::vector<std::string> names;
  names.reserve(axes.size());
  for (const auto& axis : axes) {
    names.push_back(axis.name);
  }
  return names;
}

std::string arrangement_fault(const std::vector<std::string>& names, const std::vector<std::string>& listed,
                              const std::string& what) {
  if (std::is_permutation(names.begin(), names.end(), listed.begin(), listed.end())) {
    return "";
  }
  return what + " is {" + join(listed, ", ") + "}: list each of {" + join(names, ", ") + "} exactly once";
}

std::vector<std::string> axis_faults(const std::vector<AxisSpec>& axes) {
  std::vector<std::string> faults;
  std::set<std::string> seen;
  std::int64_t product = 1;
  for (const auto& axis : axes) {
    if (!is_valid_name(axis.name)) {
      faults.push_back("\"" + axis.name +
                       "\" is no axis name: use a letter, then letters, digits, '_' or '-' (and not \"self\")");
    } else if (!seen.insert(axis.name).second) {
      faults.push_back("axis " + axis.name + " is there twice: give each axis a name of its own");
    }
    if (axis.size < 1) {
      faults.push_back("axis " + axis.name + " has size " + std::to_string(axis.size) + ": use 1 or more");
    } else if (product <= std::numeric_limits<int>::max()) {
      product *= axis.size;
    }
  }
  if (product > std::numeric_limits<int>::max()) {
    faults.push_back("the sizes " + describe(axes) + " multiply to more ranks than can be counted: make them smaller");
  }
  return faults;
}

void throw_if_any(const std::string& headline, const std::vector<std::string>& faults) {
  if (!faults.empty()) {
    throw ConfigError(headline + "\n  - " + join(faults, "\n  - "));
  }
}

}  // namespace tessera::mesh
