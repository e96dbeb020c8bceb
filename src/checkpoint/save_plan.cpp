#include "checkpoint/save_plan.h"

#include <tessera/checkpoint/checksum.h>
#include <tessera/checkpoint/safetensors_index.h>
#include <tessera/core/error.h>
#include <tessera/shard/slice_cover.h>
#include <tessera/shard/slice_runs.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>

#include "checkpoint/group_files.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/writer_shares.h"

namespace tessera::checkpoints {
namespace {

// Tensors begin at a page: large ones then go to the disk without a copy.
constexpr std::uint64_t kDataAlignment = 4096;

struct Holder {
  int rank = 0;
  std::size_t held = 0;
};

/// One tensor, and who holds which part of it.
struct HeldTensor {
  const SliceDescription* described = nullptr;
  int rank = 0;                                 // of the first that describes it
  std::map<Slice, std::vector<Holder>> slices;  // canonical ones
};

/// By group and name.
using HeldTensors = std::map<std::pair<std::string, std::string>, HeldTensor>;

std::string titled(const SliceDescription& slice) {
  return "tensor " + shown(slice.name) + " of \"" + slice.group + "\"";
}

void check_same(const HeldTensor& tensor, const SliceDescription& slice, int rank) {
  const SliceDescription& first = *tensor.described;
  if (first.dtype == slice.dtype && first.slice.shape() == slice.slice.shape()) return;
  const auto text = [](const SliceDescription& one) {
    return std::string(dtype_name(one.dtype)) + " " + shape_text(one.slice.shape());
  };
  throw ConfigError(titled(slice) + " is " + text(first) + " on rank " + std::to_string(tensor.rank) + " and " +
                    text(slice) + " on rank " + std::to_string(rank) + "; save the same model on every rank");
}

HeldTensors collect(const std::vector<std::vector<SliceDescription>>& of_ranks) {
  HeldTensors tensors;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (std::size_t i = 0; i < of_ranks[rank].size(); ++i) {
      const SliceDescription& slice = of_ranks[rank][i];
      HeldTensor& tensor = tensors[{slice.group, slice.name}];
      if (tensor.described == nullptr) {
        tensor.described = &slice;
        tensor.rank = static_cast<int>(rank);
      }
      check_same(tensor, slice, static_cast<int>(rank));
      if (slice.slice.num_elements() == 0) continue;
      auto& holders = tensor.slices[slice.slice.canonical()];
      if (!holders.empty() && holders.back().rank == static_cast<int>(rank)) {
        throw ConfigError(titled(slice) + " is listed twice on rank " + std::to_string(rank));
      }
      holders.push_back({static_cast<int>(rank), i});
    }
  }
  return tensors;
}

std::string shown_slice(const std::pair<const Slice, std::vector<Holder>>& slice) {
  return slice.first.text() + " on rank " + std::to_string(slice.second.front().rank);
}

/// Each element of the tensor is in exactly one slice.
void check_covered(const HeldTensor& tensor) {
  const std::int64_t wanted = tensor.described->slice.num_tensor_elements();
  std::vector<const Slice*> slices;
  for (const auto& [slice, holders] : tensor.slices) slices.push_back(&slice);
  const auto fault = cover_fault(wanted, slices);
  if (!fault) return;
  const std::string title = titled(*tensor.described) + ": ";
  if (fault->kind == CoverFault::Kind::kGap) {
    throw ConfigError(title + "no rank holds element " + std::to_string(fault->element) + " of " +
                      std::to_string(wanted) + "; every element must be on some rank");
  }
  if (fault->kind != CoverFault::Kind::kOverlap) throw ConfigError(title + fault->text());
  const auto listed = [&](std::size_t i) {
    return shown_slice(*std::next(tensor.slices.begin(), static_cast<std::ptrdiff_t>(i)));
  };
  throw ConfigError(title + listed(fault->both[0]) + " and " + listed(fault->both[1]) + " overlap at element " +
                    std::to_string(fault->element) + " without being the same; give every element to one slice");
}

/// Fills in files and tensors; returns for each tensor of the manifest who holds it.
std::vector<const HeldTensor*> place_in_files(const HeldTensors& tensors, std::uint64_t max_file_bytes,
                                              SavePlan& plan) {
  std::map<std::string, std::vector<StoredTensor>> groups;
  for (const auto& [key, tensor] : tensors) {
    groups[key.first].push_back({key.second, tensor.described->dtype, tensor.described->slice.shape()});
  }
  std::vector<const HeldTensor*> held;
  for (auto& [group, stored] : groups) {
    for (const GroupFile& file :
         files_of_group(group, std::move(stored), max_file_bytes, file_notes(), kDataAlignment)) {
      const auto bytes = std::as_bytes(std::span(file.text));
      plan.files.push_back({file.name, file.num_bytes, file.text, file.layout ? bytes.size() : 0});
      plan.manifest.files.push_back({file.name, file.num_bytes, file.layout ? bytes.size() : 0, checksum_of(bytes)});
      if (!file.layout) continue;
      for (const StoredTensor& tensor : file.layout->tensors()) {
        held.push_back(&tensors.at({group, tensor.name}));
        plan.tensor_start.push_back(bytes.size() + tensor.begin);
        plan.manifest.tensors.push_back(
            {tensor.name, group, tensor.dtype, tensor.shape, plan.manifest.files.size() - 1, {}});
      }
    }
  }
  return held;
}

/// In the order of the tensors, which is that of the files; `tensor_of` gets the tensor of each.
std::vector<SharedSlice> slices_to_share(const SavePlan& plan, const std::vector<const HeldTensor*>& held,
                                         std::vector<std::size_t>& tensor_of) {
  std::vector<SharedSlice> slices;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const std::int64_t element_bytes = dtype_bytes(held[i]->described->dtype);
    for (const auto& [slice, holders] : held[i]->slices) {
      SharedSlice shared{slice, plan.tensor_start[i], element_bytes, {}, {}};
      if (const auto stretch = slice.as_stretch()) {
        shared.file_offset += static_cast<std::uint64_t>(stretch->start * element_bytes);
      }
      for (const Holder& holder : holders) {
        shared.ranks.push_back(holder.rank);
        shared.held.push_back(holder.held);
      }
      slices.push_back(std::move(shared));
      tensor_of.push_back(i);
    }
  }
  return slices;
}

}  // namespace

