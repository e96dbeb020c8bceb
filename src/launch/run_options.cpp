#include <tessera/launch/run_options.h>

namespace tessera {

const FieldList<RunOptions>& RunOptions::fields() {
  static const FieldList<RunOptions> list =
      FieldList<RunOptions>("run")
          .add("nproc_per_node", &RunOptions::nproc_per_node_,
               "Ranks on this node: a number, cpu (one a core) or auto (one a GPU, or a core where there is no GPU).")
          .add("nnodes", &RunOptions::nnodes_, "Nodes of the job; a launcher is started on each of them.")
          .add("node_rank", &RunOptions::node_rank_, "This node's number, from 0.")
          .add("rdzv_endpoint", &RunOptions::rdzv_endpoint_,
               "HOST:PORT of node 0, where the nodes meet. With one node: where rank 0 may listen; empty: the loopback "
               "address and a free port.")
          .add("master_addr", &RunOptions::master_addr_, "The host of rdzv_endpoint, by itself.")
          .add("master_port", &RunOptions::master_port_, "The port of rdzv_endpoint, by itself; 0: a free one.")
          .add("max_restarts", &RunOptions::max_restarts_, "How often a failed job is started again.")
          .add("log_dir", &RunOptions::log_dir_,
               "Keep each rank's output in attempt_K/rank_R/stdout.log and stderr.log below this folder.")
          .add("tee", &RunOptions::tee_,
               "What also goes to the console: 0 nothing, 1 standard output, 2 standard error, 3 both; below 3 only "
               "with log_dir.")
          .add_enum(
              "bind", &RunOptions::bind_,
              {{"auto", Binding::kAuto}, {"none", Binding::kNone}, {"core", Binding::kCore}, {"numa", Binding::kNuma}},
              "The cores of each rank, out of the launcher's own; auto: numa with several NUMA nodes, else none.")
          .add("grace", &RunOptions::grace_, "How long ranks have to end after a signal before they are killed.")
          .add(
              "secret_file", &RunOptions::secret_file_,
              "The key that the nodes of one job prove to each other (tessera secret FILE); refused while nnodes is 1.")
          .add("rdzv_timeout", &RunOptions::rdzv_timeout_, "How long nodes wait until all of them are there.");
  return list;
}

}  // namespace tessera
