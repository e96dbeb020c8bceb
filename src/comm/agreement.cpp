#include "comm/agreement.h"

#include <tessera/core/error.h>
#include <tessera/flight/hang_report.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace tessera::comm {
namespace {

constexpr std::int64_t kNoteBytes = 1024;

at::Tensor note_of(const std::string& text) {
  const at::Tensor note = at::zeros({kNoteBytes}, at::kByte);
  std::memcpy(note.mutable_data_ptr(), text.data(), std::min<std::size_t>(text.size(), kNoteBytes - 1));
  return note;
}

std::vector<flight::RankStatus> exchange(Group& group, const CallRecord& call) {
  flight::Snapshot own;
  own.groups.push_back({group.name(), group.size(), group.ranks()});
  own.calls.push_back(call);
  at::Tensor mine = note_of(flight::to_json(own));
  at::Tensor all = at::empty({kNoteBytes * group.size()}, at::kByte);
  group.backend(CommunicationStrategy::kAllReduce, kNoteBytes)._allgather_base(all, mine, {})->wait(kNoTimeout);
  std::vector<flight::RankStatus> ranks;
  for (int rank = 0; rank < group.size(); ++rank) {
    flight::RankStatus status;
    status.rank = group.ranks()[static_cast<std::size_t>(rank)];
    status.snapshot = flight::snapshot_from_json(
        reinterpret_cast<const char*>(all.const_data_ptr<std::uint8_t>() + kNoteBytes * rank));
    // The members' counters may differ by a call that one skipped; what they are about to do is what is compared.
    status.snapshot->calls.front().sequence = call.sequence;
    ranks.push_back(std::move(status));
  }
  return ranks;
}

}  // namespace

void require_agreement(Group& group, const CallRecord& call) {
  const auto report = flight::analyse("", true, 0, group.size(), exchange(group, call));
  if (report.findings.empty()) return;
  const flight::Finding& finding = report.findings.front();
  std::string text = finding.what;
  for (const std::string& detail : finding.details) text += "; " + detail;
  throw ConfigError(text + "; " + finding.advice);
}

}  // namespace tessera::comm
