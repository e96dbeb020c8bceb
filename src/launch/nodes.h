#pragma once

#include <tessera/flight/hang_report.h>

#include <string>
#include <vector>

#include "launch/agreement.h"
#include "launch/event_log.h"
#include "launch/run_plan.h"

namespace tessera::launch {

/// The other nodes of a job, as the launcher of one sees them. No function but leave() waits for the network.
class Nodes {
 public:
  /// Introduces this node. Requires: on node 0 the store serves, and `plan` has the master port.
  explicit Nodes(const RunPlan& plan);

  const Agreement& agreement() const { return agreement_; }

  /// Readable when there is news.
  int descriptor() const { return log_.descriptor(); }
  void take_news();

  void tell(const std::string& event) { log_.append(event); }
  /// Ends with everything told; without it the other nodes take this one for lost.
  void leave() { log_.leave(); }

  /// Why a generation came to its end, or the job did in it, for the end of "the job failed because". The generation
  /// is named because the log may have gone on. Requires: one of them did.
  std::string cause(int generation) const;
  /// What is known of the ranks elsewhere that have to do with it.
  std::vector<flight::RankStatus> ranks_to_blame(int generation) const;

 private:
  Agreement agreement_;
  EventLog log_;
};

}  // namespace tessera::launch
