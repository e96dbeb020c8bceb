#include <tessera/train/sampler_options.h>

namespace tessera {

const FieldList<SamplerOptions>& SamplerOptions::fields() {
  static const FieldList<SamplerOptions> list =
      FieldList<SamplerOptions>("sampler")
          .add_choice("order", &SamplerOptions::order_, {"shuffled", "sequential"},
                      "Another order in each epoch, or as the samples lie.")
          .add("seed", &SamplerOptions::seed_, "Another seed is another order.")
          .add("global_batch", &SamplerOptions::global_batch_, "Samples of a step over all ranks.")
          .add_choice("split", &SamplerOptions::split_, {"contiguous", "strided"},
                      "Which samples of a global batch a rank takes: a stretch, or every n-th.")
          .add_choice("last_batch", &SamplerOptions::last_batch_, {"drop", "keep"},
                      "Samples at an epoch's end that fill no batch: left out, or a shorter batch.");
  return list;
}

}  // namespace tessera
