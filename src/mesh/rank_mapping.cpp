#include <tessera/core/error.h>
#include <tessera/mesh/rank_mapping.h>
#include "mesh/axis_names.h"

namespace tessera {
namespace {

using mesh::describe;

// The order of declaration, which the coordinates of the layout follow.
constexpr int kDp = 0;
constexpr int kTp = 1;
constexpr int kPp = 2;

}  // namespace

RankMapping::RankMapping(const ThreeDSizes& sizes, Topology topology, const std::vector<std::string>& order)
    : layout_({{"dp", sizes.dp}, {"tp", sizes.tp}, {"pp", sizes.pp}}, order), topology_(std::move(topology)) {
  if (topology_.num_ranks() != layout_.num_ranks()) {
    throw ConfigError("the layout " + describe(layout_.axes()) + " has " + std::to_string(layout_.num_ranks()) +
                      " ranks but the topology has " + std::to_string(topology_.num_ranks()) +
                      ": make the product of the sizes equal the number of ranks that the launcher started");
  }
}

ThreeDSizes RankMapping::sizes() const { return {layout_.size(kDp), layout_.size(kTp), layout_.size(kPp)}; }

ThreeDCoordinates RankMapping::coordinates(int rank) const {
  return {layout_.coordinate(kDp, rank), layout_.coordinate(kTp, rank), layout_.coordinate(kPp, rank)};
}

int RankMapping::rank_at(const ThreeDCoordinates& coordinates) const {
  return layout_.rank_at({coordinates.dp, coordinates.tp, coordinates.pp});
}

std::vector<int> RankMapping::group_ranks(std::string_view axis, int rank) const {
  return layout_.line(layout_.axis_index(axis), rank).ranks();
}

std::vector<int> RankMapping::pipeline_heads() const { return stage_ranks(0); }

std::vector<int> RankMapping::pipeline_tails() const { return stage_ranks(sizes().pp - 1); }

std::optional<int> RankMapping::next_pipeline_rank(int rank) const { return pipeline_neighbour(rank, 1); }

std::optional<int> RankMapping::previous_pipeline_rank(int rank) const { return pipeline_neighbour(rank, -1); }

int RankMapping::node_of(int rank) const {
  layout_.check_rank(rank);
  return topology_.node_of(rank);
}

int RankMapping::local_rank_of(int rank) const {
  layout_.check_rank(rank);
  return topology_.local_rank_of(rank);
}

std::vector<int> RankMapping::stage_ranks(int stage) const {
  return layout_.slice({kDp, kTp}, layout_.line(kPp, 0).rank_at(stage)).ranks();
}

std::optional<int> RankMapping::pipeline_neighbour(int rank, int distance) const {
  const int stage = layout_.coordinate(kPp, rank) + distance;
  if (stage < 0 || stage >= layout_.size(kPp)) {
    return std::nullopt;
  }
  return layout_.line(kPp, rank).rank_at(stage);
}

}  // namespace tessera
