#include "comm/watch/hang_report.h"

#include <tessera/core/error.h>
#include <tessera/flight/clock.h>
#include <tessera/flight/process_state.h>
#include <tessera/flight/recorder.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <vector>

namespace tessera::comm {
namespace {

/// A rank that did not answer: what its host says of it, where that is this host, and what it recorded, if asked for.
flight::RankStatus unanswered(const JobKeys& keys, int rank, bool connection_broke, bool with_record) {
  flight::RankStatus status;
  status.rank = rank;
  const auto text = keys.store().try_get(keys.address(rank));
  if (!text) {
    status.condition = flight::RankCondition::kMissing;
    return status;
  }
  const RankAddress address = rank_address_from_json(*text);
  if (address.process_space != flight::process_space()) {
    // A process that ends closes its connections; a host that is cut off does not.
    status.condition = connection_broke ? flight::RankCondition::kDead : flight::RankCondition::kSilent;
    status.detail = "process " + std::to_string(address.process) + " on another host, at " + address.address;
    return status;
  }
  const flight::ProcessState state = flight::state_of_process(address.process);
  status.condition = state.condition;
  status.detail = state.detail;
  if (with_record) status.snapshot = flight::read_black_box(address.black_box);
  return status;
}

/// Whether no answer is to be expected: the process has ended or does not run.
bool cannot_answer(const JobKeys& keys, int rank) {
  const auto condition = unanswered(keys, rank, false, false).condition;
  return condition == flight::RankCondition::kDead || condition == flight::RankCondition::kStopped;
}

void wait_for_answers(const JobKeys& keys, int number, int size, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kLookEvery{50};
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) missing.push_back(rank);
  while (!missing.empty() && std::chrono::steady_clock::now() < deadline) {
    std::vector<std::string> expected;
    for (const int rank : missing) expected.push_back(keys.answer(number, rank));
    try {
      return keys.store().wait(expected, kLookEvery);
    } catch (const store::StoreTimeout&) {
      // Who has not answered is a part of the report, but who cannot is not waited for.
      std::erase_if(missing, [&](int rank) {
        return keys.store().check({keys.answer(number, rank)}) || cannot_answer(keys, rank);
      });
    }
  }
}

flight::RankStatus answered(int rank, const Answer& answer) {
  flight::RankStatus status;
  status.rank = rank;
  status.stack = answer.stack;
  status.snapshot = flight::snapshot_from_json(answer.snapshot);
  const auto& calls = status.snapshot->calls;
  // The call that failed and raised the alarm was waiting, too.
  const bool in_call = std::any_of(calls.begin(), calls.end(),
                                   [](const CallRecord& call) { return call.state == CallState::kStarted; }) ||
                       (!calls.empty() && calls.back().state == CallState::kFailed);
  status.condition = in_call ? flight::RankCondition::kWaiting : flight::RankCondition::kRunning;
  return status;
}

}  // namespace

flight::HangReport collect_report(const JobKeys& keys, int number, const Alarm& alarm, int size,
                                  std::chrono::milliseconds patience) {
  wait_for_answers(keys, number, size, patience);
  std::vector<std::optional<Answer>> answers;
  std::set<int> broken;
  for (int rank = 0; rank < size; ++rank) {
    const auto text = keys.store().try_get(keys.answer(number, rank));
    answers.push_back(text ? std::optional(answer_from_json(*text)) : std::nullopt);
    if (text) broken.insert(answers.back()->lost.begin(), answers.back()->lost.end());
  }
  std::vector<flight::RankStatus> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const auto& answer = answers[static_cast<std::size_t>(rank)];
    ranks.push_back(answer ? answered(rank, *answer) : unanswered(keys, rank, broken.contains(rank), true));
  }
  return flight::analyse(alarm.trigger, alarm.fatal(), flight::now_ns(), size, std::move(ranks));
}

void publish(const flight::HangReport& report, int number, const std::string& folder) {
  const std::string text = flight::to_text(report);
  // In one piece: the others write to the same terminal.
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  if (folder.empty()) return;
  const auto path = std::filesystem::path(folder) / ("hang_" + std::to_string(number) + ".json");
  std::ofstream file(path);
  file << flight::to_json(report);
  if (file.flush()) {
    std::fprintf(stderr, "tessera: this report as a file: tessera inspect hang %s\n", path.c_str());
  } else {
    std::fprintf(stderr, "tessera: the report cannot be written to %s\n", path.c_str());
  }
}

}  // namespace tessera::comm
