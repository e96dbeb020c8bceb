#include "property/config.h"

#include <vector>

namespace tessera::testing {
namespace {

/// The options that are not the default's.
template <class Options>
std::string changes_of(const Options& options) {
  const Options usual;
  std::string text;
  for (const auto& field : Options::fields().fields()) {
    const std::string value = Options::fields().get_text(options, field.key);
    if (value != Options::fields().get_text(usual, field.key)) text += ", " + field.key + " " + value;
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
  return options;
}

FsdpOptions draw_fsdp(Dice& dice) {
  FsdpOptions options;
  options.strategy(dice.pick(std::vector<ShardingStrategy>{ShardingStrategy::kFullShard, ShardingStrategy::kFullShard,
                                                           ShardingStrategy::kShardGradOp, ShardingStrategy::kZero1,
                                                           ShardingStrategy::kNoShard}));
  if (dice.chance(70)) {
    options.auto_wrap(wrap_by_size(1 + dice.below(150)));
  } else {
    options.auto_wrap(wrap_none());
  }
  options.min_num_params(dice.pick(std::vector<std::int64_t>{0, 10, 40}));
  options.backward_prefetch(dice.pick(
      std::vector<BackwardPrefetch>{BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone}));
  options.forward_prefetch(dice.chance(70));
  options.limit_all_gathers(dice.chance(50));
  options.use_orig_params(dice.chance(40));
  options.init_sync(dice.chance(80));
  options.broadcast_buffers(dice.chance(80));
  options.shared_copy(dice.chance(50));
  return options;
}

}  // namespace

Config draw_config(Dice& dice, int num_ranks) {
  Config config;
  config.num_ranks = num_ranks;
  config.layout = dice.chance(40) ? Layout::kDdp : Layout::kFsdp;
  config.ddp = draw_ddp(dice);
  config.fsdp = draw_fsdp(dice);
  return config;
}

double Config::tolerance() const { return 1e-9; }

std::string Config::text() const {
  const std::string ranks = " on " + std::to_string(num_ranks) + " ranks";
  if (is_ddp()) return "distribute" + ranks + changes_of(ddp);
  return "fully_shard" + ranks + ", wrap policy " + fsdp.auto_wrap().text() + changes_of(fsdp);
}

}  // namespace tessera::testing
