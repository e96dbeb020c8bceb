#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tessera::launch {

/// A launcher of the job, as it introduces itself.
struct Node {
  int node_rank = 0;
  int num_nodes = 1;
  int num_ranks = 1;
  int master_port = 0;  ///< told by node 0 alone
  std::string id;       ///< of this one process: no other launcher has it
  std::string host;
};

/// Why a generation of the job is over: a rank that failed, or could not be started.
struct Failure {
  int node_rank = 0;
  int rank = -1;  ///< -1: the program could not be started
  int exit_code = 1;
  bool is_final = false;  ///< nothing would change if it were tried again
  std::string meaning;    ///< "exited with code 3 (...)"
};

/// Why the whole job is over.
struct Ending {
  int exit_code = 0;
  int signal = 0;      ///< that a launcher got, and that ranks should get
  int lost_node = -1;  ///< whose launcher went without a word
  std::string text;    ///< for people; empty when all went as announced
};

/// Note [One log for all launchers]
/// The launchers of a job agree by a log in its store: each appends what happens on its node, and all read everything
/// in the same order. What follows from it is computed here, by each for itself, so all come to the same: who was
/// first, which generation runs, when it is over. Only what needs a clock is decided by node 0, and told like all else.
///
/// This class is what a launcher has understood from the log. Pure: nothing is sent or waited for.
class Agreement {
 public:
  explicit Agreement(Node own);

  /// The texts of what can be told.
  static std::string joined(const Node& node);
  static std::string failed(int generation, const Failure& failure);
  static std::string done(int generation, int node_rank);
  static std::string restarted(int generation);
  static std::string over(int exit_code);
  static std::string signalled(int node_rank, int signal);
  static std::string lost(const std::string& tag) { return "lost " + tag; }
  static std::string gave_up();
  /// What the store shall say of a node whose connection ends.
  static std::string tag(const Node& node) { return std::to_string(node.node_rank) + " " + node.id; }

  /// In the order of the log. What makes no sense, or is of an earlier generation, is passed over.
  void take(const std::string& event);
  /// The log itself cannot be read any more.
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
  /// The first of a generation; null while there is none.
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
  std::vector<Node> early_;                 ///< came before node 0, which they are compared with
  std::string refusal_;
  int generation_ = 0;
  std::map<int, Failure> failures_;  ///< by generation
  std::set<int> done_;
  std::optional<Ending> ending_;
};

}  // namespace tessera::launch
