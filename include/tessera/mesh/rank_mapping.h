#pragma once

#include <tessera/comm/topology.h>
#include <tessera/mesh/axis_layout.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// How many ranks lie along each axis of a three-dimensional layout.
struct ThreeDSizes {
  int dp = 1;
  int tp = 1;
  int pp = 1;

  bool operator==(const ThreeDSizes&) const = default;
};

/// Where a rank lies in a three-dimensional layout.
struct ThreeDCoordinates {
  int dp = 0;
  int tp = 0;
  int pp = 0;  ///< the pipeline stage

  bool operator==(const ThreeDCoordinates&) const = default;
};

/// Rank to (dp, tp, pp) and back, with the neighbours and groups that follow from it. Pure arithmetic: nothing
/// communicates. Every function that takes a rank throws ConfigError when there is no such rank.
class RankMapping {
 public:
  /// `topology` is what the launcher said about nodes (`world.topology()`). `order` names the axes from the slowest to
  /// the fastest. Throws ConfigError for sizes below 1, a wrong order, or a topology of another number of ranks.
  RankMapping(const ThreeDSizes& sizes, Topology topology, const std::vector<std::string>& order = default_order());

  /// {"dp", "tp", "pp"}: neighbouring ranks are neighbouring stages of a pipeline.
  static std::vector<std::string> default_order() { return {"dp", "tp", "pp"}; }

  int num_ranks() const { return layout_.num_ranks(); }
  ThreeDSizes sizes() const;
  const AxisLayout& layout() const { return layout_; }

  ThreeDCoordinates coordinates(int rank) const;
  int rank_at(const ThreeDCoordinates& coordinates) const;

  /// The ranks that differ from `rank` only along `axis` ("dp", "tp" or "pp"), itself among them, by coordinate.
  std::vector<int> group_ranks(std::string_view axis, int rank) const;

  // ---- Along the pipeline -------------------------------------------------------------------------------------------

  bool is_pipeline_head(int rank) const { return coordinates(rank).pp == 0; }
  bool is_pipeline_tail(int rank) const { return coordinates(rank).pp == sizes().pp - 1; }
  /// All ranks of the first stage, ascending.
  std::vector<int> pipeline_heads() const;
  /// All ranks of the last stage, ascending.
  std::vector<int> pipeline_tails() const;
  /// The same dp and tp on the next stage; nothing at the tail.
  std::optional<int> next_pipeline_rank(int rank) const;
  /// The same dp and tp on the stage before; nothing at the head.
  std::optional<int> previous_pipeline_rank(int rank) const;

  // ---- On the machines ----------------------------------------------------------------------------------------------

  int node_of(int rank) const;
  /// The position of `rank` among the ranks of its node.
  int local_rank_of(int rank) const;

 private:
  std::vector<int> stage_ranks(int stage) const;
  std::optional<int> pipeline_neighbour(int rank, int distance) const;

  AxisLayout layout_;
  Topology topology_;
};

}  // namespace tessera
