#include <tessera/data_parallel/ddp_options.h>

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
