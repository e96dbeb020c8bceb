#pragma once

#include <tessera/core/digest.h>
#include <tessera/intercept/operator_call.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "pipeline/stage_model.h"

namespace tessera::pp {

/// A value that a later stage needs.
struct CrossingValue {
  std::int64_t value = 0;
  Shape shape;
  std::string op;  ///< that made it, for reports

  std::int64_t num_bytes() const;
};

/// What a forward of one micro-batch does, as a run without bytes found it. The same on every rank.
struct ForwardPlan {
  /// For each stage but the last, what crosses to the stage after it, in the order of values.
  std::vector<std::vector<CrossingValue>> crossing;
  /// Parameters that stages of other ranks than their own take: places of the model's tensors, and these ranks.
  std::map<std::size_t, std::set<int>> shared;
  Shape loss;
  std::uint64_t digest = 0;  ///< of its operators
  std::int64_t num_operators = 0;
  bool draws = false;  ///< random numbers
  /// Parameters that operators of several stages, or of other ranks than their own, take: their places.
  std::set<std::size_t> spread;
};

/// Where an operator belongs.
struct Target {
  int stage = -1;                         ///< the greatest of its arguments'
  bool is_constant = true;                ///< it takes only buffers that nobody writes: the same on every rank
  std::vector<std::size_t> parameters{};  ///< it takes values of these alone
  bool is_of_function = false;            ///< a custom function gave one of them
};

/// What a run of a forward finds out about each operator before it runs, and refuses. The same on every rank.
class OperatorChecks {
 public:
  /// `plan`: what is expected of the run; null: it is to be found.
  OperatorChecks(StageModel& model, std::uint64_t run, const ForwardPlan* plan);

  Target target_of(intercept::OperatorCall& call);
  void check_writes(intercept::OperatorCall& call, int stage);
  /// Whether an operator writes to that argument though its schema does not say so, as norms do to running statistics.
  static bool writes_unsaid(intercept::OperatorCall& call, std::size_t argument);
  void note_readers(intercept::OperatorCall& call, int stage);
  void note_operator(intercept::OperatorCall& call, int stage);
  /// Something that an operator has made, with bytes or without.
  void note_value(const Shape& shape);
  void note_maker(std::int64_t value, const intercept::OperatorCall& call);

  /// Throws ConfigError when other operators ran than the plan has.
  void require_same_way(const ForwardPlan& plan) const;
  /// Whether a buffer is written that was thought to be the same on every rank.
  bool finds_new_writes() const { return finds_new_writes_; }
  /// At the end of a run without a plan.
  ForwardPlan take_found();

 private:
  void write_to_buffer(std::size_t place, int stage, const intercept::OperatorCall& call);
  void note_crossing(const at::Tensor& tensor, const StageData& data, int stage);
  void note_reader(std::size_t place, int stage);
  std::string maker_of(std::int64_t value) const;

  StageModel& model_;
  std::uint64_t run_;
  const ForwardPlan* plan_;
  bool is_dry_;
  Digest digest_;
  std::int64_t num_operators_ = 0;
  ForwardPlan found_;
  std::unordered_map<std::int64_t, std::string> makers_;
  std::map<std::size_t, std::set<int>> readers_;    // of this run
  std::map<std::size_t, std::set<int>> functions_;  // stages that take what a custom function made of a parameter
  bool finds_new_writes_ = false;
};

}  // namespace tessera::pp
