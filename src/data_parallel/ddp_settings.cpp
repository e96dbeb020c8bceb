#include "data_parallel/ddp_settings.h"

#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/data_parallel/gradient_hooks.h>
#include <tessera/shard/reproducible.h>

namespace tessera {

const FieldList<DdpOptions>& DdpOptions::fields() {
  static const FieldList<DdpOptions> list =
      FieldList<DdpOptions>("ddp")
          .add("bucket_bytes", &DdpOptions::bucket_bytes_, "Gradients of at least so many bytes travel together.")
          .add("first_bucket_bytes", &DdpOptions::first_bucket_bytes_, "The size of the bucket that is ready first.")
          .add("find_unused_parameters", &DdpOptions::find_unused_parameters_,
               "Allow parameters that get no gradient in a step.")
          .add("gradient_as_bucket_view", &DdpOptions::gradient_as_bucket_view_,
               "Gradients are views into the buckets: saves their memory and a copy.")
          .add("static_graph", &DdpOptions::static_graph_, "The graph is the same in every step.")
          .add("delay_all_reduce", &DdpOptions::delay_all_reduce_,
               "Reduce only when all gradients are there; gives up the overlap with backward.")
          .add("broadcast_buffers", &DdpOptions::broadcast_buffers_,
               "Before each forward in training, and after backward, every rank takes rank 0's buffers.")
          .add("init_sync", &DdpOptions::init_sync_, "At the start every rank takes rank 0's parameters and buffers.")
          .add_choice("compression", &DdpOptions::compression_, {"none", "fp16", "bf16", "int8", "powersgd"},
                      "How gradients travel.")
          .add("reproducible", &DdpOptions::reproducible_,
               "The same weights, bit for bit, on any power of two of ranks.")
          .add("micro_batches", &DdpOptions::micro_batches_,
               "With reproducible: the micro-batches of a step over all ranks, a power of two.")
          .add("num_threads", &DdpOptions::num_threads_, "With reproducible: the threads of each rank.");
  return list;
}

}  // namespace tessera

namespace tessera::data_parallel {
namespace {

void add_bucket_faults(const DdpOptions& options, std::string& faults) {
  if (options.bucket_bytes() <= 0) {
    faults += "\n  bucket_bytes is " + std::to_string(options.bucket_bytes()) + "; it must be above 0";
  }
  if (options.first_bucket_bytes() <= 0) {
    faults += "\n  first_bucket_bytes is " + std::to_string(options.first_bucket_bytes()) + "; it must be above 0";
  }
  if (options.delay_all_reduce() && options.find_unused_parameters()) {
    faults += "\n  delay_all_reduce takes a parameter without gradient as zero: leave find_unused_parameters off";
  }
  if (options.delay_all_reduce() && options.static_graph()) {
    faults += "\n  static_graph is for the overlap that delay_all_reduce gives up: choose one";
  }
  if (options.hook() && options.compression() != "none") {
    faults += "\n  a hook of one's own and compression \"" + options.compression() + "\" exclude each other";
  }
}

void add_reproducible_faults(const DdpOptions& options, const Communicator& comm, std::string& faults) {
  if (!options.reproducible()) {
    if (options.micro_batches() != 0) faults += "\n  micro_batches is for reproducible(true) only";
    if (options.num_threads() != 1) faults += "\n  num_threads is for reproducible(true) only";
    return;
  }
  faults += faults_of_tree(options.micro_batches(), comm.size());
  if (options.num_threads() < 1) faults += "\n  num_threads must be at least 1";
  if (options.hook() || options.compression() != "none") {
    faults += "\n  reproducible adds gradients along a tree of its own: it takes no hook and no compression";
  }
  if (options.static_graph() || options.delay_all_reduce()) {
    faults += "\n  static_graph and delay_all_reduce steer buckets, which reproducible mode does not use";
  }
}

}  // namespace

DdpSettings resolve(const DdpOptions& options, const Communicator& comm) {
  DdpOptions::fields().check(options);
  std::string faults;
  add_bucket_faults(options, faults);
  add_reproducible_faults(options, comm, faults);
  if (!faults.empty()) {
    throw ConfigError("the options of data parallelism cannot be met (rank " + std::to_string(comm.world_rank()) +
                      "):" + faults);
  }
  DdpSettings settings{};
  settings.bucket_bytes = options.bucket_bytes();
  settings.first_bucket_bytes = options.first_bucket_bytes();
  settings.find_unused_parameters = options.find_unused_parameters();
  settings.gradient_as_bucket_view = options.gradient_as_bucket_view();
  settings.static_graph = options.static_graph();
  settings.delay_all_reduce = options.delay_all_reduce();
  settings.broadcast_buffers = options.broadcast_buffers();
  settings.init_sync = options.init_sync();
  settings.hook = options.hook() ? options.hook() : make_gradient_hook(options.compression());
  settings.reproducible = options.reproducible();
  settings.micro_batches = options.micro_batches();
  settings.micro_batches_per_rank = options.micro_batches() / comm.size();
  settings.num_threads = static_cast<int>(options.num_threads());
  return settings;
}

ConfigError refusal_of_flags_changed_within(bool join, int world_rank) {
  return ConfigError(std::string("parameters were frozen or unfrozen ") +
                     (join ? "inside join()" : "between the micro-batches of a step") + " (rank " +
                     std::to_string(world_rank) + "): the gradients under way are those of others. Do it " +
                     (join ? "outside of it" : "between steps"));
}

}  // namespace tessera::data_parallel
