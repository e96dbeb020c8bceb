#pragma once

#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fsdp_options.h>
#include <tessera/pipeline/pipeline_options.h>

#include <cstdint>
#include <string>

#include "fsdp/random_models/dice.h"

namespace tessera::testing {

enum class Layout { kDdp, kFsdp };

/// How a program's model is spread over ranks.
struct Config {
  Layout layout = Layout::kDdp;
  int num_ranks = 1;
  int tp = 1;                      ///< how many ranks share each layer
  int pp = 0;                      ///< how many ranks have stages of a pipeline; 0: there is no pipeline
  bool is_bare = false;            ///< of a pipeline: nobody shares the stages
  int num_replicas = 1;            ///< of a model that is sharded
  std::int64_t wrap_elements = 0;  ///< modules with so many are units; 0: only the model
  std::string device_type;         ///< of the ranks; "": the CPU
  bool is_wrapped = false;         ///< a wrapper's forward is called, not the model's
  std::string oddity;              ///< of the model, see oddities.h; "": none
  bool keeps_views = false;        ///< of parameters, from before it is spread
  bool has_hook = false;           ///< gradients travel by a hook of the program's own
  std::string in_files;  ///< of a model in shards: "parameters", "states", "parameters and states"; "": nothing
  DdpOptions ddp;
  FsdpOptions fsdp;
  PipelineOptions pipeline;

  bool has_stages() const { return pp > 0; }
  int num_sharing_a_batch() const { return has_stages() ? tp * pp : tp; }
  /// How many ranks have batches of their own.
  int num_parts() const { return num_ranks / num_sharing_a_batch(); }
  int part_of(int rank) const { return rank / num_sharing_a_batch(); }
  bool is_ddp() const { return layout == Layout::kDdp; }
  bool is_fsdp() const { return layout == Layout::kFsdp; }
  bool is_reproducible() const { return is_ddp() ? ddp.reproducible() : fsdp.reproducible(); }
  /// Whether a parameter without a gradient has none for the optimizer. In a vector for each unit, in reproducible
  /// mode and with delay_all_reduce it has zeros, as the guides say, which only plain SGD takes for none.
  bool trains_parameters() const {
    return !is_reproducible() && (is_ddp() ? !ddp.delay_all_reduce() : fsdp.use_orig_params());
  }
  /// Nothing about the model itself may be refused.
  bool is_plain() const { return oddity.empty() && !keeps_views && !is_reproducible(); }
  void make_plain() {
    oddity.clear();
    keeps_views = false;
    if (ddp.reproducible()) ddp.reproducible(false).micro_batches(0).find_unused_parameters(true);
    fsdp.reproducible(false).micro_batches(0);
  }
  /// What parse() reads back: "fsdp, num_ranks 2, strategy zero1".
  std::string text() const;
  static Config parse(const std::string& text);
};

/// `cuts_shards`: also tensor parallelism of models in shards.
Config draw_config(Dice& dice, int num_ranks, bool cuts_shards);
/// The same with parameters or states in files, if it has shards.
void put_in_files(Dice& dice, Config& config);
/// The same with a model on the stages of a pipeline, alone, copied or sharded, and with layers that are cut.
void put_on_stages(Dice& dice, Config& config);

}  // namespace tessera::testing
