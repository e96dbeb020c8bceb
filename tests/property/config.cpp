#include "property/config.h"

#include <sstream>
#include <stdexcept>
#include <vector>

#include "property/oddities.h"

namespace tessera::testing {
namespace {

/// The options that are not the default's.
template <class Options>
std::string changes_of(const Options& options, const std::string& prefix = "") {
  const Options usual;
  std::string text;
  for (const auto& field : Options::fields().fields()) {
    const std::string value = Options::fields().get_text(options, field.key);
    if (value != Options::fields().get_text(usual, field.key)) text += ", " + prefix + field.key + " " + value;
  }
  return text;
}

DdpOptions draw_ddp(Dice& dice) {
  DdpOptions options;
  options.find_unused_parameters(true);  // random models leave parameters out
  options.bucket_bytes(dice.pick(std::vector<std::int64_t>{64, 400, std::int64_t{25} << 20}));
  options.first_bucket_bytes(dice.pick(std::vector<std::int64_t>{64, std::int64_t{1} << 20}));
  options.gradient_as_bucket_view(dice.chance(70));
  options.broadcast_buffers(dice.chance(80));
  options.init_sync(dice.chance(80));
  if (dice.chance(10)) {
    options.find_unused_parameters(false);
    options.delay_all_reduce(true);
  }
  return options;
}

FsdpOptions draw_fsdp(Dice& dice) {
  FsdpOptions options;
  options.strategy(dice.pick(std::vector<ShardingStrategy>{ShardingStrategy::kFullShard, ShardingStrategy::kFullShard,
                                                           ShardingStrategy::kShardGradOp, ShardingStrategy::kZero1,
                                                           ShardingStrategy::kNoShard}));
  options.min_num_params(dice.pick(std::vector<std::int64_t>{0, 10, 40}));
  options.backward_prefetch(dice.pick(
      std::vector<BackwardPrefetch>{BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone}));
  options.forward_prefetch(dice.chance(70));
  options.limit_all_gathers(dice.chance(50));
  options.use_orig_params(dice.chance(40));
  options.init_sync(dice.chance(80));
  options.broadcast_buffers(dice.chance(80));
  options.shared_copy(dice.chance(50));
  options.max_unit_bytes(dice.pick(std::vector<std::int64_t>{std::int64_t{32} << 20, 100, 1}));
  return options;
}

bool read_number(const std::string& text, const std::string& name, auto& number) {
  if (text.rfind(name + " ", 0) != 0) return false;
  number = static_cast<std::remove_reference_t<decltype(number)>>(std::stoll(text.substr(name.size() + 1)));
  return true;
}

}  // namespace

namespace {

/// Tensor parallelism, which some of the above excludes.
void share_layers(Config& config, int tp) {
  config.make_plain();
  config.tp = tp;
  config.num_replicas = 1;
  if (config.fsdp.strategy() == ShardingStrategy::kHybridShard) config.fsdp.strategy(ShardingStrategy::kFullShard);
}

}  // namespace

Config draw_config(Dice& dice, int num_ranks, bool cuts_shards) {
  Config config;
  config.num_ranks = num_ranks;
  config.layout = dice.chance(40) ? Layout::kDdp : Layout::kFsdp;
  config.ddp = draw_ddp(dice);
  config.fsdp = draw_fsdp(dice);
  config.wrap_elements = dice.chance(70) ? 1 + dice.below(150) : 0;
  config.is_wrapped = dice.chance(15) && config.is_ddp();
  config.keeps_views = dice.chance(10);
  if (dice.chance(12)) config.oddity = dice.pick(oddities());
  const bool is_hybrid = dice.chance(15);
  if (is_hybrid && num_ranks > 1) {
    config.fsdp.strategy(ShardingStrategy::kHybridShard);
    config.num_replicas = 2;
  }
  config.has_hook = dice.chance(20);
  const bool is_reproducible = dice.chance(8);
  if (is_reproducible) {
    config.ddp.reproducible(true).micro_batches(num_ranks).delay_all_reduce(false).find_unused_parameters(true);
    config.fsdp.reproducible(true).micro_batches(num_ranks);
    config.has_hook = false;
  }
  const bool shares_layers = dice.chance(40);
  const int tp = num_ranks == 4 && dice.chance(50) ? 2 : num_ranks;
  if (num_ranks > 1 && shares_layers && (config.is_ddp() || cuts_shards)) share_layers(config, tp);
  return config;
}

void put_in_files(Dice& dice, Config& config) {
  if (!config.is_fsdp() || config.has_stages()) return;
  config.in_files = dice.pick(std::vector<std::string>{"parameters", "states", "parameters and states"});
}

void put_on_stages(Dice& dice, Config& config) {
  share_layers(config, 1);
  config.is_wrapped = false;
  config.keeps_views = false;
  // Alone, beside copies or shards, and with layers that are cut; what is left of the ranks has batches of its own.
  config.pp = config.num_ranks;
  if (config.num_ranks == 2 && dice.chance(20)) config.pp = 1;
  if (config.num_ranks >= 4 && dice.chance(80)) {
    config.pp = 2;
    if (dice.chance(config.num_ranks == 4 ? 40 : 70)) config.tp = 2;
  }
  if (config.num_ranks == 8) config.pp = 2;
  config.is_bare = config.num_parts() == 1 && dice.chance(60);
  config.pipeline.schedule(dice.pick(
      std::vector<std::string>{"sequential", "round_robin", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}));
  config.pipeline.dynamic(dice.chance(85)).init_sync(dice.chance(70)).receive_ahead(dice.below(4));
  config.pipeline.num_checked_steps(dice.pick(std::vector<std::int64_t>{0, 2, 1000}));
}

std::string Config::text() const {
  std::string text = (is_ddp() ? "ddp, num_ranks " : "fsdp, num_ranks ") + std::to_string(num_ranks);
  if (tp > 1) text += ", tp " + std::to_string(tp);
  if (has_stages()) text += ", pp " + std::to_string(pp) + (is_bare ? ", bare" : "") + changes_of(pipeline, "pipe.");
  if (!device_type.empty()) text += ", on " + device_type;
  if (is_wrapped) text += ", wrapped";
  if (!oddity.empty()) text += ", odd " + oddity;
  if (keeps_views) text += ", keeps views";
  if (is_ddp()) return text + (has_hook ? ", hook" : "") + changes_of(ddp);
  if (num_replicas > 1) text += ", num_replicas " + std::to_string(num_replicas);
  if (!in_files.empty()) text += ", in files " + in_files;
  if (wrap_elements > 0) text += ", wrap_elements " + std::to_string(wrap_elements);
  return text + changes_of(fsdp);
}

Config Config::parse(const std::string& text) {
  Config config;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    item.erase(0, item.find_first_not_of(' '));
    if (item == "ddp" || item == "fsdp") {
      config.layout = item == "ddp" ? Layout::kDdp : Layout::kFsdp;
    } else if (item == "bare") {
      config.is_bare = true;
    } else if (item == "wrapped") {
      config.is_wrapped = true;
    } else if (item == "keeps views") {
      config.keeps_views = true;
    } else if (item.rfind("on ", 0) == 0) {
      config.device_type = item.substr(3);
    } else if (item.rfind("in files ", 0) == 0) {
      config.in_files = item.substr(9);
    } else if (item.rfind("odd ", 0) == 0) {
      config.oddity = item.substr(4);
    } else if (item == "hook") {
      config.has_hook = true;
    } else if (!read_number(item, "num_ranks", config.num_ranks) && !read_number(item, "tp", config.tp) &&
               !read_number(item, "pp", config.pp) && !read_number(item, "num_replicas", config.num_replicas) &&
               !read_number(item, "wrap_elements", config.wrap_elements)) {
      const auto space = item.find(' ');
      if (space == std::string::npos) throw std::invalid_argument("a configuration has no " + item);
      const auto key = item.substr(0, space);
      const auto value = item.substr(space + 1);
      if (key.rfind("pipe.", 0) == 0) {
        PipelineOptions::fields().set_text(config.pipeline, key.substr(5), value);
      } else if (config.is_ddp()) {
        DdpOptions::fields().set_text(config.ddp, key, value);
      } else {
        FsdpOptions::fields().set_text(config.fsdp, key, value);
      }
    }
  }
  return config;
}

}  // namespace tessera::testing
