#include <tessera/checkpoint/checkpoint_options.h>

namespace tessera {

const FieldList<CheckpointOptions>& CheckpointOptions::fields() {
  static const FieldList<CheckpointOptions> list =
      FieldList<CheckpointOptions>("checkpoint")
          .add("keep_last", &CheckpointOptions::keep_last_, "How many of the newest steps stay; 0: all.")
          .add("keep_every", &CheckpointOptions::keep_every_,
               "Steps whose number is a multiple of it stay for good; 0: none.")
          .add("asynchronous", &CheckpointOptions::asynchronous_,
               "Train on while the disk is written; costs memory for up to two copies of what a rank writes.")
          .add("max_file_bytes", &CheckpointOptions::max_file_bytes_,
               "Tensors of more bytes than this are spread over several files with an index.")
          .add("patience", &CheckpointOptions::patience_,
               "How long ranks wait for each other when they have written or loaded their part.")
          .add_choice("progress", &CheckpointOptions::progress_, {"auto", "off"},
                      "auto: on a terminal, a line that shows how far a save or a load is.");
  return list;
}

}  // namespace tessera
