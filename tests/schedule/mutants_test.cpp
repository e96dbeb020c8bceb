// Schedules that are certainly wrong, each made from a right one by one change, and all refused.
#include <tessera/schedule/check_schedule.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "schedule/shapes.h"

namespace tessera::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Kind = PipelineOperation::Kind;

struct Place {
  std::size_t rank = 0;
  std::size_t position = 0;
};

/// Changes the operation at a place; false if this change would not certainly be wrong there.
using Mutation = std::function<bool(PipelineSchedule&, const Place&)>;

std::vector<PipelineOperation>& list_of(PipelineSchedule& schedule, const Place& place) {
  return schedule.operations[place.rank];
}

PipelineOperation& operation_at(PipelineSchedule& schedule, const Place& place) {
  return list_of(schedule, place)[place.position];
}

/// Applies the mutation at every place of schedules of every kind, and checks each mutant. Returns how many there were.
int refuse_all(const Mutation& mutate, const std::string& expected = "") {
  int num_mutants = 0;
  for (const auto& [name, kind] : pipeline_schedule_names()) {
    const PipelineSchedule original = make_pipeline_schedule(kind, {3, 4});
    for (std::size_t rank = 0; rank < original.operations.size(); ++rank) {
      for (std::size_t position = 0; position < original.operations[rank].size(); ++position) {
        PipelineSchedule mutant = original;
        if (!mutate(mutant, {rank, position})) continue;
        ++num_mutants;
        const auto faults = check_schedule(mutant).faults;
        const PipelineOperation& operation = original.operations[rank][position];
        EXPECT_THAT(faults, Not(IsEmpty())) << name << ", rank " << rank << ", " << to_string(operation);
        EXPECT_THAT(faults, Each(HasSubstr(expected))) << name << ", rank " << rank << ", " << to_string(operation);
      }
    }
  }
  return num_mutants;
}

// Every operation is needed once: neither none nor two of it can be right.
TEST(Mutants, WithoutAnOperationAreRefused) {
  EXPECT_GE(refuse_all([](PipelineSchedule& mutant, const Place& place) {
              auto& list = list_of(mutant, place);
              list.erase(list.begin() + static_cast<std::ptrdiff_t>(place.position));
              return true;
            }),
            500);
}

TEST(Mutants, WithAnOperationTwiceAreRefused) {
  EXPECT_GE(refuse_all([](PipelineSchedule& mutant, const Place& place) {
              list_of(mutant, place).push_back(operation_at(mutant, place));
              return true;
            }),
            500);
}

// A list stands for a set of needed operations: one that is turned into another is missing, and the other is there
// twice or is none of the rank's.
TEST(Mutants, WithAnotherMicroBatchAreRefused) {
  EXPECT_GE(refuse_all([](PipelineSchedule& mutant, const Place& place) {
              int& micro_batch = operation_at(mutant, place).micro_batch;
              micro_batch = (micro_batch + 1) % mutant.num_micro_batches;
              return true;
            }),
            500);
  EXPECT_GE(refuse_all([](PipelineSchedule& mutant, const Place& place) {
              operation_at(mutant, place).micro_batch = -1;
              return true;
            }),
            500);
}

TEST(Mutants, WithAnotherStageAreRefused) {
  EXPECT_GE(refuse_all([](PipelineSchedule& mutant, const Place& place) {
              int& stage = operation_at(mutant, place).stage;
              stage = (stage + 1) % mutant.num_stages();
              return true;
            }),
            500);
}

TEST(Mutants, WithAnotherKindOfOperationAreRefused) {
  EXPECT_GE(refuse_all([](PipelineSchedule& mutant, const Place& place) {
              auto& kind = operation_at(mutant, place).kind;
              kind = static_cast<Kind>((static_cast<int>(kind) + 1) % 8);
              return true;
            }),
            500);
}

// The peer of a message follows from the placement.
TEST(Mutants, WithAnotherPeerAreRefused) {
  for (const int distance : {1, 2}) {
    EXPECT_GE(refuse_all([distance](PipelineSchedule& mutant, const Place& place) {
                PipelineOperation& operation = operation_at(mutant, place);
                operation.peer = (operation.peer + distance) % mutant.num_ranks();
                return true;
              }),
              500);
  }
}

