#pragma once

#include <tessera/tensor_parallel/tensor_plan.h>

#include "gpt/gpt.h"

namespace bench {

/// The cuts that HandWrittenGpt has.
inline tessera::TensorPlan plan_of(const GptShape& shape) {
  return {{"blocks.*.attention.query", tessera::split_heads(shape.heads)},
          {"blocks.*.attention.key", tessera::split_heads(shape.heads)},
          {"blocks.*.attention.value", tessera::split_heads(shape.heads)},
          {"blocks.*.attention.out", tessera::split_rows().heads(shape.heads)},
          {"blocks.*.up", tessera::split_columns()},
          {"blocks.*.down", tessera::split_rows()},
          {"head", tessera::split_columns()}};
}

}  // namespace bench
