#pragma once

#include <tessera/core/options.h>

#include <chrono>
#include <string>

namespace tessera {

/// Which cores a rank may use. kAuto: kNuma on a machine with several NUMA nodes, else kNone.
enum class Binding { kAuto, kNone, kCore, kNuma };

/// The options of `tessera run`.
struct RunOptions {
  /// Ranks on this node: a number; "cpu" for one a core; "auto" for one a GPU, or a core where there is no GPU.
  TESSERA_ARG(std::string, nproc_per_node) = "1";
  /// Nodes of the job. With more than 1, a launcher is started on each, all with the same rdzv_endpoint and secret.
  TESSERA_ARG(int, nnodes) = 1;
  /// This node's number, from 0.
  TESSERA_ARG(int, node_rank) = 0;
  /// One node: HOST:PORT where rank 0 may listen. Empty: the loopback address and a free port. Set it when something
  /// outside the job has to know the port. Several nodes: where the launcher of node 0 listens for the others.
  TESSERA_ARG(std::string, rdzv_endpoint) = "";
  /// The two halves of rdzv_endpoint, as torchrun also calls them.
  TESSERA_ARG(std::string, master_addr) = "";
  TESSERA_ARG(int, master_port) = 0;
  /// How often a failed job is started again. Raise it for programs that go on from a checkpoint.
  TESSERA_ARG(int, max_restarts) = 0;
  /// Where each rank's output is kept, below attempt_K/rank_R. Empty: nowhere.
  TESSERA_ARG(std::string, log_dir) = "";
  /// What also goes to the console: 0 nothing, 1 standard output, 2 standard error, 3 both. Below 3 it needs log_dir:
  /// output that goes nowhere is lost.
  TESSERA_ARG(int, tee) = 3;
  /// The cores of each rank, out of those that the launcher itself may use.
  TESSERA_ARG(Binding, bind) = Binding::kAuto;
  /// How long ranks have to end after a signal before they are killed. Raise it for ranks that save their state then.
  TESSERA_ARG(std::chrono::milliseconds, grace) = std::chrono::seconds(5);
  /// The key that the nodes of one job prove to each other, as `tessera secret` makes it. Needed for several nodes,
  /// refused for one.
  TESSERA_ARG(std::string, secret_file) = "";
  /// How long the nodes of a job wait until all of them are there. Raise it where nodes are given one after another.
  TESSERA_ARG(std::chrono::milliseconds, rdzv_timeout) = std::chrono::minutes(5);

 public:
  static const FieldList<RunOptions>& fields();
};

}  // namespace tessera
