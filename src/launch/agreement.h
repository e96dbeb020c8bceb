#pragma once

#include <tessera/flight/hang_report.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/event_log.h"
#include "launch/run_plan.h"

namespace tessera::launch {

/// A launcher of the job, as it introduces itself.
struct Node {
  int node_rank = 0;
  int num_nodes = 1;
  int num_ranks = 1;
  int master_port = 0;  ///< set on node 0 alone
  std::string id;       ///< of this process; no other launcher has the same
  std::string host;
};

/// Why a generation of the job is over: a rank that failed, or could not be started.
struct Failure {
  int node_rank = 0;
  int rank = -1;  ///< -1: the program could not be started
  int exit_code = 1;
  bool is_final = false;  ///< a restart would fail again
  std::string meaning;    ///< "exited with code 3 (...)"
};

/// Why the whole job is over.
struct Ending {
  int exit_code = 0;
  int signal = 0;      ///< that a launcher got, to be sent to the ranks
  int lost_node = -1;  ///< whose launcher vanished without leaving in order
  std::string text;    ///< for people; empty when the nodes ended the job in order
};

/// Note [One log for all launchers]
/// The launchers of a job agree by a log in its store: each appends what happens on its node, and all read all entries
/// in the same order. From these, each launcher computes by itself which failure was first, which generation runs and
/// when it is over, so all come to the same result. Only node 0 decides what needs a clock, and it appends its
/// decisions to the log too.
///
/// This class is what a launcher has concluded from the log. Pure: it sends nothing and waits for nothing.
class Agreement {
 public:
  explicit Agreement(Node own);

  /// The texts of the events that a log can hold.
  static std::string joined(const Node& node);
  static std::string failed(int generation, const Failure& failure);
  static std::string done(int generation, int node_rank);
  static std::string restarted(int generation);
  static std::string over(int exit_code);
  static std::string signalled(int node_rank, int signal);
  static std::string lost(const std::string& tag) { return "lost " + tag; }
  static std::string gave_up();
  /// What the store publishes about a node whose connection ends.
  static std::string tag(const Node& node) { return std::to_string(node.node_rank) + " " + node.id; }

  /// To be called in the order of the log. Ignores events that it does not know or that belong to another generation.
  void take(const std::string& event);
  /// To be called when the log itself cannot be read any more.
  void take_disconnection(const std::string& why, int exit_code);

  /// Why this launcher has no place in the job; empty while it has.
  const std::string& refusal() const { return refusal_; }
  /// All nodes have come, and this launcher is one of them.
  bool all_present() const { return missing().empty() && is_member(own_.node_rank, own_.id); }
  std::vector<int> missing() const;

  /// Requires: all_present(), as the next two.
  int first_rank(int node_rank) const;
  int num_ranks(int node_rank) const { return nodes_[static_cast<std::size_t>(node_rank)]->num_ranks; }
  int world_size() const { return first_rank(own_.num_nodes); }
  int master_port() const { return nodes_[0]->master_port; }

  int generation() const { return generation_; }
  /// The first failure of a generation; null while there is none.
  const Failure* failure(int generation) const;
  /// No node has ranks of this generation any more.
  bool all_done() const { return static_cast<int>(done_.size()) == own_.num_nodes; }
  const std::optional<Ending>& ending() const { return ending_; }

  const Node& own() const { return own_; }
  /// "node 1 (gpu-17)"
  std::string title(int node_rank) const;

 private:
  void take_join(const Node& node);
  void refuse(const Node& node, const std::string& why);
  void end(Ending ending);
  bool is_member(int node_rank, const std::string& id) const;

  Node own_;
  std::vector<std::optional<Node>> nodes_;  ///< by node rank
  std::vector<Node> early_;                 ///< joined before node 0, with which they are to be compared
  std::string refusal_;
  int generation_ = 0;
  std::map<int, Failure> failures_;  ///< by generation
  std::set<int> done_;
  std::optional<Ending> ending_;
};

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
  /// Leaves after all own events are in the log; without it, the other nodes regard this one as lost.
  void leave() { log_.leave(); }

  /// Why a generation failed, or why the job ended in it, to complete "the job failed because". The caller names the
  /// generation because the log may already be in the next one. Requires: the generation failed, or the job ended.
  std::string cause(int generation) const;
  /// What is known about the ranks of other nodes that caused it.
  std::vector<flight::RankStatus> ranks_to_blame(int generation) const;

 private:
  Agreement agreement_;
  EventLog log_;
};

}  // namespace tessera::launch
