#pragma once

#include <ATen/core/function_schema.h>

#include <cstddef>

namespace tessera::intercept {

/// Whether an operator changes the values of this argument. Its schema says so of record_stream() too, which only tells
/// an allocator who uses the memory.
inline bool writes_argument(const c10::FunctionSchema& schema, std::size_t index) {
  const c10::AliasInfo* const alias = schema.arguments()[index].alias_info();
  return alias != nullptr && alias->isWrite() && schema.name() != "aten::record_stream";
}

}  // namespace tessera::intercept
