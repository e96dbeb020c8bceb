#include "checkpoint/save_sources.h"

#include <ATen/ATen.h>

#include "checkpoint/streaming_copy.h"

namespace tessera::checkpoints {
namespace {

std::span<const std::byte> bytes_of(const at::Tensor& values) {
  return {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()};
}

void copy_to(std::byte* place, const at::Tensor& part) {
  if (part.is_cpu()) {
    streaming_copy(bytes_of(part), place);
  } else {
    at::from_blob(place, part.sizes(), part.options().device(at::kCPU).requires_grad(false)).copy_(part);
  }
}

}  // namespace

std::vector<at::Tensor> written_parts(const SavePlan& plan, int rank, const RankState& state) {
  std::vector<at::Tensor> parts;
  for (const PlannedWrite& planned : plan.of_rank[static_cast<std::size_t>(rank)]) {
    const Slice& written = plan.manifest.tensors[planned.tensor].slices[planned.slice].slice;
    parts.push_back(
        state.slices[planned.held].values.detach().view({-1}).narrow(0, planned.first, written.num_elements()));
  }
  return parts;
}

SaveSources SaveSources::of(const std::vector<at::Tensor>& parts) {
  SaveSources sources;
  for (const at::Tensor& part : parts) sources.bytes.push_back(bytes_of(part));
  return sources;
}

SaveSources SaveSources::copied(const std::vector<at::Tensor>& parts, const CopyLayout& layout, Staging& staging) {
  SaveSources sources;
  sources.copy = staging.take(layout.num_bytes);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::byte* const place = sources.copy.get() + layout.places[i];
    copy_to(place, parts[i]);
    sources.bytes.emplace_back(place, parts[i].nbytes());
  }
  return sources;
}

}  // namespace tessera::checkpoints