TEST(Mutants, WithAnOperationOnAnotherRankAreRefused) {
  EXPECT_GE(refuse_all([](PipelineSchedule& mutant, const Place& place) {
              const PipelineOperation operation = operation_at(mutant, place);
              auto& list = list_of(mutant, place);
              list.erase(list.begin() + static_cast<std::ptrdiff_t>(place.position));
              mutant.operations[(place.rank + 1) % 3].push_back(operation);
              return true;
            }),
            500);
}

/// Whether the second needs what the first gives, both of one rank, by the definition of a pipeline.
bool needs(const PipelineOperation& second, const PipelineOperation& first) {
  if (first.micro_batch != second.micro_batch) return false;
  const auto is_input = [](Kind kind) { return kind == Kind::kBackward || kind == Kind::kBackwardInput; };
  if (first.stage == second.stage) {
    switch (second.kind) {
      case Kind::kForward:
        return first.kind == Kind::kRecvActivation;
      case Kind::kSendActivation:
        return first.kind == Kind::kForward;
      case Kind::kBackwardWeight:
        return first.kind == Kind::kBackwardInput || first.kind == Kind::kForward;
      case Kind::kSendGradient:
        return is_input(first.kind);
      default:
        return is_input(second.kind) && (first.kind == Kind::kForward || first.kind == Kind::kRecvGradient);
    }
  }
  const bool forwards = first.kind == Kind::kForward && second.kind == Kind::kForward;
  const bool backwards = is_input(first.kind) && is_input(second.kind);
  return (forwards && second.stage == first.stage + 1) || (backwards && second.stage == first.stage - 1);
}

// Exchanging two operations of which the second needs the first is wrong whatever lies between. Others may be
// exchanged.
TEST(Mutants, WithDependentOperationsExchangedAreRefused) {
  EXPECT_GE(refuse_all(
                [](PipelineSchedule& mutant, const Place& place) {
                  auto& list = list_of(mutant, place);
                  const auto later =
                      std::find_if(list.begin() + static_cast<std::ptrdiff_t>(place.position), list.end(),
                                   [&](const auto& other) { return needs(other, list[place.position]); });
                  if (later == list.end()) return false;
                  std::iter_swap(list.begin() + static_cast<std::ptrdiff_t>(place.position), later);
                  return true;
                },
                "which it needs"),
            300);
}

// A gradient comes back only after its activation was sent. The rank itself needs the gradient no sooner than before,
// so nothing but executing the lists shows the fault.
TEST(Mutants, ThatWaitForAGradientBeforeTheySendItsActivationAreRefused) {
  EXPECT_GE(refuse_all(
                [](PipelineSchedule& mutant, const Place& place) {
                  auto& list = list_of(mutant, place);
                  const PipelineOperation wanted = list[place.position];
                  if (wanted.kind != Kind::kRecvGradient) return false;
                  const PipelineOperation send{Kind::kSendActivation, wanted.micro_batch, wanted.stage, wanted.peer};
                  const auto sent = std::find(list.begin(), list.end(), send);
                  const auto received = list.begin() + static_cast<std::ptrdiff_t>(place.position);
                  std::rotate(sent, received, received + 1);
                  return true;
                },
                "deadlock"),
            60);
}

// In round robin the first rank sends micro-batch 1 only when micro-batch 0 is back: if the last rank wants the second
// one first, all wait for ever.
TEST(Mutants, ThatReceiveMicroBatchesTooEarlyAreRefused) {
  for (const int ranks : {2, 3, 5, 8}) {
    PipelineSchedule mutant = make_pipeline_schedule(PipelineScheduleKind::kRoundRobin, {ranks, 3});
    auto& list = mutant.operations.back();
    std::rotate(list.begin(), list.begin() + 4, list.begin() + 5);
    EXPECT_THAT(check_schedule(mutant).faults, Each(HasSubstr("deadlock")));
    EXPECT_THAT(check_schedule(mutant).faults, ::testing::SizeIs(static_cast<std::size_t>(ranks)));
  }
}

TEST(Mutants, WithAnotherPlacementAreRefused) {
  for (const auto& [name, kind] : pipeline_schedule_names()) {
    const PipelineSchedule original = make_pipeline_schedule(kind, {3, 4});
    for (std::size_t stage = 0; stage < original.rank_of_stage.size(); ++stage) {
      for (const int rank : {-1, 0, 1, 2, 3}) {
        PipelineSchedule mutant = original;
        mutant.rank_of_stage[stage] = rank;
        const bool is_same = rank == original.rank_of_stage[stage];
        EXPECT_EQ(check_schedule(mutant).faults.empty(), is_same) << name << ", stage " << stage << " on " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