std::uint64_t SavePlan::offset_of(const PlannedWrite& planned) const {
  const ManifestTensor& tensor = manifest.tensors[planned.tensor];
  const auto first = SliceRuns(tensor.slices[planned.slice].slice).at(0).first;
  return tensor_start[planned.tensor] + static_cast<std::uint64_t>(first * dtype_bytes(tensor.dtype));
}

std::uint64_t SavePlan::bytes_of(const PlannedWrite& planned) const {
  const ManifestTensor& tensor = manifest.tensors[planned.tensor];
  return static_cast<std::uint64_t>(tensor.slices[planned.slice].slice.num_elements() * dtype_bytes(tensor.dtype));
}

SavePlan SavePlan::make(const std::vector<std::vector<SliceDescription>>& of_ranks, std::uint64_t max_file_bytes) {
  const HeldTensors tensors = collect(of_ranks);
  for (const auto& [key, tensor] : tensors) check_covered(tensor);
  SavePlan plan;
  plan.manifest.num_ranks = static_cast<int>(of_ranks.size());
  plan.of_rank.resize(of_ranks.size());
  const auto held = place_in_files(tensors, max_file_bytes, plan);
  std::vector<std::size_t> tensor_of;
  const auto slices = slices_to_share(plan, held, tensor_of);
  for (const WriterShare& share : share_out(slices)) {
    const SharedSlice& slice = slices[share.slice];
    const std::size_t tensor = tensor_of[share.slice];
    auto& listed = plan.manifest.tensors[tensor].slices;
    const int rank = slice.ranks[share.holder];
    plan.of_rank[static_cast<std::size_t>(rank)].push_back(
        {tensor, listed.size(), slice.held[share.holder], share.part.start});
    listed.push_back({rank, slice.slice.part(share.part), {}});
  }
  return plan;
}

}  // namespace tessera::checkpoints
