#include "checkpoint/process/numbered_state.h"

#include <tessera/checkpoint/held_slice.h>
#include <tessera/shard/partition.h>

#include <ATen/ATen.h>

#include <variant>
#include <vector>

namespace tessera::testing {
namespace {

constexpr std::int64_t kRows = 511;
constexpr std::int64_t kColumns = 1537;
constexpr std::int64_t kBoxRows = 256;
constexpr std::int64_t kBoxColumns = 301;

/// Numbers that a double and a float hold exactly.
at::Tensor numbers(std::int64_t count, std::int64_t step, std::int64_t version, at::ScalarType type) {
  return (at::arange(count, at::kDouble) + static_cast<double>(8 * step + version)).to(type);
}

RankState part_of(int rank, int size, std::int64_t step, std::int64_t version) {
  const std::int64_t count = kRows * kColumns;
  const Range extent = Partition(count, size).of(rank);
  const Range columns = Partition(kBoxColumns, size).of(rank);
  const at::Tensor box = numbers(kBoxRows * kBoxColumns, step, version, at::kFloat).view({kBoxRows, kBoxColumns});
  RankState state;
  state.slices = {
      {{"extents", Slice::extent({kRows, kColumns}, extent),
        numbers(count, step, version, at::kDouble).narrow(0, extent.start, extent.size).clone()},
       "model"},
      {{"boxes", Slice::whole({kBoxRows, kBoxColumns}).narrow(1, columns),
        box.narrow(1, columns.start, columns.size).contiguous()},
       "optimizer"},
      whole_slice("training", "whole", numbers(37, step, version, at::kLong)),
  };
  state.values["version"] = version;
  return state;
}

std::string other_numbers(const SavedStep& step, const RankState& expected) {
  std::string faults;
  std::vector<HeldSlice> found = expected.slices;
  for (HeldSlice& slice : found) slice.values = at::zeros_like(slice.values);
  read_slices(step, found);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!at::equal(found[i].values, expected.slices[i].values)) faults += found[i].name + " is of another step\n";
  }
  return faults;
}

}  // namespace

RankState numbered_state(const World& world, std::int64_t step, std::int64_t version) {
  return part_of(world.rank(), world.size(), step, version);
}

std::int64_t version_of(const SavedStep& step) { return std::get<std::int64_t>(step.manifest().values.at("version")); }

std::string faults_of(const SavedStep& step) {
  std::string faults;
  for (const std::string& fault : step.verify()) faults += fault + "\n";
  return faults.empty() ? other_numbers(step, part_of(0, 1, step.manifest().step, version_of(step))) : faults;
}

std::string faults_of_part(const World& world, const SavedStep& step) {
  return other_numbers(step, numbered_state(world, step.manifest().step, version_of(step)));
}

}  // namespace tessera::testing
