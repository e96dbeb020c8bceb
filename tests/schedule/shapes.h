#pragma once

#include <tessera/schedule/pipeline_schedule.h>

#include <string>
#include <vector>

namespace tessera::testing {

/// The kind's shapes of so many ranks, micro-batches and, where there is a choice, chunks at most, with all lower ones.
inline std::vector<PipelineShape> shapes_up_to(PipelineScheduleKind kind, int ranks, int micro_batches, int chunks) {
  const bool has_choice = kind == PipelineScheduleKind::kInterleaved;
  std::vector<PipelineShape> shapes;
  for (int p = 1; p <= ranks; ++p) {
    for (int m = 1; m <= micro_batches; ++m) {
      if (!has_choice) shapes.push_back({p, m});
      for (int v = 1; has_choice && v <= chunks; ++v) shapes.push_back({p, m, v});
    }
  }
  return shapes;
}

inline std::string text_of(const PipelineShape& shape) {
  return std::to_string(shape.num_ranks) + " ranks, " + std::to_string(shape.num_micro_batches) + " micro-batches, " +
         (shape.num_chunks ? std::to_string(*shape.num_chunks) : "default") + " chunks";
}

/// For names of tests, which have no '-'.
inline std::string name_of(PipelineScheduleKind kind) {
  std::string name(to_string(kind));
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

}  // namespace tessera::testing
