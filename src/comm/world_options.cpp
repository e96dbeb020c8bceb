#include <tessera/comm/world.h>

namespace tessera {

const FieldList<WorldOptions>& WorldOptions::fields() {
  static const FieldList<WorldOptions> list =
      FieldList<WorldOptions>("world")
          .add_choice("backend", &WorldOptions::backend_, {"auto", "threads", "shm", "gloo", "mpi", "nccl", "custom"},
                      "What carries the messages; auto takes shared memory inside a node and Gloo between nodes.")
          .add("timeout", &WorldOptions::timeout_, "How long a call may take before it fails.")
          .add("init_timeout", &WorldOptions::init_timeout_, "How long to wait for the other ranks at the start.")
          .add_choice("strategy", &WorldOptions::strategy_, {"allreduce", "ring", "tree", "hierarchical", "adaptive"},
                      "The algorithm of the world's communicator.")
          .add("interface", &WorldOptions::interface_,
               "Network interface or address for Gloo; empty takes the one that reaches the rendezvous.")
          .add("secret_file", &WorldOptions::secret_file_,
               "File with the job's secret, as `tessera secret` writes it; empty: what TESSERA_SECRET_FILE names.")
          .add("tuning_file", &WorldOptions::tuning_file_,
               "Table of the adaptive strategy, as `tessera bench comm --write-table` writes it; empty: built in.")
          .add("lost_after", &WorldOptions::lost_after_,
               "A rank without a sign of life for so long is lost, and the job ends; 0 watches nobody.")
          .add("slow_after", &WorldOptions::slow_after_, "A wait that takes longer is looked into, and reported.")
          .add("checked", &WorldOptions::checked_,
               "Compare operation, shape and dtype across ranks before each collective.");
  return list;
}

}  // namespace tessera
