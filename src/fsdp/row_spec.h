#pragma once

#include <tessera/shard/partition.h>

#include <c10/core/ScalarType.h>

#include <string>

namespace tessera::fsdp {

/// A row to make a source for.
struct RowSpec {
  int unit;          ///< its number
  std::string name;  ///< for messages
  Partition partition;
  c10::ScalarType row_dtype;
  c10::ScalarType shard_dtype;
};

}  // namespace tessera::fsdp
