#include "checkpoint/plan/save_plan.h"

#include <tessera/checkpoint/safetensors_index.h>
#include <tessera/core/error.h>
#include <tessera/disk/checksum.h>
#include <tessera/shard/slice.h>
#include <tessera/shard/slice_cover.h>
#include <tessera/shard/slice_runs.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "checkpoint/format/safetensors_header.h"

namespace tessera::checkpoints {
namespace {

std::uint64_t tensor_bytes(const StoredTensor& tensor) {
  return static_cast<std::uint64_t>(num_elements_of(tensor.shape) * dtype_bytes(tensor.dtype));
}

std::vector<std::vector<StoredTensor>> divide(std::vector<StoredTensor> tensors, std::uint64_t max_file_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<std::vector<StoredTensor>> files(1);
  std::uint64_t in_file = 0;
  for (StoredTensor& tensor : tensors) {
    const std::uint64_t size = tensor_bytes(tensor);
    if (!files.back().empty() && in_file + size > max_file_bytes) {
      files.emplace_back();
      in_file = 0;
    }
    in_file += size;
    files.back().push_back(std::move(tensor));
  }
  return files;
}

/// The names of a model's files, for another group.
std::string named_for(const std::string& group, std::string_view file) {
  constexpr std::string_view kModel = "model";
  return group + std::string(file.substr(kModel.size()));
}

}  // namespace

std::vector<GroupFile> files_of_group(const std::string& group, std::vector<StoredTensor> tensors,
                                      std::uint64_t max_file_bytes, const SafetensorsLayout::Metadata& metadata,
                                      std::uint64_t alignment) {
  auto parts = divide(std::move(tensors), max_file_bytes);
  std::vector<GroupFile> files;
  SafetensorsIndex index;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string name = named_for(group, shard_name(i, parts.size()));
    auto layout = SafetensorsLayout::plan(std::move(parts[i]), metadata, alignment);
    for (const StoredTensor& tensor : layout.tensors()) index.file_of.emplace(tensor.name, name);
    index.num_bytes += layout.num_data_bytes();
    files.push_back({name, layout.num_file_bytes(), layout.header(), std::move(layout)});
  }
  if (files.size() == 1) return files;
  std::string text = index.to_json();
  files.push_back({named_for(group, kIndexFileName), text.size(), std::move(text), std::nullopt});
  return files;
}

namespace {

// Cuts lie at multiples of it in the file, so that no two ranks write into one page.
constexpr std::uint64_t kPage = 4096;

std::uint64_t slice_bytes(const SharedSlice& slice) {
  return static_cast<std::uint64_t>(slice.slice.num_elements() * slice.element_bytes);
}

/// The bytes that one set of ranks holds, end to end, and how they are cut.
struct Sequence {
  std::uint64_t num_bytes = 0;
  std::uint64_t done = 0;

  // The products stay below 64 bits up to a petabyte on 8,000 ranks.
  /// Which of `num_parts` equal parts holds this byte.
  std::size_t part_of(std::uint64_t byte, std::size_t num_parts) const { return byte * num_parts / num_bytes; }
  /// The first byte of a part.
  std::uint64_t start_of(std::size_t part, std::size_t num_parts) const {
    return (num_bytes * part + num_parts - 1) / num_parts;
  }
};

/// Cuts an extent where the parts of the sequence end.
void cut_extent(const SharedSlice& slice, std::size_t index, const Sequence& sequence,
                std::vector<WriterShare>& shares) {
  const std::size_t num_parts = slice.ranks.size();
  const std::uint64_t size = slice_bytes(slice);
  std::uint64_t begin = 0;
  while (begin < size) {
    const std::size_t part = sequence.part_of(sequence.done + begin, num_parts);
    std::uint64_t end = size;
    if (part + 1 < num_parts && sequence.start_of(part + 1, num_parts) < sequence.done + size) {
      const std::uint64_t cut = slice.file_offset + sequence.start_of(part + 1, num_parts) - sequence.done;
      end = std::min((cut + kPage - 1) / kPage * kPage - slice.file_offset, size);
    }
    const auto first = static_cast<std::int64_t>(begin) / slice.element_bytes;
    const auto count = static_cast<std::int64_t>(end - begin) / slice.element_bytes;
    shares.push_back({index, part, {first, count}});
    begin = end;
  }
}

}  // namespace

std::vector<WriterShare> share_out(const std::vector<SharedSlice>& slices) {
  std::map<std::vector<int>, Sequence> sequences;
  for (const SharedSlice& slice : slices) sequences[slice.ranks].num_bytes += slice_bytes(slice);
  std::vector<WriterShare> shares;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const SharedSlice& slice = slices[i];
    Sequence& sequence = sequences[slice.ranks];
    if (slice.slice.as_extent()) {
      cut_extent(slice, i, sequence, shares);
    } else {
      const std::uint64_t middle = sequence.done + slice_bytes(slice) / 2;
      shares.push_back({i, sequence.part_of(middle, slice.ranks.size()), {0, slice.slice.num_elements()}});
    }
    sequence.done += slice_bytes(slice);
  }
  return shares;
}

namespace {

// Tensors begin at a page: large ones then go to the disk without a copy.
constexpr std::uint64_t kDataAlignment = 4096;

struct Holder {
  int rank = 0;
  std::size_t held = 0;
};

/// One tensor, and which ranks hold which part of it.
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

/// Fills in files and tensors; returns the holders of each tensor of the manifest.
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

/// The slices in the order of the tensors, which is that of the files; `tensor_of` receives the tensor of each slice.
std::vector<SharedSlice> slices_to_share(const SavePlan& plan, const std::vector<const HeldTensor*>& held,
                                         std::vector<std::size_t>& tensor_of) {
  std::vector<SharedSlice> slices;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const std::int64_t element_bytes = dtype_bytes(held[i]->described->dtype);
    for (const auto& [slice, holders] : held[i]->slices) {
      SharedSlice shared{slice, plan.tensor_start[i], element_bytes, {}, {}};
      if (const auto extent = slice.as_extent()) {
        shared.file_offset += static_cast<std::uint64_t>(extent->start * element_bytes);
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
